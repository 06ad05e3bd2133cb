"""What ranks and node agents of `belay train` run."""
