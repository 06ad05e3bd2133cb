"""Exceptions of a rank."""

from __future__ import annotations


class Interrupted(RuntimeError):
    """The generation is over: this rank's step ends here, and its training function is entered again after the repair.

    A script may catch it to clean up, but the next use of the run raises it again.
    """


class TrainingError(Exception):
    """The script breaks a rule of the contract; the text says what to change."""
