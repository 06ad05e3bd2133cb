"""Version 2 of the interface."""
