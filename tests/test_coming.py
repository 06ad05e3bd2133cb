"""What `belay explain` says comes next: never nothing while something runs, waits or is held; and figures so far."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from belay.engine.cli import answers, coming, records
from belay.engine.cli.explanation import explain
from belay.engine.cli.narrative import narrate
from belay.engine.documents import Desired
from belay.engine.model.causes import Cause, CauseKind
from belay.engine.model.cluster import AgentChip, AgentReport, AgentVNPU, Container, Observed, Orders, ResetOrder
from belay.engine.model.history import History, Hold, HoldKind, JobMemory, Recovery
from belay.engine.model.holds import Held
from belay.engine.model.plan import ChipState, Plan, ServerChips
from belay.engine.model.states import ChipHealth
from belay.engine.serve.console import jobs as console_jobs
from belay.engine.status.recoveries import effective, recovery_body
from belay.engine.wire import orders as wire
from belay.engine.wire import revisionlog
from belay.engine.wire.objects import pod as parse_pod
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from tests.golden.stories import sample_files, sample_world
from tests.golden.test_maintenance import isolated, started

NOW = 1_788_249_600.0
GROUP = (2, 3)


def agent(*, idle: float | None = NOW - 10, seen: int = 5, processes: int = 0, **more: Any) -> AgentReport:
    since = None if idle is None else int(idle * 1000)
    chips = {n: AgentChip("s", processes, since, 0, "") for n in GROUP}
    return AgentReport("n1", "b", 1, int(NOW * 1000), seen, chips, 0, "", (), (), **more)


def ordered(**more: Any) -> Orders:
    resets = {n: ResetOrder(4, GROUP, "fault", 0) for n in GROUP}
    given: dict[str, Any] = {
        "node": "n1", "resource_version": "1", "generation": 5, "revision": "r", "policy_digest": "", "issued_ms": 0,
        "not_after_ms": int((NOW + 900) * 1000), "isolate": {}, "resets": resets, "vnpu_epoch": 0, "vnpu_layout": {},
    }  # fmt: skip
    return Orders(**given | more)


def chip_says(state: ChipHealth, *holds: Hold, used: str | None = None, **observed: Any) -> str:
    plan = Plan(revision="r", now=NOW, servers={"n1": ServerChips("Ascend910-", 0xFF, True)})
    row = ChipState("n1", "Ascend910-3", state, "RestartNPU", ("80C98001",), (), used)
    held = [Held.of("n1", row.chip, hold, None) for hold in holds]
    return "\n".join(coming.of_chip("n1", 3, row, held, plan, Observed(**observed)))


def test_a_reset_says_for_what_it_waits_and_when_it_begins() -> None:
    def waits(report: AgentReport | None) -> str:
        agents = {} if report is None else {"n1": report}
        return chip_says(ChipHealth.RESETTING, orders={"n1": ordered()}, agents=agents)

    assert waits(agent()) == (
        "waits until Ascend910-2,3 have been idle for 60 s, then resets them, about 2026-09-01T08:00:50Z (epoch 4)"
    )
    assert "idle for 3 s" in waits(agent(idle=NOW - 1, idle_wait=3.0))
    assert "has run since about 2026-09-01T07:59:50Z" in waits(agent(idle=NOW - 70))
    assert "waits until no process uses them" in waits(agent(idle=None, processes=2))
    assert "waits for the node's agent to read the order" in waits(agent(seen=4))
    assert "given up at 2026-09-01T08:15:00Z" in waits(None)


def test_the_idle_time_of_an_agent_is_in_its_report() -> None:
    for report in (agent(), agent(idle_wait=3.0)):
        assert wire.parse_report(wire.build_report(report, "Ascend910-", {})).idle_wait == report.idle_wait
    assert "idleWait" not in str(wire.build_report(agent(), "Ascend910-", {})), "the usual time is left out"


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (Hold("frequency", "ManuallySeparateNPU", 1, 0, "FaultPolicy/strikes"),
         "held (frequency) by FaultPolicy/strikes: a person ends it: delete the chip from key n1 of ConfigMap"
         " belay-system/belay-manual"),
        (Hold("manual", "ManuallySeparateNPU", 1, int((NOW + 60) * 1000), "Isolation/x"),
         "held (manual) by Isolation/x until 2026-09-01T08:01:00Z; it ends when Isolation/x is deleted from Git"),
    ],
)  # fmt: skip
def test_a_hold_says_until_when_who_ends_it_and_how(hold: Hold, words: str) -> None:
    assert chip_says(ChipHealth.MANUALLY_ISOLATED, hold) == words


@pytest.mark.parametrize("kind", HoldKind)
@pytest.mark.parametrize("until", [0, int(NOW * 1000) + 1])
def test_every_hold_has_its_end(kind: HoldKind, until: int) -> None:
    said = chip_says(ChipHealth.ISOLATED, Hold(kind.value, "SeparateNPU", 1, until, "a"))
    assert said.startswith(f"held ({kind.value}) by a") and ("ends" in said or "again" in said)


@pytest.mark.parametrize("state", ChipHealth)
@pytest.mark.parametrize("used", [None, "train/job-0"])
def test_no_state_of_a_chip_is_without_a_word(state: ChipHealth, used: str | None) -> None:
    assert chip_says(state, used=used)


def said_of(kind: str, name: str, plan: Plan, observed: Observed, desired: Desired | None = None) -> str:
    out = io.StringIO()
    narrate(kind, explain(kind, name, plan, observed, desired), out, None)
    return out.getvalue()


def test_the_list_of_chips_says_by_what_each_is_held() -> None:
    """The state of both is ``manually-isolated``; a person held one of them only."""
    world, _, _ = started()
    plan, observed = world.plan(), world.observer.observed()
    assert "heldBy" not in answers.chips(plan, observed).columns
    policy = Cause(
        kind=CauseKind.DOCUMENT, subject="FaultPolicy/strict", rule="frequency[0]", detail="80C98001",
        file="policies/faults.yaml", line=4, commit="a" * 40, author="Ada <ada@example.org>",
    )  # fmt: skip
    by_rule = Hold(
        HoldKind.FREQUENCY, "ManuallySeparateNPU", 1, 0, "80C98001", policy="FaultPolicy/strict#frequency[0]"
    )
    by_person = Hold(HoldKind.MANUAL, "ManuallySeparateNPU", 1, 0, "Isolation/optics")
    holds = (Held.of("node-1", "Ascend910-3", by_rule, policy), Held.of("node-1", "Ascend910-4", by_person, None))
    found = answers.chips(msgspec.structs.replace(plan, holds=holds), observed)
    held = {row["chip"]: row["heldBy"] for row in found.rows if row["heldBy"]}
    assert "heldBy" in found.columns and list(held) == ["Ascend910-3", "Ascend910-4"]
    assert held["Ascend910-3"][0].startswith(
        "held (frequency) by 80C98001 of FaultPolicy/strict#frequency[0] "
        "(policies/faults.yaml:4@aaaaaaaaaaaa by Ada <ada@example.org>): "
    )
    assert held["Ascend910-4"] == [
        "held (manual) by Isolation/optics: it ends when Isolation/optics is deleted from Git"
    ]


def test_a_failed_pod_says_its_exit_code_its_logs_and_the_way_out() -> None:
    world, _, _ = started()
    pod = world.observer.observed().pods["default/pretrain-worker-0"]
    died = msgspec.structs.replace(pod, phase="Failed", containers=(Container("ascend", False, 137, None, 0),))
    observed = msgspec.structs.replace(world.observer.observed(), pods={pod.key: died})
    text = said_of("pod", pod.key, world.plan(), observed)
    assert "exit codes\n  ascend: 137" in text and "exit code of ascend: 137" in text
    assert "kubectl logs -n default pretrain-worker-0" in text
    assert "belay explain job default/pretrain" in text
    assert "what comes next: nothing" not in text


def pod_with(*statuses: dict[str, Any], phase: str) -> Any:
    """A pod of a world as the API server shows it, with these containers."""
    world, _, _ = started()
    (live,) = [one for name, one in world.pods().items() if name == "pretrain-worker-0"]
    live = {**live, "status": {**live["status"], "phase": phase, "containerStatuses": list(statuses)}}
    return parse_pod(live)


def test_a_failed_pod_shows_its_last_lines_and_the_exact_command_for_the_rest() -> None:
    said = "\n".join(f"line {n}" for n in range(40)) + "\nRuntimeError: HCCL timeout, password=hunter2\n"
    end = {"exitCode": 1, "reason": "Error", "message": said}
    killed = {"exitCode": 137, "reason": "OOMKilled", "message": ""}
    pod = pod_with(
        {"name": "ascend", "state": {"terminated": end}},
        {"name": "proxy", "state": {"terminated": killed}},
        {"name": "done", "state": {"terminated": {"exitCode": 0, "message": "well"}}},
        phase="Failed",
    )
    world, _, _ = started()
    observed = msgspec.structs.replace(world.observer.observed(), pods={pod.key: pod})
    body = explain("pod", pod.key, world.plan(), observed)
    assert body["exitCodes"] == ["ascend: 1", "proxy: 137 (OOMKilled)"]
    (lines,) = body["lastLines"].values()
    assert len(lines) == 10 and lines[-2] == "line 39" and "HCCL timeout" in lines[-1] and "hunter2" not in lines[-1]
    coming_next = "\n".join(body["coming"])
    assert "the whole log: `kubectl logs -n default pretrain-worker-0 -c ascend`" in coming_next
    assert "-c proxy`" in coming_next and "-c done`" not in coming_next and "--previous" not in coming_next


def test_a_container_that_was_started_again_names_the_log_of_its_run_before() -> None:
    before = {"exitCode": 139, "reason": "Error", "message": "Segmentation fault"}
    pod = pod_with(
        {"name": "ascend", "restartCount": 3, "state": {"running": {}}, "lastState": {"terminated": before}},
        phase="Running",
    )
    world, _, _ = started()
    observed = msgspec.structs.replace(world.observer.observed(), pods={pod.key: pod})
    body = explain("pod", pod.key, world.plan(), observed)
    assert body["lastLines"] == {"ascend": ["Segmentation fault"]} and "exitCodes" not in body
    assert body["coming"][0] == (
        "container ascend was started again 3 times, it ended with exit code 139 (Error): "
        "`kubectl logs -n default pretrain-worker-0 --previous`"
    )


def test_a_node_in_maintenance_says_why_until_when_and_what_is_left_on_it() -> None:
    world, first, _ = started()
    world.push(isolated(first))
    before = said_of("node", first, world.plan(), world.observer.observed(), world.desired)
    assert "still on it: default/pretrain-" in before
    world.until_quiet()
    text = said_of("node", first, world.plan(), world.observer.observed(), world.desired)
    place = f"desired/maintenance.yaml:1@{world.revision}"
    assert f"Isolation/new-optics (optics are replaced, {place})" in " ".join(text.split())
    assert "until the document is deleted from Git" in text
    assert "no pod of a job holds chips on it" in text and "uncordons it when the maintenance ends" in text


def test_whatever_runs_or_waits_has_something_next() -> None:
    world, _, _ = started()
    for name in ("node-1", "node-8"):
        world.fault(name, 3)
    for _ in range(12):
        plan, observed = world.plan(), world.observer.observed()
        for kind, found in (
            ("pod", list(observed.pods)),
            ("node", [state.node for state in plan.nodes]),
            ("chip", [f"{name}/3" for name in ("node-1", "node-8", "infer-1")]),
            ("job", ["default/pretrain"]),
        ):
            for one in found:
                body = explain(kind, one, plan, observed, world.desired)
                assert body["coming"] and all(body["coming"]), (kind, one)
        world.step()
        world.pass_time(20.0)


def test_a_recovery_under_way_counts_with_the_time_so_far() -> None:
    one = Recovery(at=int(NOW * 1000), level="job", reason="NodeUnhealthy", chips=16, hit=8, redone=30)
    memory = JobMemory(recoveries=(one,))
    plan = Plan(revision="r", now=NOW + 90, history=History(jobs={"a/Job/j": memory}))
    (row,) = records.recoveries(plan, Observed(), Desired()).rows
    assert (row["state"], row["seconds"], row["lostChipHours"]) == ("under way", 90, round(16 * 120 / 3600, 2))
    assert effective(memory, NOW - 1910, NOW + 90, 16) == 0.94

    # the console: from the status that is written once, and its own clock
    status = recovery_body(memory)["recoveries"][0] | {"stages": [{"stage": "fault", "time": "2026-09-01T08:00:00Z"}]}
    shown = console_jobs._recovery("a/Job/j", 1, status, {})
    job = console_jobs.ReadJob({}, "a/Job/j", {"chips": 16, "phase": "Running"}, (), (shown,), 0, NOW - 1910)
    fleet = console_jobs.fleet([shown], SimpleNamespace(jobs=[job]), NOW + 90)
    assert fleet["effectiveTime"] == 0.955


def test_queues_show_what_is_in_force_per_resource_and_jobs_their_priority() -> None:
    files = sample_files() | {
        "policies/scheduling.yaml": b"apiVersion: belay.dev/v1alpha1\nkind: SchedulingSettings\nmetadata: {name: q}\n"
        b"spec: {queues: [{name: default, weight: 3, capability: {huawei.com/Ascend910: 36}}]}\n"
    }
    world = sample_world(files=files)
    world.until_quiet()
    plan, observed = world.plan(), world.observer.observed()
    (row,) = [row for row in records.queues(plan, observed, world.desired).rows if row["queue"] == "default"]
    assert (row["capability"], row["weight"], row["declaredBy"]) == (
        {"huawei.com/Ascend910": 36},
        3,
        "SchedulingSettings",
    )
    assert row["used"]["huawei.com/Ascend910"] == 16
    jobs = answers.jobs(plan, observed)
    assert "priority" in jobs.columns and all(row["priority"] is not None for row in jobs.rows)


def test_vnpus_are_shown_from_their_order_on() -> None:
    wanted = ordered(resets={}, vnpu_epoch=2, vnpu_layout={2: ("vir04", "vir02")})
    made = (AgentVNPU(100, 2, "vir04", "a/p"),)
    report = msgspec.structs.replace(agent(), vnpus=made)
    plan = Plan(revision="r", now=NOW, servers={"n1": ServerChips("Ascend310P-", 0xFF, True)})
    rows = answers.vnpus(plan, Observed(agents={"n1": report}, orders={"n1": wanted})).rows
    assert [(row["chip"], row["id"], row["template"], row["state"], row["usedBy"]) for row in rows] == [
        ("Ascend310P-2", 100, "vir04", "exists", "a/p"),
        ("Ascend310P-2", None, "vir02", "ordered", ""),
    ]
    done = msgspec.structs.replace(report, vnpu_epoch_done=2)
    assert len(answers.vnpus(plan, Observed(agents={"n1": done}, orders={"n1": wanted})).rows) == 1


def test_revisions_have_author_and_subject_without_a_signed_commit() -> None:
    entry = RevisionEntry(number=0, revision="a" * 40, source="r main", author="Ada <a@b>", subject="one more worker")
    log = RevisionLog().appended(entry)
    body = revisionlog.build(log, "main")
    assert revisionlog.parse(body) == log and log.entries[0].said() == ("Ada <a@b>", "one more worker")
    plain = RevisionLog().appended(msgspec.structs.replace(entry, author="", subject=""))
    assert plain.entries[0].hash == log.entries[0].hash, "logs of versions before and after are one chain"
