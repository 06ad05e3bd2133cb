"""Faults hidden from the planner while a job recovers, and for how long: step retries, in-place restarts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import EvictPod
from belay.engine.model.cluster import Observed, SwitchFault
from belay.engine.model.fault_subscriptions import FaultSubscriptions
from belay.engine.model.labels import STEP_RETRY
from belay.engine.model.recovery import Conversation, FaultyRank, State, steps
from belay.engine.model.recovery.conversation import Operation, StepRecord
from belay.engine.model.recovery.progress import ABANDONED_MS, progress_of
from belay.engine.observe.observed import observe
from belay.engine.wire import recoveryrecord
from belay.engine.wire.recoveryrecord import Record
from tests.steps import Steps
from tests.worlds import NOW, decide, fault, node, observed, pod, report, switch

NOW_MS = int(NOW * 1000)
UCE, HCCL = "80E01801", "8C1F860B"
JOB = "uid-train-j"


def job(
    code: str, level: str, age: float, *, chip: int = 3, strategies: str = "retry,recover", enabled: str = "on",
    recoveries: tuple[Conversation, ...] = (), notes: dict[str, str] | None = None,
) -> Observed:  # fmt: skip
    """Two pods of eight chips; chip 3 of the second, rank 11, has had the fault for ``age`` seconds."""
    labels = {"fault-scheduling": "force", "process-recover-enable": enabled}
    more = {"recover-strategy": strategies} | (notes or {})
    pods = [
        pod(f"j-{i}", node=f"n{i}", chips=range(8), owner=("AscendJob", "j"), labels=labels, annotations=more, rank=i)
        for i in range(2)
    ]
    bad = fault(chip, code, level, at=NOW - age)
    reports = [report("n0"), report("n1", faults=[bad]), *(report(f"n{i}") for i in range(2, 4))]
    seen = observed([node(f"n{i}") for i in range(4)], reports, pods)
    told = {one.job: one for talk in recoveries if (one := progress_of(talk)) is not None}
    return msgspec.structs.replace(seen, recoveries=told)


def outcome(scope: Steps) -> tuple[str, list[str]]:
    """The state of the faulty chip, and the pods that go."""
    state = next(c.state for c in scope.chips if (c.node, c.chip) == ("n1", "Ascend910-3"))
    return state, sorted(a.pod for a in scope.actions if isinstance(a, EvictPod))


STAYS, GOES = ("suspect", []), ("isolated", ["j-1"])


def told(reported: float, completed: float | None = None, ranks: str = "11") -> dict[str, str]:
    """Annotations: retry reported ``reported`` seconds ago, succeeded ``completed`` seconds ago."""
    notes = {"belay.dev/step-retry": f"{NOW_MS - round(reported * 1000)}:{ranks}"}
    return notes | ({} if completed is None else {"belay.dev/step-retried": str(NOW_MS - round(completed * 1000))})


@pytest.mark.parametrize("code", [UCE, HCCL])
@pytest.mark.parametrize(
    ("age", "notes", "expected"),
    [
        pytest.param(10, {}, STAYS, id="within the time for a report"),
        pytest.param(10.1, {}, GOES, id="no report"),
        pytest.param(35, told(25), STAYS, id="reported in time, being tried"),
        pytest.param(40, told(30), STAYS, id="reported in time, at the limit"),
        pytest.param(40.1, told(30.1), GOES, id="tried for too long"),
        pytest.param(35, told(24.9), GOES, id="reported too late"),
        pytest.param(3600, told(3595, 3570), STAYS, id="ended well in time"),
        pytest.param(3600, told(3595, 3564), GOES, id="ended well too late"),
        pytest.param(60, told(3600, 3590), GOES, id="what ended well was an earlier fault"),
        pytest.param(35, told(25, ranks="0-7"), GOES, id="report on other ranks"),
        pytest.param(35, told(25, ranks="2,8-15"), STAYS, id="report on a run of ranks"),
        pytest.param(35, {"belay.dev/step-retry": "soon:11"}, GOES, id="unreadable"),
    ],
)
def test_a_step_retry_hides_its_fault_for_its_time(
    code: str, age: float, notes: dict[str, str], expected: tuple[str, list[str]]
) -> None:
    assert outcome(decide(job(code, "RestartBusiness", age, notes=notes))) == expected


def test_a_past_fault_keeps_no_clean_chip_out() -> None:
    """ClusterD's memory of it is for its recovery service; no named hold stands for it here."""
    before = decide(job(HCCL, "RestartBusiness", 5, notes=told(2)))
    assert outcome(before) == STAYS
    clean = job(HCCL, "RestartBusiness", 5, notes=told(2))
    clean.reports["n1"] = report("n1", version="5001")
    after = decide(msgspec.structs.replace(clean, history=before.memory.frozen()))
    (row,) = [c for c in after.chips if (c.node, c.chip) == ("n1", "Ascend910-3")]
    assert (row.state, row.level, row.codes) == ("healthy", "NormalNPU", ())
    assert not after.memory.nodes["n1"].chips


def test_only_retryable_codes_of_jobs_that_retry_are_hidden() -> None:
    assert outcome(decide(job(UCE, "RestartBusiness", 20, strategies="recover", notes=told(15)))) == GOES
    assert outcome(decide(job("80C98001", "RestartBusiness", 20, notes=told(15)))) == GOES


def test_a_fault_of_an_idle_chip_is_never_hidden() -> None:
    seen = job(UCE, "RestartBusiness", 20, notes=told(15))
    free = msgspec.structs.replace(seen, pods={})
    assert outcome(decide(free))[0] == "isolated"


def test_reports_of_several_clients_keep_their_times() -> None:
    first = steps.more(
        (), [FaultyRank("9", "0"), FaultyRank("8", "0"), FaultyRank("x", "0"), FaultyRank("3", "1")], 1_000
    )
    both = steps.more(first, [FaultyRank("9", "0"), FaultyRank("1", "2")], 9_000)
    assert steps.text(both) == "1000:8-9;9000:1"
    assert steps.more(both, [FaultyRank("8", "0")], 20_000) == both, "reported before"
    read = steps.read({STEP_RETRY: steps.text(both)})
    assert read is not None and [read.reported(rank) for rank in (8, 9, 1, 3)] == [1_000, 1_000, 9_000, 0]


def test_a_flood_of_ranks_is_bounded() -> None:
    known = steps.more((), [FaultyRank(str(n), "2") for n in range(0, 100_000, 2)], 1_000)
    assert len(steps.text(known)) < 128 * 1024
    for moment in range(2_000, 200_000, 1_000):
        known = steps.more(known, [FaultyRank(str(100_001 + moment), "2")], moment)
    assert len(known) <= 64 and steps.read({STEP_RETRY: steps.text(known)}) is not None
    assert steps.read({STEP_RETRY: "9" * 200_000}) is None


# processes that start again in their pods

IN_PLACE = {"strategies": "recover,recover-in-place"}


def talk(state: State, *, deadline: float | None = None, since: float = 5, **more: Any) -> Conversation:
    """A conversation about rank 11 that entered its state ``since`` seconds ago, with ``deadline`` seconds left."""
    at = NOW_MS - round(since * 1000)
    limit = None if deadline is None else NOW_MS + round(deadline * 1000)
    fields = {
        "ranks": (FaultyRank("11", "1"),),
        "since": at,
        "deadline": limit,
        "story": (StepRecord(at, "faultOccur", state),),
    }
    return Conversation(job=JOB, state=state, **{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conversation", "expected"),
    [
        pytest.param(None, GOES, id="no recovery is under way"),
        pytest.param(talk(State.WAIT_STOP, deadline=800), STAYS, id="the processes are stopping"),
        pytest.param(talk(State.WAIT_STRATEGY, deadline=0), STAYS, id="they are offering"),
        pytest.param(talk(State.DECIDED, deadline=15, chosen="recover", in_place=True), STAYS, id="decided so"),
        pytest.param(talk(State.WAIT_RECOVER, deadline=200, chosen="recover", in_place=True), STAYS, id="starting"),
        pytest.param(talk(State.DECIDED, deadline=15, chosen="recover"), GOES, id="decided for new pods"),
        pytest.param(talk(State.DECIDED, deadline=15, chosen="dump"), GOES, id="decided for a checkpoint"),
        pytest.param(talk(State.WAIT_STOP, deadline=800, last="recover"), GOES, id="a first recovery has failed"),
        pytest.param(talk(State.FAULT_CLEAR), GOES, id="given up"),
        pytest.param(talk(State.FAULT_RETRY, deadline=100), GOES, id="handed to the planner"),
        pytest.param(talk(State.KILL_JOB), GOES, id="the job is killed"),
        pytest.param(talk(State.INIT, pre_exit=NOW_MS + 4_000), STAYS, id="its processes may still speak"),
        pytest.param(
            talk(State.WAIT_STOP, deadline=800, ranks=(FaultyRank("3", "1"),)), GOES, id="another pod recovers"
        ),
        pytest.param(talk(State.WAIT_STOP, deadline=-59, since=900), STAYS, id="its server may be restarting"),
        pytest.param(talk(State.WAIT_STOP, deadline=-61, since=900), GOES, id="no server serves it any more"),
        pytest.param(talk(State.STOP_TRAIN, since=59), STAYS, id="a signal is on its way"),
        pytest.param(talk(State.STOP_TRAIN, since=61), GOES, id="a signal that no server delivers"),
        pytest.param(talk(State.PAUSE, operation=Operation("nic")), GOES, id="links are switched"),
        pytest.param(talk(State.WAIT_STOP, deadline=800, operation=Operation("nic")), STAYS, id="which did not work"),
    ],
)
@pytest.mark.parametrize("level", ["RestartRequest", "RestartBusiness"])
def test_pods_stay_exactly_as_long_as_their_processes_restart_in_them(
    level: str, conversation: Conversation | None, expected: tuple[str, list[str]]
) -> None:
    known = () if conversation is None else (conversation,)
    scope = decide(job("80C98001", level, 100, recoveries=known, **IN_PLACE))
    assert outcome(scope) == expected
    said = [d.message for d in scope.diagnostics if d.object == "Pod/train/j-1"]
    assert [f"Ascend910-3 {level}" in text and "evicted after 2026-" in text for text in said] == (
        [True] if expected is STAYS else []
    )


@pytest.mark.parametrize(
    "more",
    [
        {"strategies": "recover"},
        {"enabled": "pause"},
        {"notes": {"belay.dev/recovery-level": "pod"}},
        {"notes": {"belay.dev/recovery-level": "process"}},
    ],
)
def test_only_in_place_restarts_keep_pods(more: dict[str, Any]) -> None:
    under_way = (talk(State.WAIT_STOP, deadline=800),)
    state, going = outcome(decide(job("80C98001", "RestartRequest", 100, recoveries=under_way, **(IN_PLACE | more))))
    assert state == "isolated" and going == (["j-0", "j-1"] if "enabled" in more else ["j-1"])


def test_worse_faults_evict_the_pod_during_any_recovery() -> None:
    under_way = (talk(State.WAIT_RECOVER, deadline=200, chosen="recover", in_place=True),)
    assert outcome(decide(job("80C98001", "RestartNPU", 1, recoveries=under_way, **IN_PLACE))) == GOES


def test_the_record_in_the_cluster_is_what_counts() -> None:
    record = recoveryrecord.build(Record(conversation=talk(State.WAIT_STOP, deadline=800)))
    found = observe([record]).recoveries[JOB]
    assert (found.state, found.until) == (State.WAIT_STOP, NOW_MS + 800_000 + ABANDONED_MS)
    broken = {**record, "data": {recoveryrecord.KEY: "{"}}
    assert observe([broken]).recoveries == {} and observe([broken]).diagnostics
    quiet = recoveryrecord.build(Record(conversation=Conversation(job=JOB)))
    assert observe([quiet]).recoveries == {}


@pytest.mark.parametrize(
    ("raised", "at", "now", "expected"),
    [
        (0, 100_000, 110_000, True),
        (0, 100_000, 110_001, False),
        (95_000, 100_000, 500_000, True),
        (90_000, 100_000, 500_000, True),
        (89_999, 100_000, 500_000, False),
        (400_000, 100_000, 500_000, False),
    ],
)
def test_faults_reported_in_time_may_be_retried(raised: int, at: int, now: int, expected: bool) -> None:
    told_of = steps.read({STEP_RETRY: f"{at}:8-15"})
    assert told_of is not None
    assert (told_of.retries(11, raised, now), told_of.retries(7, raised, now)) == (expected, False)


SWITCH_CODE, LINK_CODE = "[0x00f1ff09,155912,cpu,na]", "[0x08520003,na,L2,na]"


def behind_switch(
    faults: list[SwitchFault], *, codes: str = "", levels: str = "", neighbours: str = "", app: str = ""
) -> tuple[str, str, list[str]]:
    """State and level of a node whose switch has these faults, and the pods that go: one of a job with these filters,
    one of another job with the filter ``neighbours``.
    """
    labels = {"fault-scheduling": "force"}
    notes = {"huawei.com/schedule.filter.faultCode": codes, "huawei.com/schedule.filter.faultLevel": levels}
    other = {"huawei.com/schedule.filter.faultCode": neighbours}
    own = labels | ({"app": app, "jobID": "chat"} if app else {})
    heard = FaultSubscriptions(frozenset({"chat"}), NOW_MS, 1, "server-0")
    pods = [
        pod("j-0", node="n0", chips=range(4), owner=("AscendJob", "j"), labels=own, annotations=notes, rank=0),
        pod("k-0", node="n0", chips=range(4, 8), owner=("AscendJob", "k"), labels=labels, annotations=other, rank=0),
    ]
    worst = "Separate" if any(one.level == "Separate" for one in faults) else faults[0].level
    reported = msgspec.structs.replace(switch(worst, codes={one.code for one in faults}), faults=tuple(faults))
    scope = decide(
        observed(
            [node("n0"), node("n1")], [report("n0", switch=reported), report("n1")], pods, fault_subscriptions=heard
        )
    )
    view = scope.nodes["n0"]
    assert set(view.codes) == {one.code for one in faults}, "codes are shown while they are hidden from the job"
    told = scope.document().switches
    assert {"n0"} >= told.keys() and all(len(one.faults) < len(faults) for one in told.values())
    return view.state, view.level, sorted(a.pod for a in scope.actions if isinstance(a, EvictPod))


def switch_fault(level: str, age: float, code: str = SWITCH_CODE) -> SwitchFault:
    return SwitchFault(code, level, NOW_MS - round(age * 1000))


CALM, LOST = ("healthy", "NormalNPU", []), ("isolated", "SeparateFault", ["j-0", "k-0"])


@pytest.mark.parametrize(
    ("faults", "filters", "expected"),
    [
        pytest.param([switch_fault("Separate", 60)], {}, LOST, id="no filter"),
        pytest.param([switch_fault("Separate", 60)], {"codes": SWITCH_CODE}, CALM, id="code, 60 s by default"),
        pytest.param([switch_fault("Separate", 60.1)], {"codes": SWITCH_CODE}, LOST, id="code, after 60 s"),
        pytest.param([switch_fault("Separate", 200)], {"codes": f"{SWITCH_CODE}:300"}, CALM, id="code, 300 s"),
        pytest.param([switch_fault("Separate", 5)], {"codes": f"{SWITCH_CODE}:0"}, LOST, id="no time at all"),
        pytest.param([switch_fault("Separate", 5)], {"levels": "ResetFault:10"}, CALM, id="level, by the table's word"),
        pytest.param([switch_fault("RestartRequest", 5)], {"levels": "Separate"}, LOST, id="another level"),
        pytest.param([switch_fault("Separate", 5)], {"codes": f"{SWITCH_CODE}:4", "levels": "Separate"}, LOST,
                     id="the code's time wins"),
        pytest.param([switch_fault("Separate", 5)], {"neighbours": SWITCH_CODE}, CALM, id="the filter of another job"),
        pytest.param([switch_fault("RestartRequest", 59)], {"app": "mindie-ms-server"}, CALM, id="MindIE server"),
        pytest.param([switch_fault("RestartRequest", 61)], {"app": "mindie-ms-server"}, LOST, id="MindIE server, late"),
        pytest.param([SwitchFault(SWITCH_CODE, "Separate")], {"codes": SWITCH_CODE}, LOST, id="of unknown age"),
        pytest.param([switch_fault("Separate", 5), switch_fault("SubHealthFault", 5, LINK_CODE)],
                     {"codes": SWITCH_CODE}, ("sub-healthy", "SubHealthFault", []), id="the other fault counts"),
        pytest.param([switch_fault("Separate", 5), switch_fault("Separate", 90)], {"codes": SWITCH_CODE}, LOST,
                     id="the same code on two ports"),
    ],
)  # fmt: skip
def test_filters_hide_faults_of_a_switch_for_their_time(
    faults: list[SwitchFault], filters: dict[str, str], expected: tuple[str, str, list[str]]
) -> None:
    assert behind_switch(faults, **filters) == expected
