"""A deterministic simulator: the controller's and processors' machines on a virtual clock, all else made up."""
