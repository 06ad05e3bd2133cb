"""Code for training containers: the client of the recovery service, and the packages that use it."""
