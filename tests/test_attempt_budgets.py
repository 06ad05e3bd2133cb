"""Attempt budgets against worlds that never get better: nothing is tried more often than its budget, and it is said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.documents import Desired
from belay.engine.model.actions import BindPod, PartitionChip
from belay.engine.model.cluster import Observed, Orders, Pod
from belay.engine.model.history import History
from belay.engine.plan import plan
from tests import test_vnpu_layout as layouts
from tests.worlds import NOW, desired, document, node, observed, pod, report

SIX_HOURS = 6 * 3600


class Hopeless:
    """A node whose agent answers every partition order with the same result."""

    def __init__(self, result: str) -> None:
        self.result = result
        self.history = History()
        self.orders: Orders | None = None
        self.times: list[float] = []
        self.deferred: list[tuple[str, str | None]] = []

    def run(self, seconds: float, intent: Desired, *, step: float = 120.0, start: float = 0.0) -> None:
        now = NOW + start
        while now < NOW + start + seconds:
            result = plan(intent, self.look(now), now)
            self.history = result.history
            cuts = [a for a in result.actions if isinstance(a, PartitionChip)]
            self.deferred = [(d.budget, d.until) for d in result.deferred]
            if cuts:
                self.times.append(now)
                epoch, issued = cuts[0].epoch, int(now * 1000)
                wanted = {0: cuts[0].templates}
                self.orders = Orders("n0", "1", epoch, "r", "", issued, issued + 900_000, {}, {}, epoch, wanted)
            now += step

    def look(self, now: float) -> Observed:
        answered = self.orders.vnpu_epoch if self.orders and self.result else 0
        base = layouts.cluster(done=answered, result=self.result or "ok", orders=self.orders)
        at = int(now * 1000) - 1000
        agents = {n: msgspec.structs.replace(a, time_ms=at) for n, a in base.agents.items()}
        reports = {n: msgspec.structs.replace(r, update_time=now - 1) for n, r in base.reports.items()}
        return msgspec.structs.replace(base, agents=agents, reports=reports, history=self.history)


@pytest.mark.parametrize("result", ["failed: the driver said no", "refused: in use", ""])
def test_a_partition_that_never_succeeds_is_ordered_three_times_in_six_hours(result: str) -> None:
    world = Hopeless(result)
    world.run(24 * 3600, layouts.declared(), step=300.0)
    for start in world.times:
        within = [at for at in world.times if start <= at < start + SIX_HOURS]
        assert len(within) <= 3, within
    assert len(world.times) >= 9, "when the window frees an attempt it is tried again"
    assert world.deferred and world.deferred[0][0] == "attempts:partition" and world.deferred[0][1] is not None


def test_partitions_that_succeed_cost_no_attempts() -> None:
    world = Hopeless("ok")
    for number, templates in enumerate(["[vir04]", "[vir02]", "[vir01]", "[vir04]", "[vir02]", "[vir01]"]):
        world.run(300, layouts.declared(templates), step=300.0, start=number * 300.0)
    assert len(world.times) == 6 and not world.deferred


def rejected(number: int, where: str, at: float, **more: Any) -> Pod:
    """A pod that kubelet ended because a device plugin did not give it its chips."""
    found = pod(f"d-{number}", node=where, chips=[0], phase="Failed", created=at, owner=("ReplicaSet", "d"), **more)
    return msgspec.structs.replace(found, reason="UnexpectedAdmissionError", owner_api="apps/v1")


def fresh(now: float) -> Pod:
    return msgspec.structs.replace(
        pod("d-new", count=1, owner=("ReplicaSet", "d"), created=now - 1), owner_api="apps/v1"
    )


def place(names: list[str], rejections: list[Pod], now: float, intent: Desired | None = None) -> tuple[str | None, Any]:
    world = observed(
        [node(n) for n in names], [report(n, update_time=now - 1) for n in names], [*rejections, fresh(now)]
    )
    result = plan(intent or desired(), world, now)
    bound = [a.node for a in result.actions if isinstance(a, BindPod)]
    return (bound[0] if bound else None), (result.pending[0] if result.pending else None)


def test_a_node_that_rejects_a_job_three_times_is_left_for_another() -> None:
    two = [rejected(i, "n0", NOW - 60 + i) for i in range(2)]
    assert place(["n0", "n1"], two, NOW)[0] == "n0"
    three = [*two, rejected(2, "n0", NOW - 10)]
    assert place(["n0", "n1"], three, NOW)[0] == "n1"
    where, pending = place(["n0"], three, NOW)
    assert where is None and "kubelet rejected 3 pods of the job there" in pending.message
    assert pending.nodes == {"AttemptBudget": 1}
    assert "2026-09-01T13:59:00Z" in pending.message, "and until when"
    assert place(["n0"], three, NOW + SIX_HOURS)[0] == "n0", "the window frees attempts"


def test_a_job_that_every_node_rejects_waits_everywhere() -> None:
    names = [f"n{i}" for i in range(6)]
    some = [rejected(i, f"n{i % 5}", NOW - 600 + i) for i in range(8)]
    assert place(names, some, NOW)[0] is not None
    more = [*some, rejected(8, "n3", NOW - 5)]
    where, pending = place(names, more, NOW)
    assert where is None and pending.nodes == {"AttemptBudget": 6}


def test_the_policy_sets_the_attempts_for_rejections() -> None:
    strict = desired(document("FaultPolicy", "p", attempts={"reschedule": {"max": 1, "window": "10m"}}))
    one = [rejected(0, "n0", NOW - 60)]
    assert place(["n0", "n1"], one, NOW, strict)[0] == "n1" and place(["n0", "n1"], one, NOW)[0] == "n0"
    assert place(["n0", "n1"], one, NOW + 600, strict)[0] == "n0"


def test_a_replica_that_is_always_rejected_is_placed_a_limited_number_of_times() -> None:
    """ReplicaSet and kubelet play against each other for a day on three nodes, both as fast as they can."""
    names, gone, now = ["n0", "n1", "n2"], [], NOW
    placed: list[float] = []
    while now < NOW + 86_400:
        where, _ = place(names, gone, now)
        if where is not None:
            placed.append(now)
            gone.append(rejected(len(gone), where, now))
        now += 1.0 if where is not None else 600.0
    for start in placed:
        assert len([at for at in placed if start <= at < start + SIX_HOURS]) <= 9
    assert len(placed) >= 27, "it goes on trying"


def test_other_failures_are_no_rejections() -> None:
    failed = [msgspec.structs.replace(rejected(i, "n0", NOW - 60 + i), reason="Error") for i in range(5)]
    assert place(["n0", "n1"], failed, NOW)[0] == "n0"
