"""What the coordinator and nodes of `belay train` decide: pure, without clock, process or network."""
