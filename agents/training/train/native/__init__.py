"""Freeing ranks that are blocked in collectives, one file per kind of device."""
