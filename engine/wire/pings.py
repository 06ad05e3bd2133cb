"""``belay-pings-<node>``: how long pings between chips took, as a node's agent measured it, a complete state.

Delays are whole nanoseconds (`belay.engine.model.pings`). Each path is written once, with its windows as rows
``[number, rounds, delay, sent, lost]``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.pings import NodePings, PathWindow
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object
from belay.engine.wire.names import NODES, PINGS_PREFIX, bounded

KEY: Final = "pings.json"
ABOUT: Final = "pings"
#: Limits of one node's ConfigMap.
MAX_BODY: Final = 800 * 1024
MAX_PATHS: Final = 4096
MAX_WINDOWS: Final = 4
MAX_CHIP: Final = 255
MAX_SECONDS: Final = 6000
_ADDRESS: Final = re.compile(r"[0-9A-Za-z.:%-]{1,64}")


class _Path(msgspec.Struct):
    chip: int
    source: str
    target: str
    windows: list[tuple[int, int, int, int, int]]


class _Pings(msgspec.Struct):
    node: str
    time: int
    seconds: int
    paths: list[_Path] = []


def name_of(node: str) -> str:
    """Name of a node's ConfigMap."""
    return bounded(PINGS_PREFIX + node)


def pings_map(pings: NodePings, time_ms: int) -> dict[str, Any]:
    """The ConfigMap; if there are too many paths, every second one is left out, as often as it takes."""
    paths: dict[tuple[int, str, str], _Path] = {}
    for one in sorted(pings.windows, key=lambda row: (row.chip, row.source, row.target, row.number)):
        known = paths.setdefault((one.chip, one.source, one.target), _Path(one.chip, one.source, one.target, []))
        known.windows = [*known.windows, (one.number, one.rounds, one.delay, one.sent, one.lost)][-MAX_WINDOWS:]
    body = _Pings(pings.node, time_ms, pings.seconds, list(paths.values()))
    text = _text(body)
    while len(body.paths) > MAX_PATHS or len(text) > MAX_BODY:
        body.paths = body.paths[::2]
        text = _text(body)
    metadata = {"name": name_of(pings.node), "namespace": NODES, "labels": {ABOUT_LABEL: ABOUT}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}


def parse_pings(config_map: Mapping[str, Any]) -> tuple[int, NodePings]:
    """Time of writing (Unix ms) and what was measured.

    Raises:
        WireError: not valid, or ``node`` differs from the ConfigMap's name.
    """
    metadata, data = config_map.get("metadata") or {}, config_map.get("data") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    raw = read_object(where, f"data.{KEY}", data.get(KEY))
    try:
        body = msgspec.convert(raw, _Pings)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{KEY}", str(error)[:200]) from error
    if metadata.get("name") != name_of(body.node):
        raise WireError(where, f"data.{KEY}.node", f"{body.node[:80]!r} is not the node of this ConfigMap")
    if not 1 <= body.seconds <= MAX_SECONDS:
        raise WireError(where, f"data.{KEY}.seconds", f"{body.seconds} must be from 1 to {MAX_SECONDS}")
    if len(body.paths) > MAX_PATHS:
        raise WireError(where, f"data.{KEY}.paths", f"{len(body.paths)} paths, the limit is {MAX_PATHS}")
    windows = [row for at, path in enumerate(body.paths) for row in _read(where, f"data.{KEY}.paths[{at}]", path)]
    return body.time, NodePings(body.node, body.seconds, tuple(windows))


def _read(where: str, field: str, path: _Path) -> list[PathWindow]:
    if not 0 <= path.chip <= MAX_CHIP:
        raise WireError(where, f"{field}.chip", f"{path.chip} must be from 0 to {MAX_CHIP}")
    for address in (path.source, path.target):
        if not _ADDRESS.fullmatch(address):
            raise WireError(where, field, f"{address[:64]!r} is not an address")
    if len(path.windows) > MAX_WINDOWS:
        raise WireError(where, field, f"{len(path.windows)} windows, the limit is {MAX_WINDOWS}")
    for row in path.windows:
        if min(row) < 0 or max(row) > 1 << 53 or row[4] > row[3]:
            raise WireError(where, field, f"window {row[0]} is out of range")
    return [PathWindow(path.chip, path.source, path.target, *row) for row in path.windows]


def _text(body: _Pings) -> str:
    return msgspec.json.encode(body).decode()


__all__ = ["ABOUT", "KEY", "MAX_PATHS", "name_of", "parse_pings", "pings_map"]
