"""Which faults hit which ranks of a job, and what that makes of the job."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.engine.cli.explanation import explain
from belay.engine.model.attribution import FaultRank
from belay.engine.model.cluster import ChipFault, Departure, Observed, Pod
from belay.engine.model.history import History, JobMemory, RescheduleRecord
from belay.engine.model.labels import CORDONED_ANNOTATION
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.plan import plan as decided
from belay.engine.status import memory_bodies
from belay.engine.status.jobs import impact, impact_body
from belay.engine.status.rescheduling import reschedule_reasons
from tests import worlds
from tests.worlds import NOW, fault, node, node_report, observed, pod, report, switch

JOB = [
    pod("j-0", node="n0", chips=[4, 5], owner=("AscendJob", "j"), rank=0),
    pod("j-1", node="n1", chips=[0, 1], owner=("AscendJob", "j"), rank=1),
]


def world(*faults: ChipFault, pods: list[Pod] = JOB, **more: object) -> Observed:
    seen = observed([node("n0"), node("n1")], [report("n0"), report("n1", faults=faults)], pods)
    return msgspec.structs.replace(seen, **more)


def records(seen: Observed) -> list[tuple[int, str, str]]:
    return [(r.rank, r.code, r.level) for r in impact(list(seen.pods.values()), seen)[1]]


@pytest.mark.parametrize(
    ("level", "state"),
    [
        ("NotHandleFault", "Healthy"), ("PreSeparateNPU", "Healthy"), ("SubHealthFault", "SubHealthy"),
        ("RestartRequest", "UnHealthy"), ("RestartBusiness", "UnHealthy"), ("FreeRestartNPU", "UnHealthy"),
        ("RestartNPU", "UnHealthy"), ("SeparateNPU", "UnHealthy"), ("ManuallySeparateNPU", "UnHealthy"),
    ],
)  # fmt: skip
def test_the_state_of_a_job_follows_its_worst_rank(level: str, state: str) -> None:
    seen = world(fault(1, "80C98001", level))
    assert impact(JOB, seen) == (
        state,
        (FaultRank(3, "train/j-1", "n1", "Ascend910-1", "80C98001", level, int((NOW - 600) * 1000)),),
    )


def test_each_code_of_a_device_is_a_record_and_other_chips_are_skipped() -> None:
    seen = world(fault(0, "AA", "RestartNPU"), fault(0, "BB", "SubHealthFault"), fault(7, "CC", "SeparateNPU"))
    assert records(seen) == [(2, "AA", "RestartNPU"), (2, "BB", "SubHealthFault")]


def test_a_free_restart_that_no_list_names_is_left_out() -> None:
    seen = world(fault(0, "AA", "FreeRestartNPU"))
    assert records(seen) == [(2, "AA", "FreeRestartNPU")]
    reports = {**seen.reports, "n1": msgspec.structs.replace(seen.reports["n1"], unhealthy=0)}
    assert impact(JOB, msgspec.structs.replace(seen, reports=reports)) == ("Healthy", ())


def test_a_node_fault_hits_every_rank_on_the_node() -> None:
    broken = node_report("n1", codes=("0B", "0A", "0A"))
    assert records(world(node_reports={"n1": broken})) == [(2, "0A,0B", "SeparateNPU"), (3, "0A,0B", "SeparateNPU")]
    assert records(world(node_reports={"n1": node_report("n1", "PreSeparateFault")})) == []
    lost = {"n0": node("n0"), "n1": node("n1", ready=False)}
    assert records(world(nodes=lost)) == [(2, "", "SeparateNPU"), (3, "", "SeparateNPU")]
    assert records(world(nodes={"n0": node("n0")})) == [(2, "", "SeparateNPU"), (3, "", "SeparateNPU")]


@pytest.mark.parametrize(
    ("level", "told", "state"),
    [("Separate", "SeparateNPU", "UnHealthy"), ("SubHealthFault", "SubHealthFault", "SubHealthy")],
)
def test_a_switch_hits_every_rank_on_its_node(level: str, told: str, state: str) -> None:
    seen = world()
    sick = report("n0", switch=switch(level, codes=("[0x1,na,cpu,na]", "[0x2,na,L2,na]")))
    seen = msgspec.structs.replace(seen, reports={**seen.reports, "n0": sick})
    both = "[0x1,na,cpu,na],[0x2,na,L2,na]"
    assert records(seen) == [(0, both, told), (1, both, told)]
    assert impact(JOB, seen)[0] == state


@pytest.mark.parametrize(("label", "state"), [("Separate", "UnHealthy"), ("SubHealth", "SubHealthy"), ("", "Healthy")])
def test_a_relation_fault_counts_by_its_label(label: str, state: str) -> None:
    pods = [msgspec.structs.replace(JOB[0], labels={"fault-type": label}), JOB[1]]
    assert impact(pods, world(pods=pods)) == (state, ())


@pytest.mark.parametrize(("seconds", "told"), [(2**70, "9999-12-31T23:59:59Z"), (-(2**70), "1000-01-01T00:00:00Z")])
def test_a_fault_time_beyond_the_calendar_is_clamped(seconds: int, told: str) -> None:
    assert rfc3339(seconds) == told
    body = impact_body(("UnHealthy", (FaultRank(0, "p", "n", "c", "80C98001", "RestartNPU", seconds * 1000),)))
    assert body["impact"]["faults"][0]["since"] == told
    story = History(jobs={"train/AscendJob/j": JobMemory(uid="u", records=(RescheduleRecord(seconds * 1000, ()),))})
    text = reschedule_reasons(Plan(revision="r", now=NOW, history=story))["data"]["recent-reschedule-records"]
    assert json.loads(text)["train/j-u"]["RescheduleRecords"][0]["LogFileFormatTime"][:5] == f"I{told[5:7]}{told[8:10]}"


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("scheduler", "ours", "why"),
    [
        ("volcano", (), False),
        ("default-scheduler", (), True),
        ("kueue", (), True),
        ("kueue", ("kueue",), False),
    ],
)
def test_why_pods_of_another_scheduler_stay_on_faulty_chips(
    scheduler: str, ours: tuple[str, ...], why: bool, told: bool
) -> None:
    """Also where they do not name their chips."""
    settings = worlds.document("SchedulingSettings", "s", schedulerNames=list(ours))
    wanted = worlds.desired(settings) if ours else worlds.desired()
    own = worlds.pod("j-0", node="n0", chips=range(8) if told else (), count=8, owner=("AscendJob", "j"),
                     labels={"fault-scheduling": "force"}, scheduler=scheduler)  # fmt: skip
    bad = worlds.report("n0", faults=[worlds.fault(1, "80C98001", "SeparateNPU")])
    seen = worlds.observed([worlds.node("n0")], [bad], [own])
    made = decided(wanted, seen, NOW)
    body = explain("job", "train/j", made, seen, wanted)
    assert ("notEvicted" in body) == why
    if why:
        assert not [row for row in body["next"] if row["action"] == "EvictPod"]
        assert body["notEvicted"] == (
            f"pods on faulty or drained hardware of n0 have schedulerName {scheduler} (default-scheduler where none is "
            "set); Belay moves only pods of belay, volcano (SchedulingSettings.spec.schedulerNames): "
            "set one of these in the pod template, or have their own scheduler move them"
        )
    elif told:
        assert [row for row in body["next"] if row["action"] == "EvictPod"]


@pytest.mark.parametrize("value", ["", "off", "grace"])
def test_a_job_whose_labels_leave_it_on_faulty_chips_is_explained(value: str) -> None:
    labels = {"fault-scheduling": value} if value else {}
    own = worlds.pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j"), labels=labels)
    bad = worlds.report("n0", faults=[worlds.fault(1, "80C98001", "SeparateNPU")])
    seen = worlds.observed([worlds.node("n0")], [bad], [own])
    body = explain("job", "train/j", decided(worlds.desired(), seen, NOW), seen, worlds.desired())
    if value == "grace":
        assert "notEvicted" not in body and [row for row in body["next"] if row["action"] == "EvictPod"]
        return
    has = "has the label fault-scheduling: off" if value else "has no label fault-scheduling"
    assert body["notEvicted"] == (
        f"its pods on n0 stay: the job {has}, so it is not moved: add fault-scheduling: grace to the labels of the "
        "job, of a Deployment to those of its pod template"
    )
    pod = explain("pod", "train/j-0", decided(worlds.desired(), seen, NOW), seen, worlds.desired())
    assert pod["notEvicted"] == body["notEvicted"].replace("its pods on n0 stay", "it stays on n0")
    for one in (body, pod):
        assert "nothing is due" not in one["coming"][0] and "see why it is not moved" in one["coming"][0]


def test_a_pod_on_a_cordoned_node_says_that_it_stays_until_it_ends() -> None:
    own = worlds.pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j"))
    seen = worlds.observed([worlds.node("n0", unschedulable=True)], [worlds.report("n0")], [own])
    body = explain("pod", "train/j-0", decided(worlds.desired(), seen, NOW), seen, worlds.desired())
    assert body["coming"] == ["it runs until it ends: n0 is cordoned, which moves no pod and keeps new ones away"]
    assert "notEvicted" not in body


WORK = "its condition DrainInProgress is true"
REMOVED = Departure("the autoscaler removes it", now=True, waits=True)
THOUGHT_OF = Departure("Karpenter means to remove it", now=False)
MOVES = "it moves with its job within the budgets: n0 is "


@pytest.mark.parametrize(
    ("label", "scheduler", "more", "says"),
    [
        ("grace", "volcano", {}, f"{MOVES}in maintenance by Isolation/optics (dust"),
        ("", "volcano", {}, "it stays on hardware that is faulty or drained until it ends: see why it is not moved"),
        ("grace", "kueue", {}, "it stays on hardware that is faulty or drained until it ends: see why it is not moved"),
        ("grace", "volcano", {"maintenance": "DrainInProgress"}, f"{MOVES}in maintenance while {WORK}"),
        ("", "volcano", {"maintenance": "DrainInProgress"},
         f"it runs until it ends, and Belay does not move it: n0 is in maintenance while {WORK}"),
        ("grace", "volcano", {"departure": REMOVED}, f"{MOVES}about to be removed: the autoscaler removes it"),
        ("grace", "volcano", {"departure": THOUGHT_OF},
         "it runs until others begin to evict it: n0 is about to be removed: Karpenter means to remove it"),
    ],
)  # fmt: skip
def test_a_pod_on_a_node_that_is_emptied_says_whether_it_moves(
    label: str, scheduler: str, more: dict[str, Any], says: str
) -> None:
    """Belay cordons the node of an Isolation itself, and no cordon keeps such a pod."""
    isolation = worlds.document("Isolation", "optics", nodes=["n0"], reason="dust")
    wanted = worlds.desired() if more else worlds.desired(isolation)
    own = worlds.pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j"), scheduler=scheduler,
                     labels={"fault-scheduling": label} if label else {})  # fmt: skip
    closed = worlds.node("n0", unschedulable=True, annotations={CORDONED_ANNOTATION: "x"})
    seen = worlds.observed([msgspec.structs.replace(closed, **more)], [worlds.report("n0")], [own])
    body = explain("pod", "train/j-0", decided(wanted, seen, NOW), seen, wanted)
    (said,) = body["coming"]
    assert said.startswith(says), said


def test_a_pod_of_a_suspended_pool_is_not_said_to_move() -> None:
    selector = {"matchLabels": {"kubernetes.io/hostname": "n0"}}
    pool = worlds.document("NodePool", "old", product="atlas-800t-a2", suspend=True, selector=selector)
    wanted = worlds.desired(pool, worlds.document("Isolation", "optics", nodes=["n0"], reason="dust"))
    own = worlds.pod("j-0", node="n0", chips=range(8), owner=("AscendJob", "j"), labels={"fault-scheduling": "grace"})
    seen = worlds.observed([worlds.node("n0")], [worlds.report("n0")], [own])
    body = explain("pod", "train/j-0", decided(wanted, seen, NOW), seen, wanted)
    assert body["next"] == []
    assert body["coming"][0].startswith("it runs until it ends, and Belay does not move it: n0 is in maintenance by ")


def test_status_and_explain_of_a_job_show_the_impact() -> None:
    seen = world(fault(1, "80C98001", "RestartNPU"))
    plan = Plan(revision="r", now=NOW)
    (body,) = [b for b in memory_bodies(plan, seen) if b["metadata"]["name"] == "belay-job-train.ascendjob.j"]
    told = json.loads(body["data"]["status.json"])["impact"]
    assert told == {
        "state": "UnHealthy",
        "faults": [
            {
                "rank": 3, "pod": "train/j-1", "node": "n1", "chip": "Ascend910-1", "code": "80C98001",
                "level": "RestartNPU", "since": "2026-09-01T07:50:00Z",
            }
        ],
    }  # fmt: skip
    assert explain("job", "train/j", plan, seen)["impact"] == told
    (body,) = [b for b in memory_bodies(plan, world()) if b["metadata"]["name"] == "belay-job-train.ascendjob.j"]
    assert "impact" not in json.loads(body["data"]["status.json"])
