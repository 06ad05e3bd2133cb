"""Choice by cost in the plan: the evicted pods, the job that gets scarce room, records and annotations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine import cli
from belay.engine.cli.explanation import explain
from belay.engine.model.actions import BindPod, EvictPod, PatchObject
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.costs import cost
from belay.engine.model.history import History, JobMemory, Recovery
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.status import memory_bodies
from belay.engine.status.recoveries import stages
from tests import listing
from tests.worlds import NOW, desired, fault, node, observed, pod, report

SAVED = "belay.dev/checkpoint-time"
TRAINING = "belay.dev/training-time"
POD_LEVEL = {"fault-scheduling": "force", "pod-rescheduling": "on"}
PROCESS = {"fault-scheduling": "force", "process-recover-enable": "on"}


def gang(
    name: str = "j", nodes: tuple[str, ...] = ("n0", "n1"), age: float | None = 600, strategies: str = "", **more: Any
) -> list[Pod]:
    """An AscendJob with a pod of eight chips on each node (``-`` for one that waits)."""
    notes = {} if age is None else {SAVED: str(NOW - age)}
    notes |= {"recover-strategy": strategies} if strategies else {}
    notes |= more.pop("annotations", {})
    labels = more.pop("labels", POD_LEVEL)
    return [
        pod(
            f"{name}-{i}", node="" if at == "-" else at, chips=() if at == "-" else range(8), count=8,
            uid="" if at != "-" else f"new-{name}-{i}", owner=("AscendJob", name), rank=i, annotations=notes,
            labels=labels | {"replica-type": "worker" if i else "master"}, **more,
        )
        for i, at in enumerate(nodes)
    ]  # fmt: skip


def world(pods: list[Pod], bad: tuple[str, ...] = (), count: int = 4, code: str = "80C98001", **more: Any) -> Observed:
    names = [f"n{i}" for i in range(count)]
    reports = [report(n, faults=[fault(3, code, "SeparateNPU")] if n in bad else ()) for n in names]
    return observed([node(n) for n in names], reports, pods, **more)


def decided(seen: Observed, now: float = NOW) -> Plan:
    made = plan(desired(), seen, now)
    assert made.digest() == plan(desired(), seen, now).digest()
    return made


def evicted(made: Plan) -> list[str]:
    return sorted(a.pod for a in made.actions if isinstance(a, EvictPod))


def bound(made: Plan) -> dict[str, str]:
    return {a.pod: a.node for a in made.actions if isinstance(a, BindPod)}


def memory(made: Plan, name: str = "j") -> JobMemory:
    return made.history.jobs[f"train/AscendJob/{name}"]


def test_a_job_without_reported_times_follows_the_escalation() -> None:
    made = decided(world(gang(age=None), bad=("n1",)))
    assert evicted(made) == ["j-1"]
    (one,) = memory(made).recoveries
    assert (one.level, one.estimates, one.codes) == ("pod", (), ("80C98001",))
    assert not any("estimated" in a.message for a in made.actions)


def test_estimates_and_alternatives_are_recorded_and_shown() -> None:
    made = decided(world(gang(), bad=("n1",)))
    (eviction,) = [a for a in made.actions if isinstance(a, EvictPod)]
    # 30 s for the pod, 60 to start, 120 to load, 600 since the checkpoint, by sixteen chips
    assert "pod recovery is estimated to cost least (810 s, 3.60 chip-hours; instead of job 3.60" in eviction.message
    (one,) = memory(made).recoveries
    assert one.estimates[:2] == (("pod", 810, 12960), ("job", 810, 12960))
    assert (one.chips, one.hit, one.redone, one.back) == (16, 8, 600, 0)


def test_without_room_a_job_shrinks_and_is_not_widened() -> None:
    pods = gang(labels=PROCESS, strategies="recover,elastic-training", age=7200)
    made = decided(world(pods, bad=("n1",), count=2))
    assert evicted(made) == ["j-1"]
    assert memory(made).recoveries[0].level == "shrink"
    waiting = gang(nodes=("n0", "-"), labels=PROCESS | POD_LEVEL, strategies="recover,elastic-training", age=7200,
                   created=NOW - 100)  # fmt: skip
    history = History(jobs={"train/AscendJob/j": memory(made)})
    later = decided(world(waiting, bad=("n1",), count=2, history=history), NOW + 60)
    assert evicted(later) == [], "it goes on small, however long its replacement waits"


def test_with_room_the_same_job_moves_its_processes() -> None:
    pods = gang(labels=PROCESS, strategies="recover,elastic-training", age=7200)
    made = decided(world(pods, bad=("n1",), count=3))
    assert memory(made).recoveries[0].level == "process"


def test_a_job_does_not_shrink_without_rank_zero() -> None:
    pods = gang(labels=PROCESS, strategies="recover,elastic-training", age=7200)
    made = decided(world(pods, bad=("n0",), count=2))
    assert evicted(made) == ["j-0", "j-1"]
    assert memory(made).recoveries[0].level in ("job", "wait")


def test_the_one_spare_goes_to_the_job_that_loses_most_without_it() -> None:
    small = gang("a", ("n0", "n1"), labels=PROCESS, strategies="recover,elastic-training", age=60)
    rigid = gang("b", ("n2", "n3"), age=60)
    seen = world([*small, *rigid], bad=("n1", "n3"), count=5)
    made = decided(seen)
    assert {name: memory(made, name).recoveries[0].level for name in "ab"} == {"a": "shrink", "b": "pod"}
    history = made.history
    after = [*gang("a", ("n0", "-"), labels=PROCESS, strategies="recover,elastic-training", age=60, created=NOW),
             *gang("b", ("n2", "-"), age=60, created=NOW)]  # fmt: skip
    later = decided(world(after, bad=("n1", "n3"), count=5, history=history), NOW + 5)
    assert bound(later) == {"b-1": "n4"}
    (wait,) = [p for p in later.pending if p.name == "a"]
    assert "room for 8 chips is kept for train/AscendJob/b, which loses more" in wait.message
    ending = decided(world(after, bad=("n1", "n3"), count=5, history=history), NOW + 500)
    assert len(bound(ending)) == 1, "nothing is kept for ever"


def test_a_process_fault_is_tried_in_place_for_a_limited_time() -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"namespace": "train", "name": "g", "uid": "u-g"}, "spec": {"minMember": 2},
    }  # fmt: skip
    more = {"scheduling.k8s.io/group-name": "g"}
    pods = gang(labels=PROCESS, strategies="recover,recover-in-place", annotations=more)
    pods[1] = msgspec.structs.replace(pods[1], labels={**pods[1].labels, "fault-type": "software"})
    objects = [group]
    made = decided(world(pods, objects=objects))
    assert evicted(made) == []
    (one,) = memory(made).recoveries
    assert (one.level, one.estimates[0][1]) == ("in-place", 70)
    (told,) = [a for a in made.actions if isinstance(a, PatchObject) and a.reason == "RecoveryChosen"]
    assert told.patch == {"metadata": {"annotations": {"belay.dev/recovery-level": "in-place"}}}
    still = decided(world(pods, objects=objects, history=made.history), NOW + 100)
    assert evicted(still) == []
    over = decided(world(pods, objects=objects, history=made.history), NOW + 300)
    assert evicted(over) == ["j-1"]
    well = gang(labels=PROCESS, strategies="recover,recover-in-place", annotations=more)
    done = decided(world(well, objects=objects, history=made.history), NOW + 50)
    assert memory(done).recoveries[0].back == round((NOW + 50) * 1000)


def test_the_choice_is_withdrawn_once_the_job_is_back() -> None:
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": {"minMember": 2},
        "metadata": {"namespace": "train", "name": "g", "annotations": {"belay.dev/recovery-level": "pod"}},
    }  # fmt: skip
    pods = gang(labels=PROCESS, annotations={"scheduling.k8s.io/group-name": "g"})
    made = decided(world(pods, objects=[group]))
    (told,) = [a for a in made.actions if isinstance(a, PatchObject) and a.reason == "Recovered"]
    assert told.patch == {"metadata": {"annotations": {"belay.dev/recovery-level": None}}}


def opened(level: str = "pod", **more: Any) -> History:
    one = Recovery(at=round((NOW - 100) * 1000), level=level, reason="CardUnhealthy", codes=("80C98001",), chips=16,
                   hit=8, redone=600, **more)  # fmt: skip
    return History(jobs={"train/AscendJob/j": JobMemory(uid="uid-train-j", recoveries=(one,))})


def test_the_cost_of_a_recovery_is_recorded_once_all_pods_run() -> None:
    made = decided(world(gang(), history=opened()))
    after = memory(made)
    (one,) = after.recoveries
    assert (one.back, cost(one)) == (round(NOW * 1000), 16 * 700)
    assert after.spent == {"80C98001": (1, 16 * 700)}
    assert after.timeline[-1][1] == "recovered at level pod: 100 s, 3.11 chip-hours lost"
    assert memory(decided(world(gang(), history=made.history), NOW + 9)) == after, "a recovery ends once"


def test_a_job_that_shrank_lost_only_its_missing_part() -> None:
    one = memory(decided(world(gang(), history=opened("shrink", estimates=(("shrink", 45, 1),))))).recoveries[0]
    assert cost(one) == 8 * 100 + 16 * 600


@pytest.mark.parametrize(("told", "back"), [(NOW - 120, 0), (NOW - 40, round((NOW - 40) * 1000))])
def test_the_processes_report_ends_a_recovery(told: float, back: int) -> None:
    made = decided(world(gang(annotations={TRAINING: str(told)}), history=opened()))
    assert memory(made).recoveries[0].back == back


def test_the_time_from_which_all_pods_run_is_recorded_before_training_resumes() -> None:
    waits = decided(world(replaced(annotations={TRAINING: str(NOW - 120)}), history=opened()))
    one = memory(waits).recoveries[0]
    assert (one.placed, one.running, one.back) == (ms(-30), ms(0), 0)
    goes_on = world(replaced(annotations={TRAINING: str(NOW + 20)}), history=waits.history)
    one = memory(decided(goes_on, NOW + 25)).recoveries[0]
    assert (one.placed, one.running, one.back) == (ms(-30), ms(0), ms(20))
    assert [row["stage"] for row in stages(one)] == ["evicted", "bound", "running", "resumed"]


def test_pods_run_no_later_than_their_processes_report() -> None:
    one = memory(decided(world(replaced(annotations={TRAINING: str(NOW - 10)}), history=opened()))).recoveries[0]
    assert (one.placed, one.running, one.back) == (ms(-30), ms(-10), ms(-10))


def ms(seconds: float) -> int:
    return round((NOW + seconds) * 1000)


def replaced(**more: Any) -> list[Pod]:
    """Both pods of the job, made for the open recovery and accepted 30 s ago."""
    return [msgspec.structs.replace(pod, created=NOW - 60, started=NOW - 30) for pod in gang(**more)]


def test_a_recovery_goes_on_while_a_pod_is_missing() -> None:
    assert memory(decided(world(gang(nodes=("n0", "-")), history=opened(), count=1))).recoveries[0].back == 0


def test_status_and_explain_show_the_recovery() -> None:
    seen = world(gang(), history=opened(estimates=(("pod", 810, 12960), ("wait", 4000, 64000))))
    made = decided(seen)
    (body,) = [b for b in memory_bodies(made, seen) if b["metadata"]["name"] == "belay-job-train.ascendjob.j"]
    status = json.loads(body["data"]["status.json"])
    assert status["recoveries"] == [{
        "time": "2026-09-01T07:58:20Z", "reason": "CardUnhealthy", "codes": ["80C98001"], "level": "pod", "by": "cost",
        "chips": 16, "estimate": {"seconds": 810, "chipSeconds": 12960},
        "alternatives": [{"level": "wait", "seconds": 4000, "chipSeconds": 64000}],
        "actual": {"seconds": 100, "chipSeconds": 11200},
        "lost": {"chipSeconds": 11200, "chips": 16, "hitChips": 8, "redoneSeconds": 600},
        "stages": [
            {"stage": "evicted", "time": "2026-09-01T07:58:20Z"}, {"stage": "resumed", "time": "2026-09-01T08:00:00Z"},
        ],
    }]  # fmt: skip
    assert status["lost"] == {"80C98001": {"times": 1, "chipSeconds": 11200}}
    told = explain("job", "j", made, seen)
    assert told["story"] == [
        "2026-09-01T07:58:20Z CardUnhealthy 80C98001: pod recovery, chosen by cost, estimated 13 min 30 s, "
        "3.60 chip-hours instead of wait 17.78 chip-hours; took 1 min 40 s, 3.11 chip-hours, "
        "10 min 0 s of work done again"
    ]
    assert told["effectiveTraining"] == round(1 - 11200 / (16 * 3600), 4)


def test_offline_plan_and_explain(tmp_path: Path) -> None:
    notes = {SAVED: str(NOW - 300), "hccl/rankIndex": "1", "volcano.sh/task-spec": "worker"}
    first = {**notes, "hccl/rankIndex": "0"}
    labels = dict(POD_LEVEL)
    owner = [{"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "name": "j", "uid": "u-j", "controller": True}]
    pods = [
        listing.pod("j-0", on="n0", chips=range(8), notes=first, labels=labels),
        listing.pod("j-1", on="n1", chips=range(8), notes=notes, labels=labels),
    ]
    for one in pods:
        one["metadata"]["ownerReferences"] = owner
    items = [
        *(listing.node(f"n{i}") for i in range(3)), listing.report("n0", busy=range(8)),
        listing.report("n1", busy=range(8), unhealthy=(3,)), listing.report("n2"), *pods,
    ]  # fmt: skip
    body = listing.plan(items, tmp_path).body
    (eviction,) = [a for a in body["actions"] if a["kind"] == "EvictPod"]
    assert eviction["pod"] == "j-1"
    assert "pod recovery is estimated to cost least (510 s" in eviction["message"]
    arguments = [
        "explain",
        "job",
        "j",
        "--cluster",
        str(tmp_path / "cluster.json"),
        "--now",
        listing.NOW_TEXT,
        "-o",
        "json",
    ]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["recoveries"][0]["estimate"] == {"seconds": 510, "chipSeconds": 8160}
    assert told["story"][0].endswith("is under way")


AGES = st.one_of(st.none(), st.integers(1, 100_000))
KINDS = st.sampled_from([POD_LEVEL, PROCESS, {"fault-scheduling": "force"}, {"fault-scheduling": "grace"}])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(KINDS, AGES, st.booleans()), min_size=1, max_size=3), st.integers(0, 2))
def test_every_choice_evicts_faulty_pods_and_spares_healthy_jobs(
    jobs: list[tuple[dict[str, str], int | None, bool]], spares: int
) -> None:
    pods, bad = [], []
    for i, (labels, age, hit) in enumerate(jobs):
        nodes = (f"n{2 * i}", f"n{2 * i + 1}")
        pods += gang(f"j{i}", nodes, age, strategies="recover,elastic-training", labels=labels)
        bad += [nodes[1]] if hit else []
    made = decided(world(pods, bad=tuple(bad), count=2 * len(jobs) + spares))
    gone = set(evicted(made)) | {d.action.pod for d in made.deferred if isinstance(d.action, EvictPod)}
    for i, (labels, _, hit) in enumerate(jobs):
        mine = {pod for pod in gone if pod.startswith(f"j{i}-")}
        assert (f"j{i}-1" in mine) == hit, "a pod on a chip that its policy excludes must go"
        assert mine <= ({f"j{i}-0", f"j{i}-1"} if hit else set())
        if hit and "pod-rescheduling" not in labels and "process-recover-enable" not in labels:
            assert len(mine) == 2, "a job that did not ask for less goes whole"
