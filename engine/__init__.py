"""Belay's engine: reads what Git declares and nodes report, plans, acts and tells."""

__version__ = "0.1.0"
