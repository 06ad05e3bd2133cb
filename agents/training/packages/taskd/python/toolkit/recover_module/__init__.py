"""The older client of process recovery."""
