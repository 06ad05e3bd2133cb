"""The manager of a job of 10,000 ranks: what a recovery costs it, and how fast its words reach 1,250 pods.

"Decided" is the time inside the manager's state machine, from the first report of failed ranks to the last order,
summed over all its events (1,250 reports, stop, global fault, decision). Beside it: the same events with a copy of the
snapshot for each loop and loops of 100 ms, which is how TaskD's manager works. The bus is real gRPC on loopback: 1,250
members in a process of their own.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import threading
import time
from typing import Any

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.state import Command, JobSettings, ReportFaults, Signal, ToAgents
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body, Received
from belay.agents.training.compat.bus.position import AGENT, MANAGER, PROXY, WORKER, Position
from belay.agents.training.compat.manager.core import ManagerCore
from tests.bench.measure import RUNS, Result

PODS, CHIPS = 1250, 8
LOOP = 0.1


def run() -> list[Result]:
    """All rows."""
    one = Result("one rank of 10,000 failed: decided", "ms", limit=300)
    many = Result("one rank of each of 1,250 pods failed: decided", "ms", limit=300)
    messages = Result("messages for each failed rank, all 1,250", "", limit=4)
    for _ in range(RUNS):
        one.runs.append(recovery([4321])[0] * 1000)
        seconds, count = recovery([pod * CHIPS for pod in range(PODS)])
        many.runs.append(seconds * 1000)
        messages.runs.append(count / PODS)
    many.remark = f"as TaskD loops: {naive() * 1000:.0f} ms"
    return [one, many, messages, *bus()]


def job() -> ManagerCore:
    """A manager that all pods and ranks have joined."""
    core = ManagerCore(JobSettings("bench", nodes=PODS, per_node=CHIPS, recovery=True))
    for pod in range(PODS):
        core.message(Received(Position(AGENT, str(pod)), Body(codes.STATUS, codes.RESTART_TIMES, "9")), 0.0)
    for rank in range(PODS * CHIPS):
        src = Position(WORKER, str(rank // CHIPS), str(rank))
        core.message(Received(src, Body(codes.REGISTER, codes.WORKER_REGISTERED)), 0.0)
    return core


def recovery(ranks: list[int]) -> tuple[float, int]:
    """Seconds inside the state machine, and messages on the bus, for a recovery in place of these ranks."""
    core = job()
    reports = [
        Received(
            Position(AGENT, str(rank // CHIPS)),
            Body(codes.STATUS, codes.FAULT_RANKS, json.dumps({"fault_ranks": [rank], "restart_times": -1})),
        )
        for rank in ranks
    ]
    faults = dict.fromkeys(ranks, 1)
    nodes = tuple(rank // CHIPS for rank in ranks)
    said: list[Command] = []
    begin = time.perf_counter()
    for report in reports:
        said += core.message(report, 1.0)
    said += core.signal(Signal("u", constants.STOP_TRAIN, ("stop_train",)), 1.0)
    said += core.signal(Signal("u", constants.GLOBAL_FAULT, ("on_global_rank",), faults), 2.0)
    decision = Signal(
        "u",
        constants.CHANGE_STRATEGY,
        ("change_strategy",),
        faults,
        constants.RECOVER,
        nodes=nodes,
        extra=constants.IN_PLACE,
    )
    said += core.signal(decision, 3.0)
    seconds = time.perf_counter() - begin
    orders = sum(len(one.nodes) for one in said if isinstance(one, ToAgents))
    assert orders == len(ranks) and sum(isinstance(one, ReportFaults) for one in said) == len(ranks)
    return seconds, len(reports) + orders


def naive() -> float:
    """Seconds for the same four stages, each seen by the next loop on a copy of the snapshot."""
    core = job()
    begin = time.perf_counter()
    for _ in range(4):
        copy.deepcopy(core.state)
    return (time.perf_counter() - begin) + 4 * LOOP


def pods(port: int, pipe: Any) -> None:
    """The process with 1,250 members below the manager."""
    members = [Member(Position(PROXY, str(pod)), upstream=f"127.0.0.1:{port}") for pod in range(PODS)]
    for member in members:
        member.start()
    for member in members:
        assert member.wait_joined(120.0), member.trouble
    pipe.send("joined")
    pipe.recv()


def bus() -> list[Result]:
    """Words to every pod over gRPC."""
    manager = Member(Position(MANAGER, "0"), listen="127.0.0.1:0")
    manager.start()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=pods, args=(manager.port, theirs), daemon=True)
    begin = time.perf_counter()
    process.start()
    ours.recv()
    joined = Result("1,250 pods joined, their process started", "s", runs=[time.perf_counter() - begin])
    told = Result("an order to each of 1,250 pods acknowledged", "ms")
    try:
        for _ in range(RUNS):
            told.runs.append(tell(manager) * 1000)
    finally:
        ours.send("end")
        process.join(20)
        process.kill()
        manager.close()
    return [joined, told]


def tell(manager: Member) -> float:
    """Seconds until every pod has acknowledged an order of its own."""
    left, done = [PODS], threading.Event()

    def acknowledged(code: int) -> None:
        assert code == codes.OK, codes.explained(code)
        left[0] -= 1
        if not left[0]:
            done.set()

    begin = time.perf_counter()
    for pod in range(PODS):
        body = Body(codes.ACTION, codes.RESTART_WORKERS, json.dumps([str(pod * CHIPS)]))
        manager.post(Position(PROXY, str(pod)), body, done=acknowledged)
    assert done.wait(60.0), f"{left[0]} pods did not answer"
    return time.perf_counter() - begin
