"""Checks of a KVLink across its fields: addresses, numbers used twice, short timeouts.

Limits are those of LLM-DataDist's ``link_clusters`` (CANN documentation): IPv4 addresses, 200 ms or more advised.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from belay.engine.documents import KVLink, KVSide
from belay.engine.documents.problems import Path, Problem

ADVISED: Final = 0.2
"""Seconds below which links may fail that would otherwise succeed."""


def check_links(link: KVLink) -> Iterator[Problem]:
    """Every finding about one document, at its path."""
    spec = link.spec
    if spec.timeout < ADVISED:
        text = "below 200ms links may fail that would otherwise succeed: 200ms or more is advised"
        yield Problem(("spec", "timeout"), text, "warning")
    taken: dict[str, int] = {}
    for name, side in (("prefill", spec.prefill), ("decode", spec.decode)):
        yield from _check_side(side, ("spec", name), taken)
    prefill = {cluster.id for cluster in spec.prefill.clusters}
    for index, cluster in enumerate(spec.decode.clusters):
        if cluster.id in prefill:
            path = ("spec", "decode", "clusters", index, "id")
            yield Problem(path, f"cluster {cluster.id} is among the prefill clusters too: it cannot link to itself")


def _check_side(side: KVSide, path: Path, taken: dict[str, int]) -> Iterator[Problem]:
    seen: set[int] = set()
    for index, cluster in enumerate(side.clusters):
        at: Path = (*path, "clusters", index)
        if cluster.id in seen:
            yield Problem((*at, "id"), f"cluster {cluster.id} is listed twice on this side: numbers identify clusters")
        seen.add(cluster.id)
        for place, address in enumerate(cluster.addresses):
            where: Path = (*at, "addresses", place)
            if text := _unfit(address):
                yield Problem(where, text)
            elif taken.setdefault(address, cluster.id) != cluster.id:
                text = f"{address} already belongs to cluster {taken[address]}: two processes cannot listen there"
                yield Problem(where, text)


def _unfit(address: str) -> str:
    ip, _, port = address.rpartition(":")
    try:
        ipaddress.IPv4Address(ip)
    except ValueError:
        return f"{address!r:.80} is not an IPv4 address and port, such as 10.0.0.1:26000; host names are not resolved"
    return "" if 1 <= int(port) <= 65535 else f"port {port} is out of range: 1 to 65535"


__all__ = ["ADVISED", "check_links"]
