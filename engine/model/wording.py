"""Words of messages that people read."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 action``, ``2 actions``; ``plural`` for a noun that does not end in ``s``."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


__all__ = ["counted"]
