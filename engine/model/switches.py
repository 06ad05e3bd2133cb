"""Leaf switches and their nodes, as administrators import them for switch affinity."""

from __future__ import annotations

import msgspec


class SwitchServer(msgspec.Struct, frozen=True):
    """A node under a leaf switch: InternalIP, position there (``slice``, from 0), number of chips."""

    address: str
    slice: int
    chips: int = 0


class Switch(msgspec.Struct, frozen=True):
    """A leaf switch (ToR) with its servers, by position."""

    id: int
    address: str
    servers: tuple[SwitchServer, ...]


class Switches(msgspec.Struct, frozen=True):
    """All leaf switches, by id; each has ports for ``width`` nodes. ``single_layer``: no spines join them."""

    width: int
    switches: tuple[Switch, ...]
    single_layer: bool = False
