"""Belay's engine: reads what Git declares and nodes report, plans, acts and reports."""
