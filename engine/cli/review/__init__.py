"""`belay review`: what a pull request does to the cluster, as one comment on it."""
