"""Process recovery: one session per job, its writes to the cluster, and the services that feed it."""
