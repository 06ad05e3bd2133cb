"""Procedures of the controller in the states of a repair, in the order of MindIO TFT. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.constants import (
    Code,
    ControllerState,
    DataStatus,
    FaultType,
    RepairType,
    Result,
    TrainState,
)
from belay.agents.training.compat.tft.controller import READY, Controller, Stage, Steps
from belay.agents.training.compat.tft.controller_commands import Order
from belay.agents.training.compat.tft.replicas import Move, complete, repair_plan
from belay.agents.training.compat.tft.steplock import highest_complete_step, holding

ROUNDS = 3
SHORT = 0.1


def ordered(c: Controller, *strategies: str) -> bool:
    return "strategy" in c.orders and c.orders["strategy"].text in strategies


def freeze(c: Controller) -> Steps:
    """Hold all ranks at one step: each reports its step and starts no new one, then ranks that are behind may catch
    up."""
    ask = c.ask(m.COLLECT, c.living())
    yield from c.answered(ask, c.s.collect_limit, absorb=True)
    for rank in sorted(ask.missing):
        c.give_up(rank, f"no answer to the collection for {c.s.collect_limit:g} s")
    reached = max((int(reply.get("limit", 0)) for reply in ask.results.values()), default=0)
    paces = [peer.pace for peer in c.peers.values() if peer.pace > 0]
    if _at(c, reached):
        choose_step(c)
        return
    patience = min(c.s.lock_limit, max(SHORT, 3 * max(paces, default=0.0)))
    for _ in range(ROUNDS):
        lock = c.ask(m.LOCK, c.healthy(), step=reached)
        yield from c.answered(lock, patience, absorb=True)
        beyond = [r for r, reply in lock.results.items() if reply["result"] == Result.NEED_RETRY]
        if not beyond:
            break
        reached = max(reached, max(c.peers[rank].step.step for rank in beyond))
    choose_step(c)


def _at(c: Controller, step: int) -> bool:
    """Whether the collection has found every healthy rank at this step, held there: there is nothing to wait for."""
    found = c.asked.results if c.asked is not None else {}
    for rank in c.healthy():
        held = c.peers[rank].step
        if rank not in found or found[rank].get("limit") != step or held.step != step:
            return False
        if held.data is not DataStatus.UPDATED:
            return False
    return True


def choose_step(c: Controller) -> None:
    """Choose S: the highest step whose every shard is held; ranks at another step, even healthy ones, get it from
    those."""
    spoilt = (TrainState.UCE_HIGH, TrainState.UCE_CORRUPTED, TrainState.PRECISION_ERROR)
    whole = [rank for rank in c.living() if c.peers[rank].state not in spoilt and not c.peers[rank].new]
    c.step = highest_complete_step(c.steps(whole), c.groups(), c.s.shifted)


def can_dump(c: Controller) -> bool:
    """Whether the healthy ranks hold a complete checkpoint."""
    holders = holding(c.steps(c.healthy()), c.step) - {r for r in c.healthy() if c.peers[r].new}
    return c.step > 0 and bool(c.groups()) and complete(c.groups(), holders, c.s.shifted)


def only_device_faults(c: Controller) -> bool:
    """Whether every fault can be repaired in the process where it occurred."""
    living = set(c.living())
    return all(kind is not FaultType.PROCESS and rank in living for rank, kind in c.faults.items())


def offered(c: Controller) -> list[str]:
    """The strategies that are possible now."""
    found = ["exit"]
    if can_dump(c):
        found.append("dump")
    if c.isolated or (c.step <= 0 and not any(peer.step.step for peer in c.peers.values())):
        return found
    if only_device_faults(c) and c.repairable():
        found.append("retry")
    if c.s.arf:
        found.append("recover")
    if c.s.zit:
        found += ["downgrade", "upgrade"]
    return found


def abnormal(c: Controller) -> Steps:
    """Handle a fault: start a new generation, hold all ranks, ask ClusterD."""
    c.generation += 1
    c.fresh = False
    c.asked = None
    c.resumed.clear()
    if c.stage is Stage.STOP:
        c.strategy = c.params = ""
    if c.hot:
        drop_standby(c)
    yield from freeze(c)
    c.fresh = False
    if not c.faults and not {"stop", "dump"} & c.orders.keys() and not ordered(c, "exit", "dump"):
        ask = c.ask(m.NORMAL if _parked(c) else m.UNLOCK, c.living(), step=c.step)
        yield from c.settled(ask, c.s.action_limit)
        return Result.RERUN
    if "dump" in c.orders or ordered(c, "dump"):
        return Result.ERROR
    if ordered(c, "exit"):
        return Result.STOP_SERVICE
    if not c.s.clusterd or c.term:
        if only_device_faults(c) and c.repairable() and c.step > 0 and not c.isolated:
            c.strategy = "retry"
            return Result.OK
        return Result.ERROR
    return (yield from ask_clusterd(c))


def _parked(c: Controller) -> bool:
    return any(c.peers[rank].parked for rank in c.living())


def drop_standby(c: Controller) -> None:
    for peer in c.standby.values():
        c.leave(peer)
    c.standby.clear()
    c.hot = frozenset()


def ask_clusterd(c: Controller) -> Steps:
    """The protocol with ClusterD: report faults, stop training, get all faults of the job, offer strategies, get
    one."""
    _report_faults(c)
    if c.stage is Stage.DECIDED:
        # another fault during a repair
        if c.strategy == "recover" or (c.strategy == "retry" and only_device_faults(c)):
            return Result.OK
        retried = c.strategy == "retry" and c.s.arf
        c.result(Code.RECOVERABLE if retried else Code.FALL_BACK, "another rank failed", c.strategy)
        c.orders.clear()
        c.stage = Stage.GLOBAL if retried else Stage.STRATEGY

    if c.stage is Stage.STOP:
        if not (yield from c.until(lambda: any_of(c, "stop", "strategy", "dump"), c.s.wait_clusterd)):
            return _clusterd_silent(c, "stop_train")
        _add(c, c.orders.pop("stop", None))
        ready = any(peer.replicas for peer in c.peers.values())
        code, why = (Code.OK, "") if ready else (Code.NOT_READY, "no rank named its replicas")
        c.report("report_stop_complete", code, why, c.reported_faults())
        c.stage = Stage.GLOBAL

    wait = c.s.wait_clusterd
    if c.stage is Stage.GLOBAL:
        if not (yield from c.until(lambda: any_of(c, "global", "strategy", "dump"), wait)):
            return _clusterd_silent(c, "on_global_rank")
        given = c.orders.pop("global", None)
        _add(c, given)
        if given is not None:
            _report_faults(c)
            c.report("report_strategies", c.reported_faults(), offered(c))
            wait = max(given.limit, wait)
        c.stage = Stage.STRATEGY
    return (yield from strategy(c, wait))


def _report_faults(c: Controller) -> None:
    codes = {rank: code for rank, code in sorted(c.codes.items()) if code}
    c.report("report_fault_ranks", c.reported_faults(), codes)


def strategy(c: Controller, wait: float) -> Steps:
    """Wait for the strategy, check that it was offered, adopt it."""
    if not (yield from c.until(lambda: any_of(c, "strategy", "dump"), wait)):
        return _clusterd_silent(c, "change_strategy")
    if "dump" in c.orders:
        return Result.ERROR
    order = c.orders.pop("strategy")
    for stale in ("stop", "global"):
        c.orders.pop(stale, None)
    c.stage, c.strategy, c.params = Stage.DECIDED, order.text, order.params
    choices = offered(c)
    if order.text not in choices:
        c.result(Code.FAILED, f"invalid strategy {order.text[:32]!r}, offered are {', '.join(choices)}", order.text)
        c.strategy = "exit"
    if c.strategy == "exit":
        return Result.STOP_SERVICE
    return Result.ERROR if order.text == "dump" else Result.OK


def any_of(c: Controller, *kinds: str) -> bool:
    return bool(c.orders.keys() & set(kinds))


def _add(c: Controller, order: Order | None) -> None:
    """Add the faults that ClusterD reports."""
    for rank, kind in (order.faults if order else {}).items():
        if rank in c.peers or 0 <= rank < c.s.world:
            known = c.faults.get(rank)
            if known is None:
                c.fault(rank, FaultType(kind) if kind in (0, 1, 2) else FaultType.PROCESS, "reported by ClusterD")
    c.fresh = False


def _clusterd_silent(c: Controller, what: str) -> Result:
    c.log(f"ClusterD did not say {what} within {c.s.wait_clusterd:g} s: the last checkpoint is saved", warning=True)
    return Result.ERROR


def env_clear(c: Controller) -> Steps:
    """Stop train threads, clean devices and links. A survivor that cannot be freed is ended and replaced."""
    for rank in sorted(c.lost()):
        peer = c.peers.get(rank)
        if peer is not None and peer.link is not None:
            c.leave(peer)

    ranks = [rank for rank in c.living() if rank not in c.lost()]
    failed = yield from _stop(c, ranks)
    # where the new processes are there already, ranks clean and rebuild at one order
    c.unclean = not failed and c.strategy == "recover" and _arrived(c)
    if not failed and not c.unclean:
        clean = c.ask(m.CLEAN, ranks)
        failed = yield from c.settled(clean, c.s.action_limit)
    if failed:
        return (yield from _unclean(c, failed))
    return Result.DOWNGRADE if c.strategy == "downgrade" else Result.OK


def _stop(c: Controller, ranks: list[int]) -> Steps:
    """Stop the train threads of ranks; those that failed. Ranks that do not answer in time are given up."""
    stop = c.ask(m.STOP, ranks, step=max([c.step, *(c.peers[rank].step.step for rank in ranks)]))
    started, grace = c.now, c.grace()
    while not (yield from c.answered(stop, grace / 8)):
        stuck = [rank for rank in sorted(stop.missing) if _is_stuck(c, rank, grace)]
        if c.now - started >= c.s.action_limit:
            stuck = sorted(stop.missing)
        elif not (c.s.arf and c.s.clusterd and _spared(c, stuck)):
            continue
        for rank in stuck:
            c.give_up(rank, f"could not be stopped within {c.now - started:.1f} s")
    return stop.failed()


def _is_stuck(c: Controller, rank: int, grace: float) -> bool:
    """Whether a rank's callback has freed its train thread, which did not come back since."""
    freed = c.peers[rank].freed
    return freed is not None and c.now - freed >= grace


def _arrived(c: Controller) -> bool:
    """Whether every lost rank has a new process that waits for its groups."""
    return not c.lost() and all(peer.state in READY for rank in c.living() if (peer := c.peers[rank]).new)


def _spared(c: Controller, ranks: list[int]) -> bool:
    """Whether other ranks hold every shard: the last holder of a shard is never given up."""
    others = [rank for rank in c.healthy() if rank not in ranks and not c.peers[rank].new]
    return complete(c.groups(), holding(c.steps(others), c.step), c.s.shifted)


def _unclean(c: Controller, failed: set[int]) -> Steps:
    """Handle ranks that could not be stopped or cleaned: with process recovery they are replaced."""
    named = ", ".join(map(str, sorted(failed)[:16]))
    if c.s.arf and c.s.clusterd and c.strategy in ("retry", "recover"):
        for rank in sorted(failed):
            c.give_up(rank, "stop or clean failed")
        yield from c.until(lambda: False, 0.0)
    c.result(Code.FAILED, f"stop or clean failed on ranks {named}", c.strategy)
    return Result.ERROR


def repair(c: Controller) -> Steps:
    """Rebuild groups, copy state from donors, roll all ranks back to S, continue training."""
    upgrade = c.strategy == "upgrade"
    if c.strategy in ("recover", "upgrade"):
        turned = yield from newcomers(c, sorted(c.faults))
        if turned is not None:
            return turned
    return (yield from restore(c, upgrade))


def newcomers(c: Controller, faults: list[int]) -> Steps:
    """Wait for replacement processes, then rebuild groups on all ranks. None: continue."""
    for rank in c.lost():
        if rank in c.peers and c.peers[rank].link is None:
            c.peers[rank].state = TrainState.OFFLINE

    turned = yield from _await_newcomers(c)
    if turned is None:
        turned = yield from _rebuild(c, faults)
    return turned


def _await_newcomers(c: Controller) -> Steps:
    """Wait until every lost rank has a new process. None: continue."""
    deadline = c.now + c.s.node_limit
    while True:
        if not (
            yield from c.until(lambda: _arrived(c) or any_of(c, "stop", "global", "strategy", "dump"), deadline - c.now)
        ):
            c.result(Code.FALL_BACK, f"no new process for ranks {sorted(c.lost())[:16]}", c.strategy)
            return (yield from fall_back(c))
        if _arrived(c):
            return None
        turned = _ordered_meanwhile(c)
        if turned is not None:
            return turned


def _ordered_meanwhile(c: Controller) -> Result | None:
    """Obey ClusterD, which goes on with its protocol while processes are awaited. None: go on waiting."""
    if "dump" in c.orders or ordered(c, "dump"):
        return Result.ERROR
    if ordered(c, "exit"):
        return Result.STOP_SERVICE
    if ordered(c, "downgrade") and c.s.zit:
        c.strategy, c.params = "downgrade", c.orders.pop("strategy").params
        return Result.DOWNGRADE

    # the strategy stands already; what else is asked for is answered
    c.orders.pop("strategy", None)
    if c.orders.pop("stop", None):
        c.report("report_stop_complete", Code.OK, "", c.reported_faults())
    if given := c.orders.pop("global", None):
        _add(c, given)
        c.report("report_strategies", c.reported_faults(), offered(c))
    return None


def _rebuild(c: Controller, faults: list[int]) -> Steps:
    """Rebuild groups on all ranks, and wait until new processes have got to their repair. None: continue."""
    op = m.UP_REBUILD if c.strategy == "upgrade" else m.REBUILD
    ask = c.ask(op, c.living(), ranks=faults, param=c.params, **({"clean": True} if c.unclean else {}))
    c.unclean = False
    failed = yield from c.settled(ask, c.s.action_limit)
    if unclean := {rank for rank in failed if ask.results[rank].get("unclean")}:
        return (yield from _unclean(c, unclean))
    if failed:
        c.result(Code.FALL_BACK, f"groups could not be rebuilt on ranks {sorted(failed)[:16]}", c.strategy)
        return (yield from fall_back(c))

    def on_the_way() -> list[int]:
        peers = ((rank, c.peers[rank]) for rank in c.living())
        return [rank for rank, peer in peers if peer.new and peer.state is not TrainState.PREREPAIR_FINISH]

    if not (yield from c.until(lambda: not on_the_way(), c.s.action_limit)):
        for rank in on_the_way():
            c.give_up(rank, "the new process did not get to its repair")
        yield from c.until(lambda: False, 0.0)
    return None


def restore(c: Controller, upgrade: bool = False) -> Steps:
    """Let donors send and receivers load the state; all ranks roll back to S and train."""
    asked = c.step
    choose_step(c)
    orders = repair_orders(c, asked)
    failed: set[int] = set()
    if orders:
        op = m.UP_REPAIR if upgrade else m.REPAIR
        failed = yield from c.settled(c.ask_each(op, orders), c.s.action_limit)
        c.step = max((c.peers[r].loaded for r in orders if orders[r]["type"] >= 5), default=0) or c.step
    if not failed:
        if upgrade:
            back = c.ask(m.UP_ROLLBACK, c.living(), step=c.step, param=c.params)
        else:
            # a rank that has rolled back goes on: its next collective waits for the others
            back = c.ask(m.ROLLBACK, c.living(), step=c.step, param=c.params, resume=True)
        failed = yield from c.settled(back, c.s.action_limit)
    if failed:
        c.result(Code.FALL_BACK, f"repair failed on ranks {sorted(failed)[:16]}", c.strategy)
        if any(not c.peers[rank].parked for rank in c.living()):
            yield from freeze(c)
        return (yield from fall_back(c))
    if held := [rank for rank in c.living() if upgrade or c.peers[rank].parked]:
        yield from c.settled(c.ask(m.NORMAL, held, step=c.step), c.s.action_limit)
    for rank in c.living():
        c.peers[rank].new = False
    c.awaiting, c.repaired = (c.strategy, c.step), c.reported_faults()
    c.faults.clear()
    c.codes.clear()
    c.resumed.clear()
    return Result.OK


def repair_orders(c: Controller, asked: int) -> dict[int, dict[str, Any]]:
    """The part of each rank in the repair; empty when there is nothing to repair."""
    living = c.living()
    spoilt = {rank for rank in living if c.peers[rank].state in (TrainState.UCE_HIGH, TrainState.UCE_LOW)}
    torn = any(c.peers[rank].state in (TrainState.UCE_CORRUPTED, TrainState.PRECISION_ERROR) for rank in living)
    new = {rank for rank in living if c.peers[rank].new}
    healthy = holding(c.steps(living), c.step) - spoilt - new
    lost = set(living) - healthy
    if not lost and not torn:
        return {}

    plan = repair_plan(c.groups(), lost, healthy, c.s.shifted)
    if torn or plan.missing or c.step <= 0:
        for shard in plan.missing[:8]:
            c.log(f"no rank holds {shard}: every rank loads the periodic checkpoint", warning=True)
        c.step = c.step or asked
        return {rank: _part(c, _loading(c, rank, spoilt), (), sorted(living)) for rank in living}

    everyone = sorted({move.source for move in plan.moves} | {move.target for move in plan.moves})
    orders: dict[int, dict[str, Any]] = {}
    for rank in everyone:
        kind = _receiving(c, rank, spoilt) if rank in lost else RepairType.RT_SEND
        orders[rank] = _part(c, kind, [move for move in plan.moves if rank in (move.source, move.target)], everyone)
    return orders


def _loading(c: Controller, rank: int, spoilt: set[int]) -> RepairType:
    """How a rank loads the periodic checkpoint: into new memory where its own is damaged."""
    damaged = rank in spoilt or c.peers[rank].state is TrainState.UCE_CORRUPTED
    return RepairType.RT_LOAD_REBUILD if damaged else RepairType.RT_LOAD_CKPT


def _receiving(c: Controller, rank: int, spoilt: set[int]) -> RepairType:
    """How a rank takes the state of a donor."""
    if rank not in spoilt:
        return RepairType.RT_RECV_REPAIR
    low = c.peers[rank].state is TrainState.UCE_LOW
    return RepairType.RT_UCE_LOWLEVEL if low else RepairType.RT_UCE_HIGHLEVEL


def _part(c: Controller, kind: RepairType, moves: Sequence[Move], ranks: list[int]) -> dict[str, Any]:
    """A rank's part in a repair, as processors read it."""
    return {
        "step": c.step,
        "type": kind.value,
        "kinds": [move.kind for move in moves],
        "src": [move.source for move in moves],
        "dst": [move.target for move in moves],
        "ranks": ranks,
        "param": c.params,
    }


def fall_back(c: Controller) -> Steps:
    """After a failed repair ClusterD chooses between saving and leaving."""
    if c.s.clusterd and not c.term:
        c.orders.pop("strategy", None)
        c.stage = Stage.STRATEGY
        if (yield from c.until(lambda: any_of(c, "strategy", "dump"), c.s.wait_clusterd)) and ordered(c, "exit"):
            return Result.STOP_SERVICE
    return Result.ERROR


PROCEDURES = {ControllerState.ABNORMAL: abnormal, ControllerState.ENV_CLEAR: env_clear, ControllerState.REPAIR: repair}
