"""Procedures of the controller for a hot switch (one process moves while the others train) and for elastic training (a
job shrinks and grows again). Pure.
"""

from __future__ import annotations

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import Code, ControllerState, FaultType, Result
from belay.agents.training.compat.tft.controller import READY, Controller, Steps
from belay.agents.training.compat.tft.repair_states import choose_step, freeze, newcomers, restore
from belay.agents.training.compat.tft.replicas import complete, without
from belay.agents.training.compat.tft.steplock import holding
from belay.agents.training.compat.tft.training_states import hold_at_same_step, note_strays


def step_finish(c: Controller) -> Steps:
    """Wait for the new processes while training continues; then stop all ranks after one step and ask ClusterD."""
    training, c.generation = c.generation, c.generation + 1

    def ready() -> bool:
        return c.hot <= c.standby.keys() and all(peer.state in READY for peer in c.standby.values())

    def has_order() -> bool:
        return bool(c.orders.keys() & {"prepare", "stop", "dump", "strategy"})

    deadline = c.now + c.s.node_limit
    while not (yield from c.until(lambda: ready() or has_order(), min(c.s.heartbeat, deadline - c.now))):
        if c.now >= deadline:
            break
        note_strays(c, training)
    if not ready():
        return (yield from _cancel(c))
    paused = yield from hold_at_same_step(c, training, hot=True)
    faults = {rank: int(FaultType.PROCESS) for rank in sorted(c.hot)}
    c.report("report_strategies", faults, ["migration"] if paused else ["exit"])
    yield from c.until(lambda: "strategy" in c.orders, c.s.wait_clusterd)
    order = c.orders.pop("strategy", None)
    if not paused or order is None or order.text != "migration":
        return Result.STOP_SERVICE
    c.strategy, c.params = "migration", order.params
    return Result.OK


def _cancel(c: Controller) -> Steps:
    """Give the switch up. All ranks learn of its generation, so that what they report from now on counts as its."""
    c.orders.pop("prepare", None)
    for peer in c.standby.values():
        c.leave(peer)
    c.standby.clear()
    c.hot = frozenset()
    yield from c.settled(c.ask(m.UNLOCK, c.living(), step=c.step), c.s.action_limit)
    return Result.RERUN


def migration(c: Controller) -> Steps:
    """Replace the old processes by the new ones."""
    for rank, peer in sorted(c.standby.items()):
        old = c.peers[rank]
        c.leave(old)
        old.finished = True
        c.retired.add(old.session)
        peer.replicas, peer.dp = peer.replicas or old.replicas, peer.dp or old.dp
        c.peers[rank] = peer
    c.regroup()
    moved = sorted(c.standby)
    c.standby.clear()
    c.hot = frozenset()
    turned = yield from newcomers(c, moved)
    return turned if turned is not None else (yield from restore(c))


def dg_repair(c: Controller) -> Steps:
    """Remove the data-parallel indices of the lost ranks; the rest continues with smaller groups."""
    lost = set(c.faults)
    dp = {peer.dp for peer in c.peers.values() if peer.dp}
    families = sorted(dp | {group.ranks for group in c.groups()})
    isolated = without(lost, families)
    remaining = [rank for rank in c.living() if rank not in isolated]
    healthy = holding(c.steps(remaining), c.step)
    if 0 in isolated:
        c.result(Code.FALL_BACK, "rank 0 would have to leave", "downgrade")
        return Result.ERROR
    if c.step <= 0 or not complete(c.groups(), healthy, c.s.shifted) or len(healthy) < len(remaining):
        c.result(Code.FAILED, "without the ranks that leave no complete state is left", "downgrade")
        return Result.ERROR
    c.result(Code.ISOLATE, "these ranks leave", "downgrade", sorted(isolated))
    c.isolated = isolated
    orders = {}
    for rank in remaining:
        own = c.peers[rank].dp or next((g.ranks for g in c.groups() if rank in g.ranks), ())
        group = [other for other in own if other not in isolated]
        orders[rank] = {"step": c.step, "world": sorted(remaining), "group": group, "param": c.params}
    failed = yield from c.settled(c.ask_each(m.DOWNGRADE, orders), c.s.action_limit)
    if failed:
        c.result(Code.FALL_BACK, f"groups could not be made smaller on ranks {sorted(failed)[:16]}", "downgrade")
        return Result.ERROR
    yield from c.settled(c.ask(m.NORMAL, remaining, step=c.step), c.s.action_limit)
    c.awaiting = ("downgrade", c.step)
    for rank in lost:
        c.faults.pop(rank, None)
    return Result.OK


def downgrade(c: Controller) -> Steps:
    """Train with fewer ranks until pods are back or another fault occurs."""
    awaited = c.awaiting
    if awaited is not None:
        if not (
            yield from c.until(
                lambda: any(c.peers[r].step.step > awaited[1] for r in c.living()) or bool(c.orders), None
            )
        ):
            return Result.ERROR
        if any(c.peers[rank].step.step > awaited[1] for rank in c.living()):
            c.result(Code.OK, "", awaited[0], ())
            c.awaiting = None
    yield from c.until(lambda: bool(c.orders) or not c.living())
    if not c.living():
        return Result.STOP_SERVICE
    order = c.orders.pop("strategy", None)
    if order is not None and order.text == "upgrade":
        c.params = order.params
        return Result.NEED_RETRY
    if order is not None and order.text in ("exit", "dump"):
        c.orders["strategy"] = order
    if c.orders.keys() & {"stop", "dump", "strategy"}:
        return Result.ERROR
    c.orders.clear()
    return Result.OK


def upgrade(c: Controller) -> Steps:
    """Wait until all processes of the returned pods are ready, hold all ranks, enlarge the groups."""
    c.strategy = "upgrade"

    def ready() -> bool:
        return all(
            (peer := c.peers.get(rank)) is not None and peer.link is not None and peer.new and peer.state in READY
            for rank in c.isolated
        )

    if not (yield from c.until(ready, c.s.node_limit)):
        c.result(Code.FALL_BACK, "the ranks that left did not all come back", "upgrade")
        return Result.ERROR
    c.generation += 1
    c.faults = dict.fromkeys(sorted(c.isolated), FaultType.PROCESS)
    c.isolated = frozenset()
    c.fresh = False
    yield from freeze(c)
    choose_step(c)
    return Result.OK


PROCEDURES = {
    ControllerState.STEP_FINISH: step_finish,
    ControllerState.MIGRATION: migration,
    ControllerState.DG_REPAIR: dg_repair,
    ControllerState.DOWNGRADE: downgrade,
    ControllerState.UPGRADE: upgrade,
}
