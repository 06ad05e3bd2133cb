"""Procedures of the controller for the last checkpoint and the end of the job (MindIO TTP). Pure."""

from __future__ import annotations

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import Code, ControllerState, Result
from belay.agents.training.compat.tft.controller import Controller, Steps
from belay.agents.training.compat.tft.controller_commands import Order
from belay.agents.training.compat.tft.repair_states import choose_step, env_clear
from belay.agents.training.compat.tft.replicas import save_plan
from belay.agents.training.compat.tft.steplock import holding


def dump(c: Controller) -> Steps:
    """Let the chosen rank of each shard save it, then one of them rename the checkpoint."""
    c.order(Order("dump"))  # after another fault the machine returns to this state
    if c.orders.get("strategy") and c.orders["strategy"].text == "dump":
        del c.orders["strategy"]
    c.strategy = "dump"
    c.fresh = False
    result = yield from _save(c)
    c.orders.pop("dump", None)
    return result


def _save(c: Controller) -> Steps:
    if c.s.stop_before_dump:
        yield from env_clear(c)
        choose_step(c)
    healthy = holding(c.steps(c.healthy()), c.step) - {r for r in c.healthy() if c.peers[r].new}
    plan = save_plan(c.groups(), healthy, c.s.shifted)
    if c.step <= 0 or plan.missing or not plan.chosen:
        shards = "; ".join(map(str, plan.missing[:4])) or "no step is finished on all shards"
        c.result(Code.FAILED, f"no complete checkpoint can be saved: {shards}", "dump")
        return Result.ERROR
    orders = {rank: {"step": c.step, "info": info} for rank, info in plan.orders().items()}
    failed = yield from c.settled(c.ask_each(m.SAVE, orders), c.s.dump_limit)
    if not failed:
        first = min(orders)
        failed = yield from c.settled(c.ask(m.RENAME, [first], step=c.step), c.s.dump_limit)
    if failed:
        c.result(Code.FAILED, f"ranks {sorted(failed)[:16]} could not save step {c.step}", "dump")
        return Result.ERROR
    c.result(Code.OK, f"step {c.step} is saved", "dump")
    return Result.OK


def leave(c: Controller) -> Steps:
    """End every process with code 2, the one that hosts the controller last."""
    c.fresh = False
    if c.s.clusterd and not c.term and c.strategy != "exit":
        yield from c.until(lambda: "strategy" in c.orders, c.s.wait_clusterd, absorb=True)
    own = [rank for rank in c.peers if rank == c.s.rank]
    c.ask(m.EXIT, [rank for rank in c.peers if rank not in own])
    for peer in c.standby.values():
        c.leave(peer)
    others = [peer for peer in c.everyone() if peer.rank not in own]
    yield from c.until(lambda: all(peer.link is None for peer in others), c.s.exit_limit, absorb=True)
    c.ask(m.EXIT, own)
    yield from c.until(lambda: all(c.peers[rank].link is None for rank in own), c.s.exit_limit, absorb=True)
    return Result.STOP_SERVICE


PROCEDURES = {ControllerState.DUMP: dump, ControllerState.EXIT: leave}
