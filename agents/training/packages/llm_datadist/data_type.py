"""Types of elements, where scripts import them from."""

from belay.agents.datadist import DataType

__all__ = ["DataType"]
