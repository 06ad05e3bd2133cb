"""Belay's engine: reads what Git declares and nodes report, plans, acts and reports."""

__version__ = "0.1.0"
