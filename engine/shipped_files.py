"""Where the policies are that come with Belay: beside ``engine/`` in a checkout, else in the installed package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from engine.errors import InputError


@contextmanager
def shipped_root() -> Iterator[Path]:
    """The directory in which ``policies/`` is.

    Raises:
        InputError: the installation lacks them.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "policies" / "products").is_dir():
        yield checkout
        return
    with resources.as_file(resources.files("engine") / "shipped") as folder:
        if not (folder / "policies" / "products").is_dir():
            raise InputError("the shipped policies are missing", where=str(folder), hint="Install Belay again")
        yield folder
