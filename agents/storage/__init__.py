"""Checks of shared storage for data sets, code and checkpoints: see README.md."""
