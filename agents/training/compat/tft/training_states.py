"""Procedures of the controller while ranks train: wait for the first ranks, watch them, pause them. Pure."""

from __future__ import annotations

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import Code, ControllerState, FaultType, Result, TrainState
from belay.agents.training.compat.tft.controller import Controller, Stage, Steps
from belay.agents.training.compat.tft.controller_commands import Order
from belay.agents.training.compat.tft.repair_states import any_of, ordered


def init(c: Controller) -> Steps:
    """Begin at once as the master; as a backup once more than half of the ranks have connected."""
    if not c.master:
        yield from c.until(lambda: 2 * len(c.living()) > c.s.world, absorb=True)
        c.master = True
        c.log(f"backup controller {c.s.backup} takes over with {len(c.living())} of {c.s.world} ranks", warning=True)
        for rank, peer in list(c.peers.items()):
            if not peer.step.step and any(other.step.step for other in c.peers.values()):
                c.leave(peer)  # a new process has nothing to save
                del c.peers[rank]
                c.regroup()
        for peer in c.peers.values():
            c.send(peer, {"op": m.REGISTERED, "version": m.VERSIONS[-1], "term": c.term, "repair_id": 0, "hot": False,
                          "heartbeat": c.s.heartbeat})  # fmt: skip
        yield from c.until(lambda: len(c.living()) == c.s.world, c.s.heartbeat, absorb=True)
        c.generation = max(peer.generation for peer in c.peers.values())
        for rank in range(c.s.world):
            if rank not in c.peers:
                c.fault(rank, FaultType.PROCESS, "did not come to the backup controller")
        if any(peer.parked or peer.generation for peer in c.peers.values()) and not c.faults:
            c.order(Order("dump"))
    return Result.OK


def normal(c: Controller) -> Steps:
    """Watch training. Ends on a fault, on an order, or when every rank is done."""
    c.standby.clear()
    c.hot = frozenset()
    while True:
        _report_repaired(c)
        if c.fresh and not _goes_on_with_fault(c):
            return Result.ERROR
        if _all_left(c):
            return Result.STOP_SERVICE
        if note_strays(c, c.generation):
            continue

        if "pause" in c.orders:
            return Result.PAUSE
        if "prepare" in c.orders:
            order = c.orders.pop("prepare")
            if order.text == "hot switch":
                c.hot = frozenset(order.faults)
                return Result.SWITCH
        if {"stop", "dump"} & c.orders.keys() or ordered(c, "exit", "dump"):
            return Result.ERROR
        # answers to questions of a repair that is over
        for stale in ("global", "strategy"):
            c.orders.pop(stale, None)
        yield from c.until(lambda: _has_work(c), c.s.heartbeat, absorb=True)


def _report_repaired(c: Controller) -> None:
    """Report a repair as done once a rank has finished a step after it."""
    if c.awaiting and any(peer.step.step > c.awaiting[1] for peer in c.peers.values()):
        strategy, _ = c.awaiting
        c.result(Code.OK, "", strategy)
        c.awaiting, c.stage = None, Stage.STOP
        c.repaired = {}


def _goes_on_with_fault(c: Controller) -> bool:
    """Whether a fault needs no repair: others have finished already, and so have the living ranks."""
    finished = [peer for peer in c.peers.values() if peer.finished]
    if not finished:
        return False
    c.fresh = False
    reached = max(peer.step.step for peer in finished)
    if any(c.peers[rank].new or c.peers[rank].step.step < reached for rank in c.living()):
        # ranks that have left cannot be donors: the rest ends instead of waiting for them
        c.log("a rank was lost while others had left already: the rest ends", warning=True)
        c.order(Order("strategy", text="exit"))
        return False
    return True


def note_strays(c: Controller, since: int) -> bool:
    """Record as a fault that a rank's train function ended in generation ``since`` or later without an order to stop;
    whether there is such a rank. The others wait for it in a collective.
    """
    found = [
        rank
        for rank in c.living()
        if (peer := c.peers[rank]).parked and peer.generation >= since and peer.state is not TrainState.STEP_FINISH
    ]
    for rank in found:
        c.fault(rank, FaultType.NETWORK, "stopped without being asked")
    return bool(found)


def _has_work(c: Controller) -> bool:
    """Whether there is anything to handle."""
    stepped = c.awaiting is not None and any(peer.step.step > c.awaiting[1] for peer in c.peers.values())
    return bool(c.fresh or c.orders or stepped) or _all_left(c)


def _all_left(c: Controller) -> bool:
    """Whether every rank has been connected and the last one is done."""
    if not c.finished or len(c.peers) < c.s.world:
        return False
    return not any(p.link is not None and not p.finished and r not in c.isolated for r, p in c.peers.items())


def pause(c: Controller) -> Steps:
    """Let all ranks stop after the same step, wait, and continue."""
    order = c.orders.pop("pause")
    fine = yield from hold_at_same_step(c, c.generation, hot=False)
    c.report("report_stop_complete", Code.OK if fine else Code.FAILED, "" if fine else "not every rank paused", {})
    limit = order.limit if order.limit > 0 else 600.0
    arrived = yield from c.until(lambda: any_of(c, "strategy", "stop", "dump"), limit)
    if arrived and ({"stop", "dump"} & c.orders.keys() or ordered(c, "exit", "dump")):
        return Result.ERROR
    then = c.orders.pop("strategy", None)
    failed = yield from c.settled(c.ask(m.CONTINUE, c.living()), c.s.action_limit)
    if then is not None:
        c.result(Code.FAILED if failed else Code.OK, "", then.text)
    return Result.OK


def hold_at_same_step(c: Controller, since: int, hot: bool) -> Steps:
    """Let all ranks pause after the next step that none can have finished yet; whether they do. ``since``: the
    generation in which they train.
    """
    look = c.ask(m.COLLECT, c.living())
    yield from c.settled(look, c.s.collect_limit)
    reached = max((int(reply.get("limit", 0)) for reply in look.results.values()), default=0)
    ask = c.ask(m.PAUSE, c.living(), step=reached + 1, hot=hot)
    deadline = c.now + c.s.action_limit
    while not (yield from c.answered(ask, min(c.s.heartbeat, deadline - c.now))):
        if c.now >= deadline:
            return False
        note_strays(c, since)
    return not ask.failed()


PROCEDURES = {ControllerState.INIT: init, ControllerState.NORMAL: normal, ControllerState.PAUSE: pause}
