"""The way out of a waiting job leads out: its step is carried out here as values, never as text, until it is placed."""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belay.engine.model.pending_reasons import INSUFFICIENT, REASONS, reason_in_words
from belay.engine.model.plan import Pending
from belay.engine.model.remedies import MEANING, Remedy, Step
from tests import listing
from tests.followers import Follower, follow_to_the_end
from tests.listing import Item, job, node, report
from tests.test_place_pending import INVALID, UNFIT, UNSUPPORTED
from tests.waiting_jobs import KINDS, RACK, TAINT, Waiting, affinity, busy
from tests.waiting_worlds import WORLDS

ROOM = Path("engine/plan")


def one(kind: str = "Ascend910", chips: int = 8, **more: Any) -> list[Item]:
    """A cluster of one node."""
    return [node("n0", kind=kind, chips=chips, **more), report("n0", kind=kind, chips=chips)]


PRESET = "huawei.com/Ascend310P-4c.3cpu"
#: Clusters in which job j waits: what its reason is, and words that the state or the way out must name.
CASES: dict[str, tuple[list[Item], str, tuple[str, ...]]] = {
    "16 chips on servers of 8": (
        [*one(), *job("j", 1, 16, policy="chip8-node8")], "InvalidRequest", ("16 chips", "1 to 8", "ask for 8 chips"),
    ),
    "3 chips in a ring": ([*one(), *job("j", 1, 3)], "InvalidRequest", ("3 chips", "1, 2, 4 or 8", "ask for 2 chips")),
    "one die in two pods": (
        [*one(chips=16), *job("j", 2, 1, policy="chip2-node16")], "InvalidRequest", ("may have 2, 4",),
    ),
    "a typo in accelerator-type": (
        [*one(labels={"accelerator-type": "module-910b-8"}),
         *job("j", 1, 4, spec={"nodeSelector": {"accelerator-type": "module-910c-8"}})],
        "NotSupportPolicy", ("module-910c-8", "write accelerator-type: module-910b-8"),
    ),
    "a typo in the policy": (
        [*one("npu"), *job("j", 1, 4, kind="npu", policy="chip4-node9")], "NotSupportPolicy", ("chip4-node9", "write"),
    ),
    "a strategy that is none": (
        [*one("Ascend310"), *job("j", 1, 1, kind="Ascend310", labels={"npu-310-strategy": "crd"})],
        "NotSupportPolicy", ("npu-310-strategy", "'crd'"),
    ),
    "a resource that is none": (
        [*one(), *job("j", 1, 8, kind="Ascend910B", policy="chip8-node8")],
        "NotSupportPolicy", ("huawei.com/Ascend910B", "ask for huawei.com/Ascend910"),
    ),
    "several pods of a job for one": (
        [*one("Ascend310P", labels={"infer-card-type": "card-300i-duo"}), *job(
            "j", 2, 1, kind="Ascend310P", labels={"duo": "true", "distributed": "true"}
        )],
        "InvalidRequest", ("2 pods", "one pod"),
    ),
    "a vNPU that no node offers": (
        [*one("Ascend310P"), node("other"), report("other"), node("cpu", kind="cpu"), *job(
            "j", 1, 1, kind="Ascend310P-4c.3cpu", spec={"nodeSelector": {"accelerator": "huawei-Ascend310P"}}
        )],
        "Fragmented", ("n0", f"offers no {PRESET}", "vir04_3c on chip Ascend310P-0 of node n0"),
    ),
    "a label of the selector": (
        [*one(), *job("j", 1, 8, policy="chip8-node8", spec={"nodeSelector": {"zone": "a"}})],
        "NodeSelectorMismatch", ("n0", "label n0 with zone=a"),
    ),
    "an affinity beside a selector that matches": (
        [*one(), *job("j", 1, 8, policy="chip8-node8", spec={
            "nodeSelector": {"accelerator": "huawei-Ascend910"},
            **affinity(RACK, {"key": "old", "operator": "DoesNotExist"}),
        })],
        "NodeAffinityMismatch", ("rack in [r1, r2]", "label n0 with rack=r1"),
    ),
    "a taint": ([*one(taints=[TAINT]), *job("j", 1, 8, policy="chip8-node8")], "TaintNotTolerated", ("team=vision",)),
    "a cordon": ([*one(unschedulable=True), *job("j", 1, 8, policy="chip8-node8")], "NodeUnschedulable", ("uncordon",)),
    "a taint and a label": (
        [*one(taints=[TAINT]), *job("j", 1, 8, policy="chip8-node8", spec={"nodeSelector": {"zone": "a"}})],
        "NodeSelectorMismatch", ("zone=a", "team=vision"),
    ),
    "chips of others": (
        [*one(), busy("b0", range(4)), busy("b1", range(4, 8)), *job("j", 1, 8, policy="chip8-node8")],
        "NPUResourceShortage", ("n0, has 0 free of the 8 chips",),
    ),
    "a ring broken by others": (
        [*one(), *(busy(f"b{i}", range(i, i + 1)) for i in (0, 4)), *job("j", 1, 4)],
        "TopologyNotMet", ("in one ring",),
    ),
    "more chips than any node has": (
        [*one("Ascend310P"), *job("j", 1, 12, kind="Ascend310P")], "NPUResourceShortage", ("at most 8 chips a pod",),
    ),
    "CPUs of others": (
        [*one(), listing.pod("web", on="n0", requests={"cpu": "190"}),
         *job("j", 1, 8, policy="chip8-node8", spec={"containers": [{"name": "c", "image": "i", "resources": {
             "requests": {"cpu": "10", "huawei.com/Ascend910": "8"}, "limits": {"huawei.com/Ascend910": "8"}}}]})],
        "InsufficientCpu", ("n0",),
    ),
    "more CPUs than any node has": (
        [*one(), *job("j", 1, 8, policy="chip8-node8", spec={"containers": [{"name": "c", "image": "i", "resources": {
             "requests": {"cpu": "5000", "huawei.com/Ascend910": "8"}, "limits": {"huawei.com/Ascend910": "8"}}}]})],
        "InsufficientCpu", ("ask for less cpu", "more than 192"),
    ),
    "pods of others": (
        [*one(sizes={"pods": "2"}), *(listing.pod(f"w{i}", on="n0") for i in range(2)),
         *job("j", 1, 8, policy="chip8-node8")],
        "TooManyPods", ("n0",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_way_out_is_the_nearest_nodes_obstacle_and_leads_out(case: str) -> None:
    items, reason, words = CASES[case]
    first, *_ = follow_to_the_end(items)
    assert first.reason == reason, first.message
    for word in words:
        assert word in f"{first.message} — {first.unblock}"
    assert "correct the job's request" not in (first.unblock or "")


@pytest.mark.parametrize("kind", dict.fromkeys(KINDS), ids=lambda kind: kind.__name__)
def test_random_ways_out_lead_to_a_placed_job(kind: Callable[[random.Random], Waiting]) -> None:
    """`make soak` takes 10,000 of them."""
    entries = [follow_to_the_end(*kind(random.Random(seed))) for seed in range(12)]
    assert sum(bool(seen) for seen in entries) >= 6
    for entry in [entry for seen in entries for entry in seen]:
        assert all(has_a_row(reason) for reason in (entry.reason, *entry.nodes)), entry


#: Seeds of each world that `make test` follows; `make soak` takes 10,000 of worlds and random kinds together.
SEEDS = range(3)
Make = Callable[[random.Random], Waiting]


def is_about(entry: Pending, reason: str) -> bool:
    """Whether the entry's way out is about the reason: its own, or one that all nodes and only nodes have."""
    if entry.reason.startswith(reason) and reason == INSUFFICIENT:
        return True
    return entry.reason == reason or entry.nodes.keys() == {reason}


@pytest.mark.parametrize(("reason", "make"), WORLDS, ids=[f"{reason}-{at}" for at, (reason, _) in enumerate(WORLDS)])
def test_each_reason_has_a_world_whose_way_out_is_followed(reason: str, make: Make) -> None:
    for seed in SEEDS:
        first, *_ = follow_to_the_end(*make(random.Random(seed)))
        assert is_about(first, reason), first


def test_no_reason_of_the_vocabulary_lacks_such_a_world() -> None:
    """A new reason needs a row in tests/waiting_worlds.py: job j waits for it there, and is placed in the end."""
    played = {reason for reason, _ in WORLDS} | {reason for _, reason, _ in CASES.values()}
    assert not REASONS.keys() - played and all(map(has_a_row, played))


def test_every_step_has_its_meaning_and_is_taken_by_a_follower() -> None:
    worlds = [*(Waiting(items) for items, _, _ in CASES.values())]
    worlds += [make(random.Random(0)) for _, make in WORLDS]
    taken = {entry.remedy.step for world in worlds for entry in follow_to_the_end(*world) if entry.remedy}
    assert set(MEANING) == set(Step) == taken


REFUSED = {**{case: items for case, (items, _) in INVALID.items()}, **UNSUPPORTED}
#: It needs 136 nodes, more than are added here one by one.
TOO_LARGE = "950 memory"


@pytest.mark.parametrize("case", sorted(REFUSED.keys() - {TOO_LARGE}))
def test_every_request_that_no_cluster_can_meet_is_corrected_by_its_way_out(case: str) -> None:
    """All numbers, blocks, policies and labels whose sentence tests/test_place_pending.py has."""
    first, *more = follow_to_the_end(REFUSED[case])
    refusals = [entry.reason for entry in (first, *more) if entry.reason == first.reason]
    assert len(refusals) <= 2, "one change, at most a second one for what the first brings to light"


def test_what_a_job_is_to_leave_out_is_named() -> None:
    first = Follower(INVALID[TOO_LARGE][0]).pending()
    assert first is not None and first.remedy is not None
    assert first.remedy == Remedy(Step.SET_POLICY, remove=("huawei.com/schedule_ubmemory",))


@pytest.mark.parametrize("case", UNFIT)
def test_every_node_that_does_not_fit_has_a_way_out(case: str) -> None:
    follow_to_the_end(UNFIT[case][0])


def has_a_row(reason: str) -> bool:
    return reason in REASONS or reason.startswith(INSUFFICIENT)


#: Calls that give a reason, and which of their arguments it is.
GIVING = {"Refusal": 0, "QueueRefusal": 0, "pending_entry": 2}


def reasons_in_the_code() -> set[str]:
    """Every text or constant that stands as the reason of a refusal in the planner."""
    found: set[str] = set()
    for path in sorted(ROOM.rglob("*.py")):
        module = ".".join(path.with_suffix("").parts)
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in GIVING):
                continue
            given = call.args[GIVING[call.func.id] :]
            match given[0] if given else None:
                case ast.Constant(value=str() as text):
                    found.add(text)
                case ast.Name(id=name) if name.isupper():
                    found.add(getattr(importlib.import_module(module), name))
    return found


def test_every_reason_that_the_planner_gives_is_in_the_vocabulary() -> None:
    found = reasons_in_the_code()
    assert len(found) > 30 and found <= REASONS.keys(), sorted(found - REASONS.keys())


def test_every_row_of_the_vocabulary_is_a_sentence_after_its_subject() -> None:
    for reason, row in REASONS.items():
        assert row.state and row.way_out and not row.state[0].isupper() and not row.way_out.endswith("."), reason
    assert reason_in_words("InsufficientMemory") is REASONS["Insufficient"]
