"""One link between a prefill and a decode cluster, and the two clusters that it joins."""

from __future__ import annotations

from typing import NamedTuple


class LinkMember(NamedTuple):
    """One cluster of a side: ``node`` is empty if no node of this cluster runs it, ``name`` is for messages."""

    cluster: int
    addresses: tuple[str, ...]
    node: str
    holder: str
    name: str


class LinkPair(NamedTuple):
    """One link that KVLink ``link`` declares; ``client`` opens it."""

    link: str
    prefill: LinkMember
    decode: LinkMember
    client: LinkMember
    server: LinkMember
    timeout_ms: int
