"""The facts of a job and the faults of its ranks, for its conversation. Pure.

Rules of ClusterD (component/clusterd/pkg/application/recover, faultmanager/jobprocess): which faults begin a recovery,
when a step may be retried after a fault, when processes may restart in their pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.model import stress
from belay.engine.model.attribution import HARMLESS, SUB_HEALTHY, UNHEALTHY, FaultRank
from belay.engine.model.cluster import Pod
from belay.engine.model.costs import narrowed
from belay.engine.model.labels import (
    BACKUP_SOURCE_POD,
    FAULT_SCHEDULING,
    FRAMEWORK_LABEL,
    POD_RESCHEDULING,
    PROCESS_CONFIRM_FAULT,
    PROCESS_RECOVER_ENABLE,
    PROCESS_RECOVER_STRATEGY,
    PROCESS_RECOVERIES,
    PROCESS_RESULT_FAULT,
    RANK_TABLE_READY,
    RECOVER_STRATEGY,
    RECOVERY_LEVEL,
    SUB_HEALTHY_STRATEGY,
    WAIT_RESCHEDULE_TIMEOUT,
)
from belay.engine.model.levels import (
    RESTART_BUSINESS,
    RESTART_REQUEST,
    SUB_HEALTH,
)
from belay.engine.model.recovery import Conversation, FaultyRank, JobFacts, RecoveryStrategy, steps, summary
from belay.engine.model.recovery.choice import dump_only
from belay.engine.model.recovery.conversation import Faults, SubHealthy, merged
from belay.engine.model.recovery.protocol import HCCL, NORMAL, RESCHEDULE_LIMIT, RESCHEDULE_RANGE, UCE
from belay.engine.serve.grpc.job_view import JobFaults, JobView
from belay.engine.wire import resetinfo
from belay.engine.wire.errors import WireError
from belay.engine.wire.recoveryrecord import Record

#: Codes of faults after which a step may be retried, and the kind of fault.
RETRY_CODES: Final = {"80E01801": UCE, "8C1F860B": HCCL}
#: Such a fault may begin a retry for this long after it was raised, in ms.
RETRY_MS: Final = 10_000
_RESTARTS: Final = frozenset({RESTART_REQUEST, RESTART_BUSINESS})
_ONLINE: Final = frozenset({"reset", "restart"})

Config = Mapping[str, Any]


def facts_of(
    view: JobView | None,
    record: Record,
    hit: JobFaults,
    *,
    reset_config: Config | None = None,
    mindio_wait: int | None = None,
    super_pod: bool = False,
) -> JobFacts:
    """The job as the cluster shows it; ``hit`` is its health and the faults of its ranks."""
    conversation = record.conversation
    if view is None:
        return JobFacts(exists=False)
    notes, labels = view.annotations, view.labels
    health, records = hit
    per_pod = max(1, view.chips_per_pod)
    faulty = fault_pods(conversation.ranks, per_pod)
    pods = view.by_rank()
    configured = configured_of(notes)
    eligible, clear = _in_place(faulty, records, per_pod, labels.get(SUB_HEALTHY_STRATEGY, "ignore"))
    return JobFacts(
        configured=configured,
        sub_health=labels.get(SUB_HEALTHY_STRATEGY, "ignore"),
        pod_rescheduling=labels.get(POD_RESCHEDULING) == "on",
        job_rescheduling=labels.get(FAULT_SCHEDULING) in ("grace", "force"),
        platform=notes.get(PROCESS_RECOVER_STRATEGY),
        confirm_fault=notes.get(PROCESS_CONFIRM_FAULT, ""),
        result_fault=notes.get(PROCESS_RESULT_FAULT, ""),
        rank_table_ready=notes.get(RANK_TABLE_READY),
        running=view.running,
        replaced=all(_replaced(pods.get(rank), record.uids.get(str(rank), "")) for rank in faulty),
        changed=tuple(str(rank) for rank in faulty if _changed(pods.get(rank), record.uids.get(str(rank), ""))),
        health=UNHEALTHY if record.software else health,
        framework=labels.get(FRAMEWORK_LABEL, "pytorch"),
        devices_per_pod=per_pod,
        wait_reschedule=wait_of(notes),
        mindio_wait=mindio_wait,
        in_place=eligible and RecoveryStrategy.IN_PLACE in configured,
        in_place_clear=clear,
        rank_zero_faulty=0 in faulty,
        fault_pods=tuple(pods[rank].name for rank in faulty if rank in pods),
        super_pod=super_pod,
        hot_reset=_hot_reset(reset_config),
        backup_running=_backup_runs(view, conversation.hot_pod),
        old_pod_gone=_gone(view, conversation.hot_pod, record.uids.get(conversation.hot_pod, "")),
        nic_switched=conversation.operation is not None and conversation.operation.kind == "nic",
        paused=labels.get(PROCESS_RECOVER_ENABLE) == "pause",
        codes=_codes(conversation, records),
        accounts=notes.get(PROCESS_RECOVERIES, ""),
    )


def _codes(conversation: Conversation, records: Sequence[FaultRank]) -> tuple[str, ...]:
    """The codes of the hardware faults on the ranks of a conversation."""
    ranks = {rank.rank for rank in conversation.ranks}
    if not ranks:
        return ()
    found = {
        code for row in records if is_relevant(row) and str(row.rank) in ranks for code in row.code.split(",") if code
    }
    return tuple(sorted(found)[: summary.MAX_CODES])


def uids_after(
    view: JobView | None, before: Conversation, after: Conversation, uids: Mapping[str, str]
) -> dict[str, str]:
    """The pod uids by which replaced pods are recognised, once a conversation went from ``before`` to ``after``."""
    if not after.ranks and not after.hot_pod:
        return {}
    if after.ranks and (not before.ranks or after.hot_pod != before.hot_pod):
        return _uids(view, after.hot_pod)
    if len(after.ranks) > len(before.ranks):
        return {**_uids(view, after.hot_pod), **uids}
    return dict(uids)


def _uids(view: JobView | None, hot: str) -> dict[str, str]:
    if view is None:
        return {}
    found = {str(rank): pod.uid for rank, pod in view.by_rank().items()}
    return found | {pod.name: pod.uid for pod in view.pods if pod.name == hot}


def configured_of(notes: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies in annotation ``recover-strategy`` without unknown ones; ``exit`` is always included.

    Where the planner chose a level by cost (``belay.dev/recovery-level``), finer strategies than that are left out.
    """
    given = {part.strip() for part in notes.get(RECOVER_STRATEGY, "").split(",")}
    found = tuple(
        strategy.value for strategy in RecoveryStrategy if strategy in given or strategy is RecoveryStrategy.EXIT
    )
    return narrowed(found, notes.get(RECOVERY_LEVEL, ""))


def wait_of(notes: Mapping[str, str]) -> int:
    """Annotation ``wait-reschedule-timeout`` in seconds; the default where it is out of range."""
    text = notes.get(WAIT_RESCHEDULE_TIMEOUT, "").strip()
    low, high = RESCHEDULE_RANGE
    value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else 0
    return value if low <= value <= high else RESCHEDULE_LIMIT


def fault_pods(ranks: Sequence[FaultyRank], per_pod: int) -> list[int]:
    """The ranks of the pods with faulty processes, ascending."""
    return sorted({int(rank.rank) // per_pod for rank in ranks if rank.rank.isascii() and rank.rank.isdecimal()})


def new_faults(
    view: JobView, record: Record, facts: JobFacts, hit: JobFaults, now_ms: int
) -> Faults | SubHealthy | None:
    """The newest faults of the job's hardware as an input for its recovery; None when nothing changed."""
    health, records = hit
    conversation = record.conversation
    test = stress.stress_test_of(conversation)
    if test is not None:
        records = tuple(row for row in records if not stress.caused_by_test(test, row.node, row.code))
    if health == SUB_HEALTHY:
        if facts.sub_health == "hotSwitch":
            return _hot(view, records, facts.devices_per_pod)
        if facts.sub_health != "graceExit" or not dump_only(facts):
            records = ()
    else:
        # a chip that is merely sub-healthy does not leave with one that broke
        records = tuple(row for row in records if row.level != SUB_HEALTH)
    retries = RecoveryStrategy.RETRY in facts.configured
    retried = steps.read(view.annotations) if retries else None
    ranks = merged((), tuple(_rank(row, conversation, retries, retried, now_ms) for row in records if is_relevant(row)))
    if set(ranks) == set(conversation.seen):
        return None
    return Faults(ranks)


def is_relevant(row: FaultRank) -> bool:
    """Whether recovery reacts to a fault. A lost node has no code: the surviving processes report it."""
    return bool(row.code) and row.level not in HARMLESS


def _rank(
    row: FaultRank, conversation: Conversation, retries: bool, retried: steps.StepRetries | None, now_ms: int
) -> FaultyRank:
    kind = RETRY_CODES.get(row.code.upper(), NORMAL) if retries else NORMAL
    rank = FaultyRank(str(row.rank), kind)
    fresh = not row.time_ms or now_ms - row.time_ms <= RETRY_MS
    fresh = fresh or (retried is not None and retried.retries(row.rank, row.time_ms, now_ms))
    return rank if kind == NORMAL or fresh or rank in conversation.seen else FaultyRank(rank.rank, NORMAL)


def _hot(view: JobView, records: Sequence[FaultRank], per_pod: int) -> SubHealthy | None:
    """The first sub-healthy pod that may move; the pod of rank 0 never does."""
    by_pod: dict[int, list[FaultyRank]] = {}
    for row in records:
        if is_relevant(row):
            by_pod.setdefault(row.rank // per_pod, []).append(FaultyRank(str(row.rank), NORMAL))
    moving = sorted(rank for rank in by_pod if rank)
    pods = view.by_rank()
    if not moving or moving[0] not in pods:
        return None
    first = moving[0]
    return SubHealthy(pods[first].name, merged((), tuple(by_pod[first])), pods=len(moving))


def _in_place(faulty: Sequence[int], records: Sequence[FaultRank], per_pod: int, sub_health: str) -> tuple[bool, bool]:
    """Whether restarting processes cures every fault, and whether the hardware faults are gone."""
    tolerated = HARMLESS | ({SUB_HEALTH} if sub_health == "ignore" else set())
    levels = {row.level for row in records if row.rank // per_pod in faulty and row.level not in tolerated}
    eligible = bool(faulty) and levels <= _RESTARTS and (bool(levels) or len(faulty) == 1)
    return eligible, not levels


def _replaced(pod: Pod | None, before: str) -> bool:
    return pod is not None and pod.phase == "Running" and pod.deleting is None and pod.uid != before


def _changed(pod: Pod | None, before: str) -> bool:
    return pod is not None and bool(before) and pod.uid != before


def _hot_reset(config: Config | None) -> bool:
    if config is None:
        return False
    try:
        body = resetinfo.read(config)
    except WireError:
        return False  # the write that follows reports the error
    return any(rank["Policy"] in _ONLINE for rank in body["RankList"])


def backup_of(view: JobView, source: str) -> Pod | None:
    """The backup pod of a hot switch."""
    return next((pod for pod in (*view.backups, *view.pods) if pod.annotations.get(BACKUP_SOURCE_POD) == source), None)


def _backup_runs(view: JobView, source: str) -> bool:
    backup = backup_of(view, source) if source else None
    return backup is not None and backup.phase == "Running" and backup.deleting is None


def _gone(view: JobView, name: str, uid: str) -> bool:
    return bool(name) and not any(pod.name == name and (not uid or pod.uid == uid) for pod in view.pods)


__all__ = [
    "RETRY_CODES",
    "backup_of", "configured_of", "is_relevant", "facts_of", "fault_pods", "new_faults",
    "uids_after", "wait_of",
]  # fmt: skip
