"""Passes without a running engine: recorded ones derived again, and plans from files."""
