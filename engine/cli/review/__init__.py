"""`belay review`: what a pull request would do to the cluster, as one comment on it."""
