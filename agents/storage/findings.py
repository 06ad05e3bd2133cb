"""What a check of storage found."""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "note", "warning", "error", "unknown"]


class Finding(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One finding. ``found`` says how it is; where that is not as it should be, ``cause`` says why and ``next_step``
    what to do. ``unknown``: it could not be tried.
    """

    check: str
    state: State
    found: str
    cause: str = ""
    next_step: str = ""
