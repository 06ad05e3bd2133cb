"""Types of elements, where scripts import them from."""

from agents.datadist import DataType

__all__ = ["DataType"]
