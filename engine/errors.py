"""Errors that Belay raises on purpose.

The classes are our own, because libraries behind the ports may be replaced, and because an error that reaches a user
must say where it happened and what to do. Each subclass is a boundary, not a cause: code catches the boundary and shows
the text. Errors of bugs are not wrapped.
"""

from __future__ import annotations

import os
from typing import NoReturn

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as in shells."""
MAX_ERROR_CHARS = 1000
"""Longest text of one error, in characters: enough to act on, too little to leak a file or a response body."""


def leave(*_: object) -> NoReturn:
    """The handler of SIGINT while there is nothing to clean up: the process ends at once, without a word."""
    os._exit(INTERRUPTED)


class BelayError(Exception):
    """An error that a user can understand and fix.

    `message` says what is wrong, `where` names it (`file:line:col`, or an object and its field), `hint` says what to
    do. `code` is a word that stays, which `belay explain` puts into words (engine/model/codes); a class has one, and a
    cause may have one of its own.
    """

    code = "Failed"

    def __init__(self, message: str, *, where: str = "", hint: str = "", code: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        if code:
            self.code = code
        super().__init__(message)

    @property
    def problem(self) -> str:
        """What is wrong and where, without what to do."""
        return bounded(f"{self.where}: {self.message}" if self.where else self.message, MAX_ERROR_CHARS)

    def __str__(self) -> str:
        return bounded(f"{self.problem.rstrip('.')}. {self.hint}" if self.hint else self.problem, MAX_ERROR_CHARS)


class InputError(BelayError):
    """Wrong input from a user or a program: a document, an option, a file. Trying again does not help."""

    code = "InvalidInput"


class SourceError(BelayError):
    """Git could not deliver.

    `reason` is a CamelCase constant that becomes the reason of a condition; `transient` says whether trying again may
    help.
    """

    def __init__(self, reason: str, message: str, *, transient: bool = False, where: str = "", hint: str = "") -> None:
        self.reason = reason
        self.transient = transient
        super().__init__(message, where=where, hint=hint, code=reason)


def bounded(text: str, limit: int) -> str:
    """Return `text` cut to at most `limit` characters; a cut text ends with an ellipsis."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"
