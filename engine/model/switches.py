"""Which node hangs at which leaf switch, as administrators import it for switch affinity."""

from __future__ import annotations

import msgspec


class Server(msgspec.Struct, frozen=True):
    """A node under a switch: its InternalIP, its position there (``slice``, from 0) and its number of chips."""

    address: str
    slice: int
    chips: int = 0


class Switch(msgspec.Struct, frozen=True):
    """A leaf switch (ToR) with its servers, by position."""

    id: int
    address: str
    servers: tuple[Server, ...]


class Switches(msgspec.Struct, frozen=True):
    """All leaf switches, by id; each has ports for ``width`` nodes. ``single_layer``: no spines join them."""

    width: int
    switches: tuple[Switch, ...]
    single_layer: bool = False
