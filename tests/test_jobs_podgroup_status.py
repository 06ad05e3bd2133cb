"""The status of PodGroups while Belay schedules, as `belay plan` plans it from a file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from belay.engine.model.pending_reasons import QUEUE_EXHAUSTED
from belay.engine.model.plan import Pending
from belay.engine.plan.jobs.podgroup_status import PodGroupCounts, phase
from tests import listing, worlds
from tests.jobs import merge

WAITS = Pending("PodGroup", "train", "j", (), "NPUResourceShortage", "no chips", {}, None)
FULL = Pending("PodGroup", "train", "j", (), QUEUE_EXHAUSTED, "no quota", {}, None)


@pytest.mark.parametrize(
    ("old", "numbers", "least", "pending", "wanted"),
    [
        ("", PodGroupCounts(0, 0, 0, 0, 0), 2, None, "Inqueue"),
        ("Pending", PodGroupCounts(0, 0, 0, 0, 2), 2, WAITS, "Inqueue"),
        ("", PodGroupCounts(0, 0, 0, 0, 2), 2, FULL, "Pending"),
        ("Inqueue", PodGroupCounts(1, 0, 0, 2, 0), 2, None, "Running"),
        ("Running", PodGroupCounts(2, 0, 0, 2, 1), 2, WAITS, "Running"),
        ("Running", PodGroupCounts(1, 0, 0, 1, 1), 2, WAITS, "Unknown"),
        ("Running", PodGroupCounts(1, 1, 0, 2, 0), 2, None, "Running"),
        ("Running", PodGroupCounts(0, 2, 0, 2, 0), 2, None, "Completed"),
        ("Completed", PodGroupCounts(0, 0, 0, 0, 0), 2, None, "Completed"),
        ("Running", PodGroupCounts(0, 0, 2, 0, 0), 2, None, "Inqueue"),
    ],
)
def test_phases(old: str, numbers: PodGroupCounts, least: int, pending: Pending | None, wanted: str) -> None:
    assert phase(old, numbers, least, pending) == wanted


def patches(items: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    body = listing.plan(items, folder).body
    return [a for a in body["actions"] if a["kind"] == "PatchObject" and a["objectKind"] == "PodGroup"]


def test_a_waiting_group_gets_its_reason_once(tmp_path: Path) -> None:
    items = [listing.node("n1"), listing.report("n1"), *listing.job("big", 2, 8)]
    (found,) = patches(items, tmp_path)
    assert found["reason"] == "PodGroupInqueue"
    condition, step = found["patch"]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Unschedulable", "True", "NotEnoughResources",
    )  # fmt: skip
    assert condition["message"].startswith("2/2 tasks in gang unschedulable: ")
    assert (step["type"], step["status"], step["reason"]) == ("Unschedulable", "True", "JobEnqueueFailed")
    assert step["message"] == "require npu num is 16, but cluster npu num is 8"
    after = copy.deepcopy(items)
    after[2] = merge(after[2], found["patch"])
    assert patches(after, tmp_path) == []


RING = {"accelerator-type": "module"}
STUCK: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "a request that no server of the kind serves": (
        [listing.node("n1"), listing.report("n1"), *listing.job("j", 1, 3, policy="chip4-node4")],
        "JobValidateFailed", "InvalidResourceRequest: expected: job<j> req npu num should small than 4",
    ),
    "a kind of chip without a handler": (
        [listing.node("n1"), listing.report("n1"), listing.pod("j-0", count=8, group="j"),
         listing.group("j", 1, 0, notes={"volcano.sh/schedule.plugin": "Ascend999"})],
        "JobValidateFailed", "NotSupportPolicy: no policy handler registered, NPU type may be invalid",
    ),
    "a pod too few": (
        [listing.node("n1"), listing.report("n1"), *listing.job("j", 2, 4)[:2]],
        "JobValidateFailed", "NotEnoughPod: the pods of job is not enough, req: 2, actual: 1",
    ),
    "free chips in the wrong places": (
        [listing.node("n1", labels=RING), listing.report("n1", busy=(0, 1, 4, 5)),
         listing.pod("a", on="n1", chips=(0, 1)), listing.pod("b", on="n1", chips=(4, 5)), *listing.job("j", 1, 4)],
        "NodePredicateFailed", "0/1 nodes are available: 1 npu topology not meet job require",
    ),
    "free nodes in the wrong places": (
        [*(listing.node(f"n{i}", chips=16) for i in range(2)),
         *(listing.report(f"n{i}", chips=16, super_pod=i) for i in range(2)),
         *listing.job("j", 2, 16, policy="chip2-node16-sp", notes={"sp-block": "32"})],
        "BatchOrderFailed", "node top: super-pod-id: 0, node count: 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STUCK)
def test_a_group_names_the_step_at_which_it_is_stuck(case: str, tmp_path: Path) -> None:
    items, reason, words = STUCK[case]
    (found,) = patches(items, tmp_path)
    first, step = found["patch"]["status"]["conditions"]
    assert (first["reason"], step["reason"]) == ("NotEnoughResources", reason)
    assert words in step["message"] and (step["type"], step["status"]) == ("Unschedulable", "True")
    index = next(i for i, item in enumerate(items) if item["kind"] == "PodGroup")
    assert patches([*items[:index], merge(items[index], found["patch"]), *items[index + 1 :]], tmp_path) == []


def test_a_few_free_chips_more_or_less_do_not_write_to_every_group(tmp_path: Path) -> None:
    items = [listing.node("n1"), listing.report("n1"), *listing.job("j", 1, 8)]
    held = [listing.pod(f"r{i}", on="n1", chips=[i]) for i in range(2)]
    (found,) = patches([*items, *held], tmp_path)
    assert found["patch"]["status"]["conditions"][1]["reason"] == "JobEnqueueFailed"
    items[2] = merge(items[2], found["patch"])
    more = [listing.node("n2"), listing.report("n2"), listing.pod("r3", on="n2", chips=[0])]
    assert patches([*items, *held, *more], tmp_path) == []


def test_a_closed_queue_is_no_step_of_the_plugin(tmp_path: Path) -> None:
    closed = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"},
              "status": {"state": "Closed"}}  # fmt: skip
    (found,) = patches([listing.node("n1"), listing.report("n1"), *listing.job("j", 1, 8), closed], tmp_path)
    assert [row["reason"] for row in found["patch"]["status"]["conditions"]] == ["NotEnoughResources"]


def test_a_group_whose_pods_run_is_running_and_then_left_alone(tmp_path: Path) -> None:
    items = [
        listing.node("n1"), listing.report("n1", busy=range(8)), listing.group("j", 1, 8),
        listing.pod("j-0", on="n1", chips=range(8), group="j"),
    ]  # fmt: skip
    (found,) = patches(items, tmp_path)
    status = found["patch"]["status"]
    assert (status["phase"], status["running"]) == ("Running", 1)
    (condition,) = status["conditions"]
    assert condition["type"] == "Scheduled"
    assert "message" not in condition, "kube-apiserver 1.20 refuses an empty one as null"
    items[2] = merge(items[2], found["patch"])
    assert patches(items, tmp_path) == []


def test_a_group_without_pods_is_enqueued_so_that_an_operator_creates_them(tmp_path: Path) -> None:
    (found,) = patches([listing.node("n1"), listing.report("n1"), listing.group("j", 2, 8)], tmp_path)
    assert found["patch"] == {"status": {"phase": "Inqueue"}}
    assert found["preconditions"] == {"patchType": "merge", "uid": "u-j"}


def test_groups_of_other_schedulers_are_left_alone(tmp_path: Path) -> None:
    other = listing.pod("j-0", count=8, group="j", spec={"schedulerName": "someone-else"})
    assert patches([listing.node("n1"), listing.report("n1"), listing.group("j", 1, 8), other], tmp_path) == []


def _turns(notes: dict[str, str], folder: Path, *, rival: str = "default") -> tuple[str, dict[str, Any]]:
    """The phase that a waiting group gets, and its changed annotations, beside another job that waits in a queue."""
    busy = listing.pod("busy", on="n1", chips=range(8))
    items = [listing.node("n1"), listing.report("n1"), busy, *listing.job("a", 1, 8, notes=notes)]
    items[3]["status"] = {"phase": "Inqueue"}
    other = listing.job("b", 1, 8)
    other[0]["spec"]["queue"] = rival
    queues = [
        {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": {}}
        for name in ("default", "elsewhere")
    ]
    found = [row for row in patches([*items, *other, *queues], folder) if row["name"] == "a"]
    phases = [row["patch"]["status"].get("phase", "Inqueue") for row in found if "status" in row["patch"]]
    marks = [row["patch"]["metadata"]["annotations"] for row in found if "metadata" in row["patch"]]
    return phases[0], marks[0] if marks else {}


SINCE, TURNS = "huawei.com/schedule_enqueue_time", "huawei.com/schedule_dequeue_frequency"
NOW_MS = int(worlds.NOW * 1000)


@pytest.mark.parametrize(
    ("notes", "phase", "marks"),
    [
        ({}, "Inqueue", {SINCE: str(NOW_MS)}),
        ({SINCE: "soon"}, "Inqueue", {SINCE: str(NOW_MS)}),
        ({SINCE: str(NOW_MS - 300_000)}, "Inqueue", {}),
        ({SINCE: str(NOW_MS - 300_001)}, "Pending", {SINCE: None, TURNS: "1"}),
        ({SINCE: str(NOW_MS - 300_001), TURNS: "2"}, "Pending", {SINCE: None, TURNS: "3"}),
        ({SINCE: str(NOW_MS - 300_001), TURNS: "many"}, "Pending", {SINCE: None, TURNS: "1"}),
    ],
)
def test_a_job_that_finds_no_room_gives_up_its_turn(
    notes: dict[str, str], phase: str, marks: dict[str, Any], tmp_path: Path
) -> None:
    on = {"huawei.com/schedule_enable_dequeue": "on"}
    assert _turns(notes | on, tmp_path) == (phase, marks)
    assert _turns(notes | on, tmp_path, rival="elsewhere")[0] == "Inqueue", "no other job waits there"
    assert _turns(notes, tmp_path) == ("Inqueue", {}), "only where the job allows it"


def test_others_go_first_until_the_job_runs_and_its_waiting_annotations_end(tmp_path: Path) -> None:
    notes = {"huawei.com/schedule_enable_dequeue": "on", SINCE: str(NOW_MS - 9), TURNS: "1"}
    node = [listing.node("n1"), listing.report("n1")]
    a, b = listing.job("a", 1, 8, notes=notes), listing.job("b", 1, 8)
    assert listing.plan([*node, *a, *b], tmp_path).nodes == {"b-0": "n1"}
    running = listing.pod("a-0", on="n1", chips=range(8), group="a")
    found = patches([*node, a[0], running], tmp_path)
    assert found[0]["patch"]["status"]["phase"] == "Running"
    assert found[1]["patch"] == {"metadata": {"annotations": {SINCE: None, TURNS: None}}}
    assert patches([*node, merge(merge(a[0], found[0]["patch"]), found[1]["patch"]), running], tmp_path) == []
