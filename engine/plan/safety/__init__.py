"""Keeps disruption within the safety budgets, and records what passes."""
