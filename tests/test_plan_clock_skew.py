"""A clock that ran ahead for one pass keeps nothing out, in place or spent for longer than a right one would have."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import EvictPod, ResetChips
from belay.engine.model.history import (
    ChipMemory,
    CodeMemory,
    History,
    Hold,
    JobFault,
    JobMemory,
    NodeMemory,
    PublicFaultMemory,
)
from belay.engine.plan import clock_skew, plan
from belay.engine.plan.draft import Memory
from tests.steps import Steps
from tests.worlds import NOW, desired, document, fault, node, observed, pod, report

YEAR = 365 * 86_400.0
MS = int(NOW * 1000)
LATER = int((NOW + YEAR) * 1000)
CODE = "80C98001"
OFTEN = document(
    "FaultPolicy",
    "often",
    frequency=[{"codes": [CODE], "times": 2, "window": "1h", "level": "SeparateNPU", "releaseAfter": "10m"}],
    levels={CODE: "NotHandleFault"},
)


def world(now: float, *faults: Any, history: History | None = None, **more: Any) -> Any:
    return observed([node("n0")], [report("n0", faults=faults, update_time=now - 1)], history=history, **more)


def state(made: Any) -> str:
    return next((c.state for c in made.chips if c.chip == "Ascend910-3"), "healthy")


def test_a_hold_of_a_fast_clock_lasts_as_long_as_its_rule() -> None:
    history, rule = History(), desired(OFTEN)
    for at, there in ((0, 1), (10, 0), (20, 1), (30, 0)):
        now = NOW + YEAR + at
        made = plan(rule, world(now, *[fault(3, CODE, "NotHandleFault", at=now - 1)] * there, history=history), now)
        history = made.history
    assert state(made) == "isolated"
    seen: list[tuple[float, str]] = []
    for later in (0.0, 590.0, 601.0):
        made = plan(rule, world(NOW + later, history=history), NOW + later)
        history = made.history
        seen.append((later, state(made)))
    assert seen == [(0.0, "isolated"), (590.0, "isolated"), (601.0, "healthy")]


def test_resets_with_future_times_count_from_now() -> None:
    rows = {c: ChipMemory(epoch=3, resets=(LATER, LATER + 1, LATER + 2)) for c in range(8)}
    history = History(nodes={"n0": NodeMemory(chips=rows)})
    bad = fault(3, CODE, "RestartNPU", at=NOW - 5)
    made = plan(desired(), world(NOW, bad, history=history), NOW)
    assert [d.until for d in made.deferred if isinstance(d.action, ResetChips)] == ["2026-09-01T13:59:59.998Z"]
    now = NOW + 6 * 3600 + 1
    made = plan(desired(), world(now, bad, history=made.history), now)
    assert [(a.epoch, len(a.chips)) for a in made.actions if isinstance(a, ResetChips)] == [(4, 8)]


def evictions(now: float, **more: Any) -> list[str]:
    """What the one allowed eviction in ten minutes is spent on."""
    budget = document("SafetyBudget", "default", limits=[{"actions": ["EvictPod"], "per": "cluster", "max": 1,
                                                          "window": "10m"}])  # fmt: skip
    hit = pod("j-0", node="n0", chips=[3], owner=("AscendJob", "j"), labels={"fault-scheduling": "force"})
    seen = world(now, fault(3, CODE, "SeparateNPU", at=NOW - 5), pods=[hit])
    made = plan(desired(budget), msgspec.structs.replace(seen, **more), now)
    return [a.pod for a in made.actions if isinstance(a, EvictPod)]


def test_spends_with_future_times_expire_after_one_window() -> None:
    key = "default#0/cluster/cluster"
    memory = Steps(desired(), world(NOW, history=History(budgets={key: ((LATER, "u", 1),)})), NOW).run("clock_skew")
    assert memory.memory.budgets == {key: ((MS, "u", 1),)}
    assert evictions(NOW, history=History(budgets={key: ((LATER, "u", 1),)})) == []
    assert evictions(NOW + 600, history=History(budgets=memory.memory.budgets)) == ["j-0"]


@pytest.mark.parametrize(("ahead", "free"), [(0, False), (599_000, False), (601_000, True), (LATER - MS, True)])
def test_reservations_of_other_shards_count_unless_their_clock_was_wrong(ahead: int, free: bool) -> None:
    reserved = {"default#0/cluster/cluster": ((MS + ahead, "u", 1, "other"),)}
    assert (evictions(NOW, reserved=reserved) == ["j-0"]) is free


def recalled(nodes: dict[str, NodeMemory], jobs: dict[str, JobMemory]) -> Memory:
    history = History(nodes=nodes, jobs=jobs)
    return Steps(desired(), world(NOW, history=history), NOW).run("clock_skew").memory


def test_small_differences_between_clocks_stay() -> None:
    near = MS + clock_skew.AHEAD_MS
    chip = ChipMemory(
        codes={CODE: CodeMemory(near, near, occurrences=(near,), recovered=near)},
        holds=(Hold("frequency", "SeparateNPU", since=near, until=LATER),),
        isolated=near, ordered=near, recovering=near, resets=(near,), hardware={CODE: (near,)},
    )  # fmt: skip
    own = NodeMemory(chips={3: chip}, public={"a/b": PublicFaultMemory("1", (3,), near, shown=near, until=near + 5000)})
    job = JobMemory(reschedules=(near,), evicted={"u": -near}, faults=(JobFault(near, "n0", 3, CODE),))
    after = recalled({"n0": own}, {"train/AscendJob/j": job})
    assert after.nodes["n0"] is own and after.jobs["train/AscendJob/j"] is job


def test_every_time_of_the_memory_is_brought_back() -> None:
    chip = ChipMemory(
        codes={CODE: CodeMemory(MS - 5, LATER, occurrences=(MS - 5, LATER), recovered=LATER)},
        holds=(Hold("manual", "ManuallySeparateNPU", since=LATER), Hold("no-agent", "", since=LATER, until=LATER + 9)),
        isolated=LATER, ordered=LATER, recovering=LATER, resets=(MS - 5, LATER), hardware={CODE: (LATER,)},
    )  # fmt: skip
    own = NodeMemory(
        chips={3: chip},
        partitions=(LATER,),
        public={"a/b": PublicFaultMemory("1", (3,), 7, shown=LATER, until=LATER + 5000)},
    )
    job = JobMemory(reschedules=(LATER,), evicted={"u": -LATER, "v": LATER}, faults=(JobFault(LATER, "n0", 3, CODE),))
    after = recalled({"n0": own}, {"train/AscendJob/j": job})
    row, told = after.nodes["n0"].chips[3], after.jobs["train/AscendJob/j"]
    assert row == ChipMemory(
        codes={CODE: CodeMemory(MS - 5, MS, occurrences=(MS - 5, MS), recovered=MS)},
        holds=(Hold("manual", "ManuallySeparateNPU", since=MS), Hold("no-agent", "", since=MS, until=MS + 9)),
        isolated=MS, ordered=MS, recovering=MS, resets=(MS - 5, MS), hardware={CODE: (MS,)},
    )  # fmt: skip
    assert after.nodes["n0"].partitions == (MS,)
    assert after.nodes["n0"].public["a/b"] == PublicFaultMemory("1", (3,), 7, shown=MS, until=MS + 5000)
    assert told == JobMemory(reschedules=(MS,), evicted={"u": -MS, "v": MS}, faults=(JobFault(MS, "n0", 3, CODE),))
