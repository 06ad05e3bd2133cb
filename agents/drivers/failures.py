"""What every driver raises. Apart from the nouns of drivers, so that the process that holds the library stays small."""

from __future__ import annotations


class DriverError(Exception):
    """The driver refused or failed a call; the text is bounded and fit for a report."""
