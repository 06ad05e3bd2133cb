"""``belay-view.<shard>-<n>``: what another shard's pass says of its nodes and jobs, for the main shard's ConfigMaps.

Readers of MindCluster's formats expect one list of all nodes. A pass knows the states of its own shard's only, so the
main shard writes the list, from its own pass and from these.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model.cluster import SwitchReport
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.plan import ChipState, NodeState, Pending, Plan, PlaneLevels
from belay.engine.wire import names
from belay.engine.wire.errors import WireError

STATES, PENDING = "states", "pending"
#: Nodes and chips of one part: packed they fill a small part of what a ConfigMap may hold.
_ROWS: Final = 10_000
_MOST_BYTES: Final = 32 * 1024 * 1024


class ChipPlanes(msgspec.Struct, frozen=True):
    """The planes of one chip of a node."""

    node: str
    chip: int
    levels: PlaneLevels


class ShardView(msgspec.Struct, frozen=True):
    """States of some of a shard's nodes; ``parts`` is in how many ConfigMaps the whole is."""

    parts: int
    nodes: tuple[NodeState, ...] = ()
    chips: tuple[ChipState, ...] = ()
    planes: tuple[ChipPlanes, ...] = ()
    switches: dict[str, SwitchReport] = {}
    pending: tuple[Pending, ...] = ()


def name_of(shard: str, number: int) -> str:
    """The name of one part."""
    return names.bounded(f"{names.VIEW_PREFIX}{shard}-{number}")


def build(shard: str, plan: Plan) -> list[dict[str, Any]]:
    """The ConfigMaps of a pass; the first one has the jobs that wait."""
    views = list(_views(plan))
    bodies = []
    for number, view in enumerate(views):
        states = msgspec.structs.replace(view, parts=len(views))
        packed = {STATES: _packed(states)}
        if number == 0:
            packed[PENDING] = _packed(plan.pending)
        metadata = {
            "name": name_of(shard, number), "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: "view"},
        }  # fmt: skip
        bodies.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": packed})
    return bodies


def parse(config_map: Mapping[str, Any]) -> ShardView:
    """Parse one part.

    Raises:
        WireError: not valid.
    """
    packed = config_map.get("binaryData") or {}
    where = f"ConfigMap/{names.SYSTEM}/{(config_map.get('metadata') or {}).get('name', '')}"
    try:
        view = msgspec.json.decode(_unpacked(packed[STATES]), type=ShardView)
        pending = msgspec.json.decode(_unpacked(packed.get(PENDING, "")) or b"[]", type=tuple[Pending, ...])
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, zlib.error) as error:
        raise WireError(where, f"binaryData.{STATES}", f"cannot be read: {str(error)[:200]}") from error
    return msgspec.structs.replace(view, pending=pending)


def _views(plan: Plan) -> Iterator[ShardView]:
    """The plan's nodes in their order, cut where a part is full; at least one part."""
    chips: dict[str, list[ChipState]] = {}
    for chip in plan.chips:
        chips.setdefault(chip.node, []).append(chip)

    nodes: list[NodeState] = []
    rows = 0
    for node in plan.nodes:
        own = 1 + len(chips.get(node.node, ()))
        if nodes and rows + own > _ROWS:
            yield _view(plan, nodes, chips)
            nodes, rows = [], 0
        nodes.append(node)
        rows += own
    yield _view(plan, nodes, chips)


def _view(plan: Plan, nodes: list[NodeState], chips: Mapping[str, list[ChipState]]) -> ShardView:
    named = [node.node for node in nodes]
    return ShardView(
        parts=0,
        nodes=tuple(nodes),
        chips=tuple(chip for node in named for chip in chips.get(node, ())),
        planes=tuple(
            ChipPlanes(node, chip, levels)
            for node in named
            for chip, levels in sorted(plan.planes.get(node, {}).items())
        ),
        switches={node: plan.switches[node] for node in named if node in plan.switches},
    )


def _packed(value: object) -> str:
    return base64.b64encode(zlib.compress(msgspec.json.encode(value, order="sorted"), 6)).decode()


def _unpacked(text: str) -> bytes:
    if not text:
        return b""
    unpack = zlib.decompressobj()
    raw = unpack.decompress(base64.b64decode(text.encode(), validate=True), _MOST_BYTES)
    if unpack.unconsumed_tail:
        raise binascii.Error(f"unpacks to more than {_MOST_BYTES} bytes")
    return raw


__all__ = ["ShardView", "build", "name_of", "parse"]
