"""Soft shares of chips: validation, which chip, how good a node is, and the annotations.

Facts: docs/zh/scheduling/04_usage/02_virtual_instance;
component/ascend-for-volcano/internal/npu/policy/chip1softsharedev.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.model.remedies import Step
from belay.engine.plan.place.part_requests import SoftShare
from belay.engine.plan.place.parts.soft_table import best, choose
from tests import worlds
from tests.placing import bindings, gang, nodes_of, scope_of
from tests.steps import Steps
from tests.vnpuworld import SHARE, observed, shares, sharing, soft_node

GIB = 1024
FIXED, ELASTIC = "fixed-share", "elastic"


def placed(*pods: Any, nodes: int = 1, chips: int = 2, labels: dict[str, str] | None = None, **fields: Any) -> Steps:
    names = [f"n{i}" for i in range(nodes)]
    return scope_of(
        observed([soft_node(n, chips=chips, **(labels or {})) for n in names],
                 [worlds.report(n, chips=chips) for n in names], pods, **fields)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("used", "chips", "wish", "value"),
    [
        ({}, [0, 1], SoftShare(30, 20 * GIB, FIXED, 1), 0),
        ({0: (20, 10 * GIB, FIXED)}, [0, 1], SoftShare(30, 20 * GIB, FIXED, 1), 150),
        ({0: (90, 30 * GIB, FIXED)}, [0], SoftShare(20, 5 * GIB, FIXED, 1), 1),
        ({0: (20, 10 * GIB, ELASTIC)}, [0, 1], SoftShare(30, 20 * GIB, FIXED, 1), 1),
        ({0: (40, GIB, FIXED), 1: (60, GIB, FIXED), 2: (90, GIB, FIXED)}, [0, 1, 2], SoftShare(20, GIB, FIXED, 1), 180),
    ],
)
def test_the_value_of_a_node(used: Any, chips: list[int], wish: SoftShare, value: int) -> None:
    assert best(chips, used, wish, 32 * GIB) == value


@pytest.mark.parametrize(
    ("chips", "used", "wish", "chip"),
    [
        ([3, 1, 2], {}, SoftShare(50, 16 * GIB, FIXED, 1), 1),
        ([0, 1, 2], {0: (40, 10 * GIB, FIXED), 1: (30, 10 * GIB, FIXED)}, SoftShare(20, 10 * GIB, FIXED, 1), 0),
        ([0, 1, 2], {0: (30, 10 * GIB, FIXED), 1: (40, 10 * GIB, FIXED)}, SoftShare(20, 10 * GIB, FIXED, 1), 1),
        ([0, 1], {0: (20, 10 * GIB, ELASTIC)}, SoftShare(20, 10 * GIB, FIXED, 1), 1),
        ([0], {0: (80, 10 * GIB, FIXED)}, SoftShare(30, GIB, FIXED, 1), None),
        ([0], {0: (10, 30 * GIB, FIXED)}, SoftShare(10, 3 * GIB, FIXED, 1), None),
        ([0], {}, SoftShare(10, 33 * GIB, FIXED, 1), None),
    ],
)
def test_the_chip_that_is_shared(chips: list[int], used: Any, wish: SoftShare, chip: int | None) -> None:
    assert choose(chips, used, wish, 32 * GIB) == chip


def test_310p_jobs_ignore_the_policy() -> None:
    """factory.go maps policies for the 910 and npu resources only; 310P chips cannot be shared softly."""
    kind: dict[str, Any] = {"resource": "huawei.com/Ascend310P", "prefix": "Ascend310P-"}
    pods, group = gang(
        1, 5, resource=kind["resource"], annotations={"huawei.com/schedule_policy": "chip1-softShareDev"}
    )
    node = worlds.node("n0", labels={"accelerator": "huawei-Ascend310P"}, **kind)
    scope = scope_of(observed([node], [worlds.report("n0", **kind)], pods, objects=[group]))
    assert bindings(scope)["case-0"].chips == tuple(f"Ascend310P-{chip}" for chip in range(5))
    assert scope.scores == {"train/case-0": {"n0": 6392}}


def test_a_share_is_written_into_the_binding() -> None:
    scope = placed(sharing("a", "n0", 1, 20, 10 * GIB), shares("p", 30, 20 * GIB))
    (bound,) = bindings(scope).values()
    assert (bound.chips, bound.template) == (("Ascend910-1",), None)
    notes = bound.annotations
    assert notes["huawei.com/Ascend910"] == "Ascend910-1" and notes["predicate-time"].isdecimal()
    assert {key.removeprefix(SHARE): value for key, value in notes.items() if key.startswith(SHARE)} == {
        "aicoreQuota": "30", "hbmQuota": str(20 * GIB), "policy": FIXED,
    }  # fmt: skip
    assert scope.scores == {"train/p": {"n0": 150 * 16}}


def test_a_share_of_the_only_chip_of_a_node_is_no_whole_node() -> None:
    scope = placed(shares("p", 20, GIB, created=worlds.NOW), chips=1)
    (bound,) = bindings(scope).values()
    assert "huawei.com/AscendReal" not in bound.annotations and f"{SHARE}vnpuId" not in bound.annotations
    assert not any(key.startswith("ascend.kubectl.kubernetes.io") for key in bound.annotations)


def test_pods_of_an_operator_are_numbered_on_their_chip() -> None:
    label = {"training.kubeflow.org/operator-name": "ascendjob-controller"}
    known = sharing("a", "n0", 0, 20, GIB)
    known.annotations[f"{SHARE}vnpuId"] = "4"
    pods = [shares(f"p{i}", 20, GIB, labels=label, created=worlds.NOW - 10 + i) for i in range(2)]
    scope = placed(known, *pods)
    assert [bindings(scope)[f"p{i}"].annotations[f"{SHARE}vnpuId"] for i in range(2)] == ["5", "6"]
    assert {a.annotations["huawei.com/AscendReal"] for a in bindings(scope).values()} == {"Ascend910-0"}


def test_the_fuller_node_of_the_same_policy_wins() -> None:
    there = [sharing("a", "n1", 0, 50, GIB), sharing("b", "n2", 0, 70, GIB, ELASTIC)]
    scope = placed(*there, shares("p", 30, GIB), nodes=3)
    assert scope.scores == {"train/p": {"n0": 0, "n1": 180 * 16, "n2": 16}} and nodes_of(scope) == {"p": "n1"}


def test_shares_of_one_pass_fill_a_chip_and_then_the_next() -> None:
    scope = placed(*(shares(f"p{i}", 40, GIB, created=worlds.NOW - 10 + i) for i in range(5)))
    chips = [bindings(scope)[f"p{i}"].chips[0][-1] for i in range(4)]
    assert chips == ["0", "0", "1", "1"] and scope.pending[0].name == "p4"


def test_memory_is_shared_out_as_well() -> None:
    scope = placed(*(shares(f"p{i}", 10, 20 * GIB, created=worlds.NOW - 10 + i) for i in range(3)))
    assert [bindings(scope)[f"p{i}"].chips[0][-1] for i in range(2)] == ["0", "1"]
    assert scope.pending[0].reason in ("NPUResourceShortage", "Fragmented")


def test_policies_do_not_mix_on_a_chip() -> None:
    scope = placed(sharing("a", "n0", 0, 10, GIB, "best-effort"), shares("p", 10, GIB, ELASTIC))
    assert bindings(scope)["p"].chips == ("Ascend910-1",)
    numbered = sharing("a", "n0", 0, 10, GIB, "2")  # the number that the runtime's configuration uses
    assert bindings(placed(numbered, shares("p", 10, GIB, ELASTIC)))["p"].chips == ("Ascend910-0",)


def test_the_whole_job_must_fit_on_one_node() -> None:
    pods, group = gang(
        3, 60, labels=shares("x", 60, GIB).labels, annotations={"huawei.com/schedule_policy": "chip1-softShareDev"}
    )
    refused = placed(*pods, objects=[group], nodes=2)
    assert not bindings(refused) and refused.pending[0].nodes == {"NPUResourceShortage": 2}
    assert f"wants 180 % and {3 * GIB} MB, 200 % and {64 * GIB} MB are left" in refused.pending[0].message
    done = placed(*pods, objects=[group], chips=3)
    assert len(bindings(done)) == 3 and len({a.chips for a in bindings(done).values()}) == 3


@pytest.mark.parametrize(
    ("quota", "memory", "policy", "count", "words"),
    [
        (0, 1, FIXED, 1, "aicoreQuota: 0 not in range [1,100]"),
        (101, 1, FIXED, 101, "aicoreQuota: 101 not in range [1,100]"),
        (10, 0, FIXED, 10, "hbmQuota: 0 less than 1"), (10, 1, "greedy", 10, "schedulingPolicy: greedy is invalid"),
        ("ten", 1, FIXED, 10, "aicoreQuota: ten convert to int err"), (10, "1G", FIXED, 10, "hbmQuota: 1G convert"),
        (10, 1, FIXED, 11, "is not what pod p requests: 11"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request(quota: Any, memory: Any, policy: str, count: int, words: str) -> None:
    (entry,) = placed(shares("p", quota, memory, policy, count=count)).pending
    assert entry.reason == "InvalidRequest"
    assert "InvalidResourceRequest: chip1-softShareDev check share device job(p) valid failed, " in entry.message
    assert words in entry.message
    # 101 percent are asked for by the pod too, which no label corrects
    assert entry.remedy is not None and entry.remedy.step is Step.SET_LABEL
    corrected = shares("p", quota, memory, policy, count=count)
    corrected.labels.update(entry.remedy.values)
    assert "p" in bindings(placed(corrected)) or count > 100


@pytest.mark.parametrize("missing", ["aicoreQuota", "hbmQuota", "policy"])
def test_all_three_labels_are_needed(missing: str) -> None:
    pod = shares("p", 10, GIB)
    del pod.labels[f"{SHARE}{missing}"]
    (entry,) = placed(pod).pending
    assert entry.reason == "InvalidRequest" and "hasAicoreQuota: " in entry.message and "false" in entry.message
    assert entry.remedy is not None and list(entry.remedy.values) == [f"{SHARE}{missing}"]
    pod.labels.update(entry.remedy.values)
    assert "p" in bindings(placed(pod)) and (entry.unblock or "").startswith(f"write {SHARE}{missing}: ")


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ({"enable": "false"}, "SoftShareNotEnabled"), ({"enable": ""}, "SoftShareNotEnabled"),
        ({"memory": "much"}, "ChipMemoryUnknown"),
    ],
)  # fmt: skip
def test_only_labelled_nodes_share_chips(labels: dict[str, str], reason: str) -> None:
    assert placed(shares("p", 10, GIB), labels=labels).pending[0].nodes == {reason: 1}


def test_whole_chips_of_other_pods_are_not_shared() -> None:
    whole = worlds.pod("w", node="n0", chips=[0], count=1)
    assert bindings(placed(whole, shares("p", 10, GIB)))["p"].chips == ("Ascend910-1",)


def test_whole_chips_are_not_placed_on_a_node_that_offers_shares() -> None:
    pod = worlds.pod("w", count=2, annotations={"huawei.com/schedule_policy": "chip8-node8"})
    (entry,) = placed(pod).pending
    assert entry.nodes == {"SoftShareOnly": 1} and "shares" in entry.message


def test_atlas_350_chips_are_shared_too() -> None:
    labels = {"accelerator": "huawei-npu", "mind-cluster/npu-chip-memory": "112G",
              "huawei.com/scheduler.chip1softsharedev.enable": "true"}  # fmt: skip
    node = worlds.node("n0", chips=2, resource="huawei.com/npu", prefix="npu-", labels=labels,
                       allocatable={"huawei.com/npu": 200})  # fmt: skip
    report = worlds.report("n0", chips=2, resource="huawei.com/npu", prefix="npu-")
    scope = scope_of(observed([node], [report], [shares("p", 25, 100 * GIB, resource="huawei.com/npu")]))
    assert bindings(scope)["p"].annotations["huawei.com/npu"] == "npu-0"


wish = st.tuples(st.integers(1, 100), st.integers(1, 32 * GIB), st.sampled_from([FIXED, ELASTIC, "best-effort"]))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), wish), max_size=3), st.lists(wish, max_size=8))
def test_no_chip_is_shared_beyond_what_it_has_nor_by_two_policies(
    there: list[tuple[int, tuple[int, int, str]]], asked: list[tuple[int, int, str]]
) -> None:
    totals: dict[str, list[tuple[int, int, str]]] = {}
    pods = []
    for index, (chip, one) in enumerate(there):
        rows = totals.setdefault(f"Ascend910-{chip}", [])
        if sound([*rows, one]):
            rows.append(one)
            pods.append(sharing(f"h{index}", "n0", chip, *one))
    pods += [shares(f"p{i}", *one, created=worlds.NOW - 100 + i) for i, one in enumerate(asked)]
    scope = placed(*pods)
    for name, bound in bindings(scope).items():
        totals.setdefault(bound.chips[0], []).append(asked[int(name[1:])])
    assert all(sound(rows) for rows in totals.values())
    left = [asked[int(entry.name[1:])] for entry in scope.pending]
    for one in left:
        assert not any(sound([*totals.get(f"Ascend910-{chip}", []), one]) for chip in (0, 1))


def sound(rows: list[tuple[int, int, str]]) -> bool:
    return sum(r[0] for r in rows) <= 100 and sum(r[1] for r in rows) <= 32 * GIB and len({r[2] for r in rows}) <= 1


def test_shares_are_counted_by_the_hundred() -> None:
    label = shares("x", 90, GIB).labels
    pods, group = gang(3, 90, labels=label, annotations={"huawei.com/schedule_policy": "chip1-softShareDev"})
    (entry,) = placed(sharing("full", "n0", 0, 100, GIB), *pods, objects=[group]).pending
    assert "; require npu num is 270, but cluster npu num is 100; " in entry.message
