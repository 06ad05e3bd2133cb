"""Messages and stubs of the recovery service, where scripts written for TaskD import them."""
