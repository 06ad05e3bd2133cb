"""The container runtime: an OCI runtime over runc that gives containers their chips, and its installation."""
