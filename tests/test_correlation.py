"""Faults over a whole job: hardware or software, relation faults, and what a job rides out."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.gangs.forming import gang_key
from belay.engine.model import hardware_faults, relations
from belay.engine.model.actions import EvictPod, PatchObject
from belay.engine.model.cluster import Pod
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.history import History, JobFault, RelationFault
from belay.engine.model.relations import FaultLocation, follow
from belay.engine.plan import plan
from belay.engine.status.sync_status import manual_bodies
from tests.steps import Steps
from tests.test_faultconfig import CLUSTER, config_map
from tests.worlds import NOW, decide, desired, document, fault, node, observed, pod, report, switch

MS = int(NOW * 1000)
CODE = "8C084E00"
ENABLED = config_map(CLUSTER, manually_separate_policy__conf="enabled: true")
KEY = gang_key("mindxdl.gitee.com/v1", "AscendJob", "train", "j")


def job(chips: dict[str, list[int]], name: str = "j", **more: Any) -> list[Pod]:
    labels = {"fault-scheduling": more.pop("mode", "force")} | more.pop("labels", {})
    return [
        pod(f"{name}-{i}", node=where, chips=ids, owner=("AscendJob", name), labels=labels, rank=i, **more)
        for i, (where, ids) in enumerate(chips.items())
    ]


def step(
    faults: dict[str, list[Any]],
    *,
    at: float = NOW,
    history: History | None = None,
    pods: list[Pod] | None = None,
    objects: Any = (ENABLED,),
    policies: Any = (),
    **more: Any,
) -> Steps:
    reports = [report(name, faults=faults.get(name, ()), update_time=at - 1, **more) for name in ("n0", "n1")]
    pods = job({"n0": [0, 1], "n1": [0, 1]}) if pods is None else pods
    world = observed([node("n0"), node("n1")], reports, pods, history=history, objects=objects)
    return decide(world, desired(*policies), now=at)


def state(scope: Steps, where: str = "n0", chip: int = 0) -> tuple[str, str]:
    row = next((c for c in scope.chips if c.node == where and c.chip.endswith(f"-{chip}")), None)
    return (row.state, row.level) if row else ("healthy", "NormalNPU")


def broken(times: int, *, both: bool = False, gap: float = 60.0) -> tuple[History, float]:
    """A chip of a job that broke and healed that many times; ``both``: another chip had the same code each time."""
    memory, at = History(), NOW
    for _ in range(times):
        faults = {"n0": [fault(0, CODE, "RestartBusiness", at=at - 1)]}
        if both:
            faults["n1"] = [fault(1, CODE, "RestartBusiness", at=at - 1)]
        for present, after in ((faults, 31.0), ({}, gap)):
            memory = step(present, at=at, history=memory).memory.frozen()
            at += after
    return memory, at


def test_the_third_hardware_fault_within_a_day_isolates_the_chip_manually() -> None:
    memory, at = broken(2)
    assert state(step({}, at=at, history=memory)) == ("healthy", "NormalNPU")
    memory, at = broken(3)
    after = step({}, at=at, history=memory)
    assert state(after) == ("manually-isolated", "ManuallySeparateNPU")
    row = next(c for c in after.chips if c.node == "n0" and c.chip == "Ascend910-0")
    assert (row.codes, row.fault_type) == ((), ("CardUnhealthy",))
    hold = after.memory.nodes["n0"].chips[0].holds[0]
    assert (hold.kind, hold.rule) == ("frequency", f"hardware:{CODE}")
    assert hold.until == hold.since + 48 * 3_600_000


def test_a_code_on_two_chips_of_a_job_is_a_software_fault() -> None:
    memory, at = broken(5, both=True)
    assert state(step({}, at=at, history=memory)) == ("healthy", "NormalNPU")
    assert not memory.nodes.get("n0") or not any(row.hardware for row in memory.nodes["n0"].chips.values())


def test_nothing_is_counted_without_the_rule_without_a_job_or_below_its_level() -> None:
    lonely = {"n0": [fault(0, CODE, "RestartBusiness", at=NOW - 1)]}
    assert step(lonely).memory.jobs[KEY].faults == (JobFault(MS, "n0", 0, CODE),)
    assert KEY not in step(lonely, objects=()).memory.jobs or not step(lonely, objects=()).memory.jobs[KEY].faults
    idle = {"n0": [fault(5, CODE, "RestartBusiness", at=NOW - 1)]}
    assert not step(idle).memory.jobs.get(KEY) or not step(idle).memory.jobs[KEY].faults
    mild = {"n0": [fault(0, CODE, "SubHealthFault", at=NOW - 1)]}
    assert not step(mild).memory.jobs.get(KEY) or not step(mild).memory.jobs[KEY].faults


def test_one_presence_counts_once_however_often_it_is_reported() -> None:
    memory, at = History(), NOW
    faults = {"n0": [fault(0, CODE, "RestartBusiness", at=NOW - 1)]}
    for _ in range(20):
        memory = step(faults, at=at, history=memory).memory.frozen()
        at += 31
    assert memory.nodes["n0"].chips[0].hardware == {CODE: (MS,)}


def test_the_hold_ends_with_its_hours_with_the_rule_or_by_a_person() -> None:
    memory, at = broken(3)
    held = step({}, at=at, history=memory)
    hold = held.memory.nodes["n0"].chips[0].holds[0]
    memory = held.memory.frozen()
    until = hold.until / 1000
    assert state(step({}, at=until - 1, history=memory))[0] == "manually-isolated"
    assert state(step({}, at=until, history=memory))[0] == "healthy"
    assert state(step({}, at=at + 1, history=memory, objects=()))[0] == "healthy"
    off = config_map(CLUSTER, manually_separate_policy__conf="enabled: false")
    assert state(step({}, at=at + 1, history=memory, objects=(off,)))[0] == "healthy"
    never = config_map(CLUSTER, manually_separate_policy__conf="enabled: true\nrelease: {fault_free_hours: -1}")
    assert state(step({}, at=until + 10**6, history=memory, objects=(never,)))[0] == "manually-isolated"


def test_a_person_ends_it_by_deleting_the_name_from_the_list() -> None:
    memory, at = broken(3)
    reports = [report("n0", update_time=at - 1), report("n1", update_time=at - 1)]
    world = observed([node("n0"), node("n1")], reports, job({"n0": [0, 1]}), history=memory, objects=[ENABLED])
    (body,) = manual_bodies(plan(desired(), world, at), world)
    assert body["data"]["n0"].startswith('{"Total":["Ascend910-0"],"Detail":{"Ascend910-0":[{"FaultCode":"8C084E00"')
    shown = step({}, at=at + 1, history=memory, objects=(ENABLED, body)).memory.frozen()
    assert state(step({}, at=at + 2, history=shown, objects=(ENABLED, body)))[0] == "manually-isolated"
    edited = {**body, "data": {"n0": '{"Total":[],"Detail":{}}'}}
    assert state(step({}, at=at + 3, history=shown, objects=(ENABLED, edited)))[0] == "healthy"


def test_holds_of_clusterds_list_end_by_its_hours_and_its_switch() -> None:
    def listed(since: float) -> dict[str, Any]:
        row = f'{{"FaultCode":"{CODE}","FaultLevel":"ManuallySeparateNPU","LastSeparateTime":{int(since * 1000)}}}'
        text = f'{{"Total":["Ascend910-0"],"Detail":{{"Ascend910-0":[{row}]}}}}'
        return config_map(("cluster-system", "clusterd-manual-info-cm"), n0=text)

    day = 86_400
    assert state(step({}, objects=(listed(NOW - 9 * day),)))[0] == "manually-isolated"
    assert state(step({}, objects=(ENABLED, listed(NOW - 2 * day + 1))))[0] == "manually-isolated"
    assert state(step({}, objects=(ENABLED, listed(NOW - 2 * day))))[0] == "healthy"
    off = config_map(CLUSTER, manually_separate_policy__conf="enabled: false")
    assert state(step({}, objects=(off, listed(NOW))))[0] == "healthy"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            JobFault,
            at=st.integers(0, 200).map(lambda s: MS + s * 1000),
            node=st.sampled_from(["a", "b"]),
            chip=st.integers(0, 1),
            code=st.sampled_from(["X", "Y"]),
        ),
        max_size=12,
        unique=True,
    ),
    st.lists(st.integers(1, 40), max_size=12),
)
def test_the_frequency_of_attribution_changes_nothing(faults: list[JobFault], gaps: list[int]) -> None:
    end = MS + 400_000
    rest, at_once = hardware_faults.attribute(faults, end)
    assert not rest
    queue: tuple[JobFault, ...] = ()
    charged: list[JobFault] = []
    now = MS
    for gap in [*gaps, *[7] * 60]:
        queue = hardware_faults.enqueue(queue, [f for f in faults if now - gap * 1000 < f.at <= now])
        queue, more = hardware_faults.attribute(queue, now)
        charged += more
        now += gap * 1000
    queue = hardware_faults.enqueue(queue, [f for f in faults if f.at > now - 7000])
    _, more = hardware_faults.attribute(queue, end)
    if all(gap * 1000 <= hardware_faults.WAIT_MS for gap in gaps):
        assert {*charged, *more} <= set(faults)
        lonely = {
            f for f in faults
            if not any(o.code == f.code and (o.node, o.chip) != (f.node, f.chip) and abs(o.at - f.at) <= 60_000
                       for o in faults)
        }  # fmt: skip
        assert lonely <= set(at_once)


def test_charges_are_bounded_by_the_window_and_restart_at_the_threshold() -> None:
    rule = ManualPolicy(True, window_hours=1, threshold=3)
    assert hardware_faults.charge((MS - 3_600_001, MS - 10), (MS,), rule, MS) == ((MS - 10, MS), False)
    assert hardware_faults.charge((MS - 20, MS - 10), (MS,), rule, MS) == ((), True)
    queue = hardware_faults.enqueue((), (JobFault(MS + i, "n", 0, f"{i}") for i in range(5000)))
    assert len(queue) == hardware_faults.MAX_WAITING


# ---- relation faults

LINK, RETRY_OK, RETRY_BAD, CQE = "81078603", "8C1F8609", "8C1F860B", "8C1F8608"
LINGQU = "[0x08520003,na,L2,na]"


def at(chip: int, code: str, where: str = "n0") -> FaultLocation:
    return FaultLocation(where, chip, code)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ([at(0, RETRY_OK), at(1, LINK)], {("n0", 1): "SubHealth"}),
        ([at(0, RETRY_BAD), at(1, LINK)], {("n0", 1): "Separate"}),
        ([at(0, RETRY_BAD, "n1"), at(1, LINK), at(2, LINK)], {("n0", 1): "Separate", ("n0", 2): "Separate"}),
        ([at(0, RETRY_BAD), at(-1, LINGQU, "n1")], {("n1", -1): "Separate"}),
        ([at(0, CQE), at(1, LINK)], {("n0", 1): "Separate"}),
        ([at(0, "4C1F8608"), at(1, LINK)], {("n0", 1): "Separate"}),
        ([at(0, RETRY_OK), at(0, RETRY_BAD), at(1, LINK)], {("n0", 1): "Separate"}),
        ([at(1, LINK)], {}), ([at(0, RETRY_BAD)], {}), ([at(0, RETRY_OK), at(-1, LINGQU)], {}),
        ([at(0, "80C98001"), at(1, LINK)], {}),
    ],
)  # fmt: skip
def test_every_row_of_the_relation_table(there: list[FaultLocation], expected: dict[Any, str]) -> None:
    _, decided = follow((), there, a3=False, since_ms=MS, now_ms=MS)
    assert decided == expected


def test_a_strategy_is_decided_once_and_never_lowered() -> None:
    memory, decided = follow((), [at(0, RETRY_OK), at(1, LINK)], a3=False, since_ms=MS, now_ms=MS)
    assert decided == {("n0", 1): "SubHealth"}
    memory, decided = follow(memory, [at(0, RETRY_OK), at(1, LINK)], a3=False, since_ms=MS, now_ms=MS + 1000)
    assert decided == {}
    both = [at(0, RETRY_OK), at(0, RETRY_BAD), at(1, LINK)]
    memory, decided = follow(memory, both, a3=False, since_ms=MS, now_ms=MS + 2000)
    assert decided == {("n0", 1): "Separate"}
    _, decided = follow(memory, both, a3=False, since_ms=MS, now_ms=MS + 3000)
    assert decided == {}


def test_a_recovered_link_is_separated_by_a_late_completion_error_only() -> None:
    memory, _ = follow((), [at(1, LINK)], a3=False, since_ms=MS, now_ms=MS)
    memory, _ = follow(memory, [], a3=False, since_ms=MS, now_ms=MS + 1000)
    _, decided = follow(memory, [at(0, RETRY_BAD)], a3=False, since_ms=MS, now_ms=MS + 2000)
    assert decided == {}
    _, decided = follow(memory, [at(0, CQE)], a3=False, since_ms=MS, now_ms=MS + 300_000)
    assert decided == {("n0", 1): "Separate"}
    _, decided = follow(memory, [at(0, CQE)], a3=False, since_ms=MS, now_ms=MS + 300_001)
    assert decided == {}


def test_on_a3_completion_errors_count_when_the_link_fault_times_out() -> None:
    memory, decided = follow((), [at(1, LINK), at(0, CQE)], a3=True, since_ms=MS, now_ms=MS)
    assert decided == {}
    memory, decided = follow(memory, [at(1, LINK)], a3=True, since_ms=MS, now_ms=MS + 300_000)
    assert decided == {}
    _, decided = follow(memory, [at(1, LINK)], a3=True, since_ms=MS, now_ms=MS + 300_001)
    assert decided == {("n0", 1): "Separate"}
    alone, _ = follow((), [at(1, LINK)], a3=True, since_ms=MS, now_ms=MS)
    assert follow(alone, [at(1, LINK)], a3=True, since_ms=MS, now_ms=MS + 300_001)[1] == {}


@pytest.mark.parametrize(
    ("link", "cqe", "blamed"), [(0, 0, True), (0, 300, True), (0, 301, False), (1, 0, False), (200, 0, False)]
)
def test_on_a3_only_completion_errors_after_the_link_fault_separate_it(link: int, cqe: int, blamed: bool) -> None:
    """Seconds at which each came; the error is there for one pass only, as such errors are."""
    memory: tuple[RelationFault, ...] = ()
    decided: dict[tuple[str, int], str] = {}
    for second in sorted({0, link, cqe, link + 300, link + 301}):
        there = [at(1, LINK)] * (second >= link) + [at(0, CQE)] * (second == cqe)
        memory, found = follow(memory, there, a3=True, since_ms=MS, now_ms=MS + second * 1000)
        decided |= found
    assert (decided == {("n0", 1): "Separate"}) is blamed and bool(decided) is blamed


def test_a_fault_is_attributed_thirty_seconds_after_its_arrival() -> None:
    fault_ = JobFault(MS, "n0", 1, "X")
    assert hardware_faults.attribute([fault_], MS + 29_999) == ((fault_,), ())
    assert hardware_faults.attribute([fault_], MS + 30_000) == ((), (fault_,))


def test_a_switch_fault_that_outlasts_its_time_is_sub_health_and_an_older_one_is_ignored() -> None:
    memory, _ = follow((), [at(-1, LINGQU)], a3=True, since_ms=MS, now_ms=MS)
    assert follow(memory, [at(-1, LINGQU)], a3=True, since_ms=MS, now_ms=MS + 300_001)[1] == {("n0", -1): "SubHealth"}
    assert follow(memory, [at(-1, LINGQU)], a3=True, since_ms=MS + 1, now_ms=MS + 300_001)[1] == {}


def test_the_memory_of_relation_faults_is_bounded_and_expires() -> None:
    many = [at(i, LINK) for i in range(1000)] + [at(i, LINK, "n1") for i in range(1500)]
    memory, _ = follow((), many, a3=False, since_ms=MS, now_ms=MS)
    assert len(memory) == relations.MAX_REMEMBERED
    memory, _ = follow(memory, [], a3=False, since_ms=MS, now_ms=MS + 1)
    assert follow(memory, [], a3=False, since_ms=MS, now_ms=MS + 300_001)[0] == ()


def test_the_order_of_fault_locations_changes_nothing() -> None:
    there = [at(i, code, where) for i in range(3) for code in (LINK, RETRY_BAD, CQE) for where in ("n0", "n1")]
    first = follow((), there, a3=False, since_ms=MS, now_ms=MS)
    for seed in range(5):
        random.Random(seed).shuffle(there)
        assert follow((), there, a3=False, since_ms=MS, now_ms=MS) == first


def net(chip: int, *, code: str = LINK) -> Any:
    return fault(chip, code, "NotHandleFault", kind="CardNetworkUnhealthy", at=NOW - 1)


def related(*, mode: str = "force", labels: Any = None, objects: Any = (), **more: Any) -> Steps:
    faults = {"n0": [net(1)], "n1": [fault(0, RETRY_BAD, "NotHandleFault", at=NOW - 1)]}
    return step(faults, pods=job({"n0": [0, 1], "n1": [0, 1]}, mode=mode, labels=labels or {}), objects=objects, **more)


def test_the_job_on_a_separated_link_is_rescheduled() -> None:
    evictions = [a for a in related().actions if isinstance(a, EvictPod)]
    assert {a.pod for a in evictions} == {"j-0", "j-1"}
    assert {a.reason for a in evictions} == {"RelationFaultSeparate"}
    assert {a.evidence.codes for a in evictions} == {("81078603", "8C1F860B")}
    assert "relation faults blame (81078603, 8C1F860B)" in evictions[0].message
    alone = related(labels={"pod-rescheduling": "on"})
    assert related(mode="off").memory.jobs[KEY].blamed == {"uid-train-j-0": "Separate"}
    assert alone.blamed == {"train/j-0": "Separate"}


def test_the_strategy_of_a_pod_lasts_until_the_pod_is_gone() -> None:
    memory = related(mode="off").memory.frozen()
    later = step({}, at=NOW + 60, history=memory, objects=())
    assert {a.pod for a in later.actions if isinstance(a, EvictPod)} == {"j-0", "j-1"}
    renamed = [pod(f"k-{i}", node=where, chips=[0, 1], owner=("AscendJob", "j"), rank=i,
                   labels={"fault-scheduling": "force"}) for i, where in enumerate(("n0", "n1"))]  # fmt: skip
    after = step({}, at=NOW + 400, history=memory, pods=renamed, objects=())
    assert not [a for a in after.actions if isinstance(a, EvictPod)]
    assert not after.memory.jobs[KEY].blamed if KEY in after.memory.jobs else True


def test_a_live_volcano_gets_a_label_on_the_pod() -> None:
    volcano = pod("volcano-scheduler", namespace="volcano-system", node="n1", labels={"app": "volcano-scheduler"})
    faults = {"n0": [net(1)], "n1": [fault(0, RETRY_BAD, "NotHandleFault", at=NOW - 1)]}
    scope = step(faults, pods=[*job({"n0": [0, 1], "n1": [0, 1]}), volcano], objects=())
    (patch,) = [a for a in scope.actions if isinstance(a, PatchObject)]
    assert (patch.name, patch.patch) == ("j-0", {"metadata": {"labels": {"fault-type": "Separate"}}})


def test_nodes_with_an_unhealthy_switch_contribute_no_chips() -> None:
    faults = {"n0": [net(1)], "n1": [fault(0, RETRY_BAD, "NotHandleFault", at=NOW - 1)]}
    assert not step(faults, objects=(), switch=switch("Separate")).blamed


# ---- what a job rides out


def ridden(
    level: str, age: float, *, notes: Any = None, labels: Any = None, code: str = "80C98001", worse: Any = None
) -> str:
    faults = {"n0": [fault(0, code, level, at=NOW - age)]} | (worse or {})
    pods = job({"n0": [0, 1], "n1": [0, 1]}, annotations=notes or {}, labels=labels or {})
    return state(step(faults, pods=pods, objects=()))[0]


FILTER_LEVEL, FILTER_CODE = "huawei.com/schedule.filter.faultLevel", "huawei.com/schedule.filter.faultCode"


@pytest.mark.parametrize(
    ("level", "age", "notes", "expected"),
    [
        ("RestartRequest", 60, {FILTER_LEVEL: "RestartRequest"}, "suspect"),
        ("RestartRequest", 60.001, {FILTER_LEVEL: "RestartRequest"}, "isolated"),
        ("RestartRequest", 86_400, {FILTER_LEVEL: "RestartRequest:86400"}, "suspect"),
        ("RestartRequest", 60, {FILTER_LEVEL: "RestartRequest:86401"}, "suspect"),
        ("RestartRequest", 60.001, {FILTER_LEVEL: "RestartRequest:86401"}, "isolated"),
        ("RestartRequest", 10, {FILTER_LEVEL: "RestartRequest:60", FILTER_CODE: "80C98001:5"}, "isolated"),
        ("RestartRequest", 30, {FILTER_LEVEL: "RestartNPU", FILTER_CODE: "80c98001:40"}, "suspect"),
        ("RestartRequest", 30, {}, "isolated"),
        ("RestartBusiness", 60, {"recover-strategy": "recover-in-place,exit"}, "suspect"),
        ("RestartBusiness", 60.001, {"recover-strategy": "recover-in-place"}, "isolated"),
        ("RestartNPU", 1, {"recover-strategy": "recover-in-place"}, "isolated"),
        ("RestartBusiness", 1, {"recover-strategy": "recover,dump"}, "isolated"),
    ],
)
def test_filters_per_job(level: str, age: float, notes: dict[str, str], expected: str) -> None:
    assert ridden(level, age, notes=notes) == expected


@pytest.mark.parametrize(
    ("worse", "labels", "expected"),
    [
        ({"n0": [fault(1, "80DF8402", "RestartNPU")]}, {}, "isolated"),
        ({"n0": [fault(1, "80818C06", "SubHealthFault")]}, {}, "suspect"),
        ({"n0": [fault(1, "80818C06", "SubHealthFault")]}, {"subHealthyStrategy": "graceExit"}, "isolated"),
        ({"n0": [net(1)]}, {}, "suspect"),
    ],
)
def test_a_restart_in_place_needs_nothing_worse_on_the_pod(worse: Any, labels: Any, expected: str) -> None:
    own = fault(0, "80C98001", "RestartBusiness", at=NOW - 5)
    faults = {"n0": [own, *worse["n0"]]}
    notes = {"recover-strategy": "recover-in-place"}
    pods = job({"n0": [0, 1], "n1": [0, 1]}, annotations=notes, labels=labels)
    assert state(step(faults, pods=pods, objects=()))[0] == expected


def test_a_restart_in_place_needs_a_healthy_first_pod() -> None:
    notes = {"recover-strategy": "recover-in-place"}
    faults = {"n1": [fault(0, "80C98001", "RestartBusiness", at=NOW - 5)], "n0": [fault(0, "80DF8402", "RestartNPU")]}
    pods = job({"n0": [0, 1], "n1": [0, 1]}, annotations=notes)
    assert state(step(faults, pods=pods, objects=()), "n1")[0] == "isolated"


@pytest.mark.parametrize("code", ["80E01801", "8C1F860B"])
def test_a_step_can_be_retried_for_ten_seconds(code: str) -> None:
    notes = {"recover-strategy": "retry,recover"}
    assert ridden("RestartBusiness", 10, notes=notes, code=code) == "suspect"
    assert ridden("RestartBusiness", 10.001, notes=notes, code=code) == "isolated"
    assert ridden("RestartBusiness", 1, notes={"recover-strategy": "recover"}, code=code) == "isolated"


def test_a_policy_that_changes_the_level_changes_what_is_tolerated() -> None:
    rule = document("FaultPolicy", "p", levels={"80C98001": "RestartRequest"})
    notes = {FILTER_LEVEL: "RestartRequest:600"}
    faults = {"n0": [fault(0, "80C98001", "RestartNPU", at=NOW - 300)]}
    pods = job({"n0": [0, 1]}, annotations=notes)
    assert state(step(faults, pods=pods, objects=(), policies=[rule]))[0] == "suspect"
