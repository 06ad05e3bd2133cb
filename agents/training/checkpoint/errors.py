"""Errors of checkpoints, one class each, so that callers distinguish them by type and not by text."""

from __future__ import annotations


class CheckpointError(Exception):
    """Any error of a checkpoint; the text names the file and the next step."""


class NotThisFormat(CheckpointError):
    """The file does not end with the flag of the format; another reader may know it."""


class Damaged(CheckpointError):
    """The file has the flag but its content contradicts itself or its checksums."""


class Unsupported(CheckpointError):
    """An object that the format, or the restricted reader, does not take; the text names its class."""


class Incomplete(CheckpointError):
    """A set of files lacks some; the text names them."""


class PoolFull(CheckpointError):
    """No room in the memory pool within the time that the caller would wait."""


class WriterGone(CheckpointError):
    """The writing process cannot be reached."""
