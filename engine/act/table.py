"""The function that carries out each kind of action; the set of kinds is closed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from belay.engine.act import objects, orders, pods
from belay.engine.act.edge import Edge
from belay.engine.model import actions as act

Run = Callable[[Edge, Any], Awaitable[bool]]
"""Carries out one action: True when it wrote, False when nothing changed. Raises Refused, Superseded or KubeError."""


def _ordered(edge: Edge, action: orders.ChipAction) -> Awaitable[bool]:
    async def run() -> bool:
        answer = (await orders.order_chips(edge, action.node, [action]))[0]
        if isinstance(answer, bool):
            return answer
        raise answer

    return run()


TABLE: Final[dict[type[act.Action], Run]] = {
    act.CreateObject: objects.create_object,
    act.PatchObject: objects.patch_object,
    act.DeleteObject: objects.delete_object,
    act.CreatePod: pods.create_pod,
    act.BindPod: pods.bind_pod,
    act.EvictPod: pods.evict_pod,
    act.IsolateChip: _ordered,
    act.ReleaseChip: _ordered,
    act.IsolateNode: orders.isolate_node,
    act.ReleaseNode: orders.release_node,
    act.ResetChips: _ordered,
    act.PartitionChip: _ordered,
    act.ScaleJob: objects.scale_job,
    act.SignalJob: objects.signal_job,
    act.WriteRankTable: objects.write_rank_table,
}
