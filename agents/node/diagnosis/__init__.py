"""Reads the logs of failed pods and reports what rules find in them."""
