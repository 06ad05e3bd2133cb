"""Where the policies are that come with Belay: beside ``engine/`` in a checkout, else in the installed package."""

from __future__ import annotations

from pathlib import Path

from belay import SHIPPED
from belay.engine.errors import InputError


def shipped_root() -> Path:
    """The directory in which ``policies/`` is.

    Raises:
        InputError: the installation lacks them.
    """
    if not (SHIPPED / "policies" / "products").is_dir():
        raise InputError("the shipped policies are missing", where=str(SHIPPED), hint="Install Belay again")
    return SHIPPED
