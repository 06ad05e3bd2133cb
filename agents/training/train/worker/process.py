"""This process as a rank: its number, and its connection to the node agent."""

from __future__ import annotations

import os
import socket
from typing import Any

from belay.agents.training.train.home import Home
from belay.agents.training.train.page import Page
from belay.agents.training.train.worker.control import Control

BLOCKING = frozenset({"RANK", "LOCAL_RANK"})
"""Variables that a spare does not have yet: a script that reads one waits until the spare is assigned a rank."""


class CurrentRank:
    """A rank, or a spare that may become any rank."""

    def __init__(self, sock: socket.socket, page: int, home: Home) -> None:
        self.control = Control(sock, page, home)
        self.rank = self.local_rank = -1
        self.world = 0
        self.address = "127.0.0.1"
        self.page = Page(page)
        self.groups: Any = None

    def identify(self) -> None:
        """Wait until this process has a rank, and set the environment as torchrun does."""
        if self.rank >= 0:
            return
        assigned = self.control.wait_assignment()
        self.rank, self.local_rank = assigned.rank, assigned.local_rank
        self.world, self.address = assigned.world, assigned.address
        known = assigned.env
        for name, value in known.items():
            os.putenv(name, value)
        # os.environ may be the watching class below, which would call this function again
        os.environ._data.update({os.fsencode(name): os.fsencode(value) for name, value in known.items()})  # type: ignore[attr-defined]
        os.environ.__class__ = os._Environ


_CURRENT: CurrentRank | None = None


def current() -> CurrentRank | None:
    """This process as a rank under a node agent; None without one."""
    return _CURRENT


def become(member: CurrentRank) -> None:
    """Make this process a rank."""
    global _CURRENT
    _CURRENT = member
    watched = type(
        "RankEnviron",
        (type(os.environ),),
        {"__getitem__": _watched_item, "__iter__": _watched_iter, "__len__": _watched_len},
    )
    os.environ.__class__ = watched


def _watched_item(self: Any, key: str) -> str:
    if key in BLOCKING and _CURRENT is not None:
        _CURRENT.identify()
    value: str = os._Environ.__getitem__(self, key)
    return value


def _watched_iter(self: Any) -> Any:
    if _CURRENT is not None:
        _CURRENT.identify()
    return iter(os._Environ.__iter__(self))


def _watched_len(self: Any) -> int:
    return len(self._data)
