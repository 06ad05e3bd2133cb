"""Chips healed under their jobs: the conditions, orders and signals, and the end of every episode."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest

from belay.engine.documents import Desired
from belay.engine.model import action_documents
from belay.engine.model import in_place_recovery as words
from belay.engine.model.actions import EvictPod, ResetChips, SignalJob
from belay.engine.model.cluster import AgentReport, Observed, Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import Healing, History, JobMemory
from belay.engine.model.plan import Plan
from belay.engine.plan import plan
from belay.engine.wire import resetinfo
from tests.worlds import NOW, agent, desired, document, fault, node, observed, orders, pod, report, reset_order

ALL = tuple(f"Ascend910-{i}" for i in range(8))
MS = int(NOW * 1000)
KEY = "train/AscendJob/j"
TOLERATE = {
    level: {"training": "tolerate"} for level in ("RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU")
}


def policy(**more: Any) -> Desired:
    return desired(document("FaultPolicy", "heal", actions=TOLERATE, **more))


def worker(rank: int, where: str, chips: Any = range(8), **more: Any) -> Pod:
    labels = {"fault-scheduling": "force"} | more.pop("labels", {})
    return pod(f"j-{rank}", node=where, chips=chips, owner=("AscendJob", "j"), labels=labels, rank=rank, **more)


def config(ranks: Any = (), retry: int = 0, **labels: str) -> dict[ObjectKey, Any]:
    body = {"RankList": list(ranks), "UpdateTime": 0, "RetryTime": retry}
    metadata = {"namespace": "train", "name": "reset-config-j", "labels": labels or {"reset": "true"}}
    raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"reset.json": json.dumps(body)}}
    return {ObjectKey("v1", "ConfigMap", "train", "reset-config-j"): raw}


def world(
    level: str = "RestartNPU",
    *,
    pods: Any = None,
    faults: Any = None,
    other: Any = (),
    configs: Any = None,
    agents: Any = None,
    update: float = NOW - 2,
    **more: Any,
) -> Observed:
    """Nodes n0 and n1, each with one worker of job j on all chips; chip 3 of n0 is faulty."""
    bad = [fault(3, level=level)] if faults is None else faults
    reports = [report("n0", faults=bad, update_time=update), report("n1", faults=other, update_time=update)]
    pods = [worker(0, "n0"), worker(1, "n1")] if pods is None else pods
    return observed(
        [node("n0"), node("n1")], reports, pods, agents=[agent("n0"), agent("n1")] if agents is None else agents,
        objects=(config() if configs is None else configs).values(), **more,
    )  # fmt: skip


def resets(made: Plan) -> list[ResetChips]:
    return [a for a in made.actions if isinstance(a, ResetChips)]


def evicted(made: Plan) -> set[str]:
    return {a.pod for a in made.actions if isinstance(a, EvictPod)}


def signals(made: Plan) -> list[SignalJob]:
    return [a for a in made.actions if isinstance(a, SignalJob)]


def rank_list(signal: SignalJob) -> list[dict[str, Any]]:
    return list(action_documents.document(signal)["preconditions"]["rankList"])


def healing(made: Plan) -> Healing | None:
    found: JobMemory | None = made.history.jobs.get(KEY)
    return found.healing if found else None


@pytest.mark.parametrize(
    ("level", "wanted"),
    [("RestartRequest", "restart_request"), ("RestartBusiness", "restart"), ("RestartNPU", "reset")],
)
def test_an_episode_begins_with_one_order_for_the_ring(level: str, wanted: str) -> None:
    made = plan(policy(), world(level), NOW)
    (order,) = resets(made)
    assert (order.node, order.chips, order.epoch, order.reason) == ("n0", ALL, 1, "OnlineReset")
    assert action_documents.document(order)["preconditions"] == {
        "epochAbove": 0, "idle": False, "job": KEY, "notBefore": MS + 30_000,
        "online": {"pod": "train/j-0", "uid": "uid-train-j-0", "policy": wanted, "healSeconds": 15, "bootSeconds": 150},
    }  # fmt: skip
    assert not evicted(made) and not signals(made)
    episode = healing(made)
    assert episode is not None and (episode.node, episode.chips, episode.policy) == ("n0", tuple(range(8)), wanted)


def test_without_the_policy_jobs_are_rescheduled() -> None:
    made = plan(desired(), world(), NOW)
    assert evicted(made) == {"j-0", "j-1"} and not resets(made)


def test_a_chip_that_waits_for_its_reset_keeps_its_job() -> None:
    made = plan(policy(), world("FreeRestartNPU"), NOW)
    assert not resets(made) and not evicted(made) and healing(made) is None
    assert [c.state for c in made.chips if c.chip == "Ascend910-3" and c.node == "n0"] == ["isolated"]


@pytest.mark.parametrize("level", ["SeparateNPU", "ManuallySeparateNPU"])
def test_what_no_reset_heals_is_rescheduled(level: str) -> None:
    made = plan(policy(), world(faults=[fault(3), fault(4, "80E18000", level)]), NOW)
    assert evicted(made) == {"j-0", "j-1"} and not resets(made)


INELIGIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "no reset ConfigMap": ({"configs": {}}, "no ConfigMap train/reset-config-j"),
    "label missing": ({"configs": config(other="x")}, "no ConfigMap train/reset-config-j"),
    "less than a ring": (
        {"pods": [worker(0, "n0", range(4)), worker(1, "n1", range(4))]}, "does not hold every chip",
    ),
    "two nodes": ({"other": [fault(1)]}, "several nodes"),
    "process recovery": (
        {"pods": [worker(0, "n0", labels={"process-recover-enable": "on"}), worker(1, "n1")]}, "process recovery",
    ),
    "no agent": ({"agents": []}, "no live agent"),
    "silent agent": ({"agents": [agent("n0", at=NOW - 3600)]}, "no live agent"),
    "a pod that waits": ({"pods": [worker(0, "n0"), worker(1, "n1", phase="Pending")]}, "not all of its pods run"),
}  # fmt: skip


@pytest.mark.parametrize("case", INELIGIBLE, ids=str)
def test_a_job_that_cannot_be_healed_in_place_is_rescheduled_with_the_reason(case: str) -> None:
    options, why = INELIGIBLE[case]
    made = plan(policy(), world(**options), NOW)
    assert not resets(made) and "j-0" in evicted(made) and healing(made) is None
    assert any(why in d.message and "rescheduled" in d.message for d in made.diagnostics)


def test_the_attempts_of_a_group_bound_its_episodes() -> None:
    none = plan(policy(attempts={"reset": {"max": 0, "window": "6h"}}), world(), NOW)
    assert not resets(none) and evicted(none) == {"j-0", "j-1"}


def test_a_deferred_order_signals_no_rank() -> None:
    limit = {"actions": ["ResetChips"], "per": "cluster", "max": 0, "window": "1h"}
    tight = desired(document("FaultPolicy", "heal", actions=TOLERATE), document("SafetyBudget", "b", limits=[limit]))
    made = plan(tight, world(), NOW)
    assert not resets(made) and not signals(made) and healing(made) is None and not evicted(made)
    assert any(isinstance(d.action, ResetChips) for d in made.deferred)


def test_a_job_waits_for_a_budget_for_a_limited_time() -> None:
    limit = {"actions": ["ResetChips"], "per": "cluster", "max": 0, "window": "1h"}
    tight = desired(document("FaultPolicy", "heal", actions=TOLERATE), document("SafetyBudget", "b", limits=[limit]))
    first = plan(tight, world(), NOW)
    soon = world(history=first.history, update=NOW + 800, agents=[agent("n0", at=NOW + 800)])
    assert not evicted(plan(tight, soon, NOW + 810))
    late = plan(tight, world(history=first.history, update=NOW + 900, agents=[agent("n0", at=NOW + 900)]), NOW + 901)
    assert evicted(late) == {"j-0", "j-1"}


# ---- the course of an episode


EPISODE = Healing(
    node="n0", pod="uid-train-j-0", chips=tuple(range(8)), epochs={str(c): 1 for c in range(8)}, initial="reset",
    policy="reset", since=MS - 60_000, codes=("80C98001",),
)  # fmt: skip


def under_way(episode: Healing = EPISODE, *, agents: Any = None, standing: bool = True, **more: Any) -> Observed:
    memory = History(jobs={KEY: JobMemory(uid="uid-train-j", healing=episode)})
    order = reset_order(1, range(8))
    given = [orders("n0", resets=dict.fromkeys(range(8), order), issued=NOW - 60)] if standing else []
    return world(agents=agents, standing=given, history=memory, **more)


def rows(status: str, policy: str, initial: str = "reset", code: str = "80C98001") -> list[dict[str, Any]]:
    codes = [code] if code else []
    return [resetinfo.rank(c, c, status=status, policy=policy, initial=initial, codes=codes) for c in range(8)]


def done(result: str, *, stage: str = "", epoch: int = 1) -> list[AgentReport]:
    mine = agent("n0", done=dict.fromkeys(range(8), (epoch, result)) if result else None)
    chips = {c: msgspec.structs.replace(row, reset_stage=stage) for c, row in mine.chips.items()}
    return [msgspec.structs.replace(mine, chips=chips), agent("n1")]


def test_managers_are_signalled_to_stop_every_rank_of_the_ring() -> None:
    made = plan(policy(), under_way(), NOW)
    (told,) = signals(made)
    assert (told.namespace, told.name, told.signal, told.ranks) == ("train", "j", "unrecovered", tuple(range(8)))
    assert rank_list(told) == rows("unrecovered", "reset")
    assert rank_list(told)[3] == {
        "RankId": 3, "LogicId": 3, "Status": "unrecovered", "Policy": "reset", "InitialPolicy": "reset",
        "ErrorCode": [], "ErrorCodeHex": "80C98001",
    }  # fmt: skip
    assert not resets(made) and not evicted(made)
    again = plan(policy(), under_way(configs=config(rows("unrecovered", "reset"))), NOW)
    assert not signals(again) and not resets(again) and not evicted(again)


def test_ranks_follow_the_pods_rank() -> None:
    episode = msgspec.structs.replace(EPISODE, node="n1", pod="uid-train-j-1")
    made = plan(policy(), under_way(episode, faults=[], other=[fault(3)], standing=False), NOW)
    assert signals(made)[0].ranks == tuple(range(8, 16))


@pytest.mark.parametrize(
    ("initial", "stage", "policy_now"),
    [
        ("restart_request", "codes", "restart_request"), ("restart_request", "processes", "reset"),
        ("restart", "processes", "restart"), ("restart", "healing", "restart"), ("restart", "resetting", "reset"),
    ],
)  # fmt: skip
def test_a_fault_that_does_not_heal_becomes_a_reset(initial: str, stage: str, policy_now: str) -> None:
    episode = msgspec.structs.replace(EPISODE, initial=initial, policy=initial)
    before = config(rows("unrecovered", initial, initial))
    made = plan(policy(), under_way(episode, agents=done("", stage=stage), configs=before), NOW)
    told = [rank_list(s) for s in signals(made)]
    assert told == ([] if policy_now == initial else [rows("unrecovered", "reset", initial)])


def test_success_is_signalled_and_forgotten_once_the_report_is_clean() -> None:
    before = config(rows("unrecovered", "reset"))
    made = plan(policy(), under_way(agents=done("ok"), configs=before, faults=[]), NOW)
    (told,) = signals(made)
    assert told.signal == "recovered" and rank_list(told) == rows("recovered", "reset", code="")
    ended = healing(made)
    assert ended is not None and ended.ended == "ok"
    after = config(rows("recovered", "reset", code=""))
    last = plan(policy(), under_way(ended, agents=done("ok"), configs=after, faults=[]), NOW + 5)
    assert not signals(last) and healing(last) is None and not evicted(last)


@pytest.mark.parametrize("result", ["failed: 3 processes did not end in 60 s", "refused: the order has expired"])
def test_failure_isolates_and_reschedules(result: str) -> None:
    before = config(rows("unrecovered", "reset"))
    made = plan(policy(), under_way(agents=done(result), configs=before), NOW)
    (told,) = signals(made)
    assert told.signal == "failed" and rank_list(told) == rows("failed", "isolate")
    assert evicted(made) == {"j-0", "j-1"} and not resets(made)


def test_an_unanswered_order_ends_in_rescheduling() -> None:
    episode = msgspec.structs.replace(EPISODE, since=MS - 900_001)
    made = plan(policy(), under_way(episode, standing=False), NOW)
    assert [s.signal for s in signals(made)] == ["failed"] and evicted(made) == {"j-0", "j-1"}


def test_a_fault_elsewhere_meanwhile_ends_it() -> None:
    made = plan(policy(), under_way(other=[fault(1)]), NOW)
    assert [s.signal for s in signals(made)] == ["failed"] and evicted(made) == {"j-0", "j-1"} and not resets(made)


def test_a_worse_fault_meanwhile_ends_it() -> None:
    made = plan(policy(), under_way(faults=[fault(3), fault(4, "80E18000", "SeparateNPU")]), NOW)
    assert [s.signal for s in signals(made)] == ["failed"] and evicted(made) == {"j-0", "j-1"}


def test_the_status_is_cleared_before_new_pods_run() -> None:
    episode = msgspec.structs.replace(EPISODE, ended="failed", policy="isolate")
    fresh = [worker(0, "n1", uid="new-0"), worker(1, "n0", uid="new-1")]
    left = config(rows("failed", "isolate"))
    made = plan(policy(), under_way(episode, pods=fresh, faults=[], configs=left, standing=False), NOW)
    assert [s.signal for s in signals(made)] == ["clear"]
    last = plan(policy(), under_way(episode, pods=fresh, faults=[], standing=False), NOW)
    assert not signals(last) and healing(last) is None


def test_an_episode_orders_once() -> None:
    """Whatever is read again and however often: no second order for an episode."""
    seen = under_way(configs=config(rows("unrecovered", "reset")))
    for later in range(0, 800, 50):
        made = plan(policy(), seen, NOW + later)
        assert not resets(made)


def test_times_come_from_the_clusters_own_setting() -> None:
    text = json.dumps({"GraceTolerance": {"WaitProcessReadCMTime": 7, "WaitDeviceResetTime": 999,
                                          "WaitFaultSelfHealingTime": 3}})  # fmt: skip
    key = ObjectKey("v1", "ConfigMap", "kube-system", "mindx-dl-fault-config")
    raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": key.name},
           "data": {"faultCustomization.json": text}}  # fmt: skip
    (order,) = resets(plan(policy(), world(configs=config() | {key: raw}), NOW))
    assert order.not_before == MS + 7000
    assert order.online is not None
    assert (order.online.heal_seconds, order.online.boot_seconds) == (3, 150)  # out of range: the default


# ---- what is written


def told(before: Any, signal: str, ranks: Any) -> dict[str, Any]:
    data = resetinfo.with_signal(before, signal, (), 99, rank_list=ranks)
    assert data is not None
    return data


def test_the_first_status_of_an_episode_counts_one_more_restart() -> None:
    (raw,) = config(retry=4).values()
    first = told(raw, "unrecovered", rows("unrecovered", "restart", "restart"))
    body = json.loads(first["reset.json"])
    assert (body["RetryTime"], body["UpdateTime"], first["restartType"]) == (5, 99, "hotReset")
    raw = {**raw, "data": first}
    later = told(raw, "unrecovered", rows("unrecovered", "reset", "restart"))
    assert json.loads(later["reset.json"])["RetryTime"] == 5 and later["restartType"] == "hotReset"
    raw = {**raw, "data": later}
    assert resetinfo.with_signal(raw, "unrecovered", (), 100, rank_list=rows("unrecovered", "reset", "restart")) is None
    end = told(raw, "recovered", rows("recovered", "reset", "restart", ""))
    assert json.loads(end["reset.json"])["RetryTime"] == 5


def test_older_managers_read_the_unhealthy_ranks() -> None:
    """Byte for byte, with the CheckCode over the inner object in the order of its fields."""
    raw: dict[str, Any] = {"metadata": {"name": "fault-config-j", "namespace": "train"}, "data": {"mine": "kept"}}

    def after(signal: str, ranks: Any, now: int) -> dict[str, str] | None:
        data = resetinfo.with_legacy_signal(raw, signal, ranks, now)
        if data is not None:
            raw["data"] = data
        return data

    assert after("clear", (), 5) is None and after("fault", (1,), 5) is None, "nothing of an episode"
    begun = after("unrecovered", (3, 1, 3), 7)
    text = '{"FaultRank":[1,3],"UpdateTime":7}'
    code = hashlib.sha256(text.encode()).hexdigest()
    assert begun == {"mine": "kept", "fault-npus": text, "checkCode": code}
    assert after("unrecovered", (1, 3), 8) is None and after("failed", (1, 3), 8) is None
    ended = after("recovered", (1, 3), 9)
    assert ended is not None and ended["fault-npus"] == '{"FaultRank":[],"UpdateTime":9}'
    assert after("clear", (), 10) is None
    for broken in ('{"FaultRank":[],"UpdateTime":1}', "[", "{}"):  # a CheckCode of something else, half a text, nothing
        raw["data"] = {"fault-npus": broken, "checkCode": "00"}
        mended = after("clear", (), 11)
        assert mended is not None and mended["fault-npus"] == '{"FaultRank":[],"UpdateTime":11}'


def test_nothing_is_signalled_after_an_isolation() -> None:
    (raw,) = config(rows("failed", "isolate")).values()
    with pytest.raises(resetinfo.WireError, match="isolated"):
        resetinfo.with_signal(raw, "recovered", (), 99, rank_list=rows("recovered", "reset"))
    cleared = told(raw, "clear", ())
    assert json.loads(cleared["reset.json"])["RankList"] == []


def test_the_policy_of_a_task_is_its_gravest() -> None:
    assert words.gravest(["", "ignore", "restart", "restart_request"]) == "restart"
    assert words.gravest([]) == "" and words.policy_of("nonsense") == "isolate"
    assert [words.POLICIES.index(words.policy_of(level)) for level in (
        "NormalNPU", "NotHandleFault", "RestartRequest", "RestartBusiness", "FreeRestartNPU", "RestartNPU",
        "PreSeparateNPU")] == [0, 1, 2, 3, 4, 5, 6]  # fmt: skip
