"""What runs inside training containers: the client of the recovery service, and the packages that expect it."""
