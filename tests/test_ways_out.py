"""The way out of a waiting job leads out: its step is carried out here as values, never as text, until it is placed."""

from __future__ import annotations

import ast
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.model.pending_reasons import REASONS, reason_in_words
from engine.model.remedies import MEANING, Step
from tests import listing
from tests.followers import follow_to_the_end
from tests.listing import Item, job, node, report
from tests.waiting_jobs import KINDS, RACK, TAINT, Waiting, affinity, busy

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
        "InsufficientCpu", ("ask for less cpu",),
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
    steps = [len(follow_to_the_end(*kind(random.Random(seed)))) for seed in range(12)]
    assert sum(count > 0 for count in steps) >= 6


def test_each_step_of_a_remedy_has_its_meaning() -> None:
    assert set(MEANING) == set(Step)


def reasons_in_the_code() -> set[str]:
    """Every text or constant that stands as the reason of a refusal in the planner."""
    found: set[str] = set()
    for path in sorted(ROOM.rglob("*.py")):
        module = ".".join(path.with_suffix("").parts)
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Refusal"):
                continue
            match call.args[0]:
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
