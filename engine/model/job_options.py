"""What a job says by labels and annotations, read once and typed.

Users write these on jobs, PodGroups and pod templates; recovery and ClusterD add theirs to PodGroups. Text becomes a
value here and nowhere else in the planner, so that no two decisions read one option differently. What a pod says for
itself is in ``belay.engine.model.pod_options``.

Source: MindCluster, docs/zh/scheduling/06_api/15_yaml_configuration.md and 12_k8s.md; names in ``labels``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from belay.engine.model.labels import (
    AFFINITY_CONFIG,
    APP_LABEL,
    DISTRIBUTED_LABEL,
    ELASTIC_SCHEDULING,
    FAULT_RETRY_TIMES,
    FAULT_SCHEDULING,
    FRAMEWORK_LABEL,
    GROW_AFTER,
    INFERENCE_SERVICE_ID,
    MIN_REPLICAS,
    NPU_310_STRATEGY,
    OME_SERVICE,
    POD_RESCHEDULING,
    PODGROUP_SCHED_ENABLE,
    PROCESS_RECOVER_ENABLE,
    PROCESS_RECOVER_STRATEGY,
    PROCESS_RECOVERIES,
    RA_BLOCK,
    RECOVER_POLICY_PATH,
    RECOVER_STRATEGY,
    RECOVERY_LEVEL,
    RING_CONTROLLER,
    SCALEOUT_TYPE,
    SCALING_GROUP,
    SCALING_RULE,
    SCHEDULE_MIN_AVAILABLE,
    SCHEDULE_POLICY,
    SCHEDULE_UB_MEMORY,
    SERVICE_JOB_ID,
    SHARD_LABEL,
    SHARE_CORES,
    SHARE_MEMORY,
    SHARE_POLICY,
    SP_BLOCK,
    SP_FIT,
    SUB_HEALTHY_STRATEGY,
    SUPER_POD_AFFINITY,
    TOR_AFFINITY,
    VOLCANO_PREEMPTABLE,
    VOLCANO_SCHEDULE_PLUGIN,
    WAIT_RESCHEDULE_TIMEOUT,
)
from belay.engine.model.quantities import whole_number

_RESCHEDULES: Final = frozenset({"grace", "force", "external-grace", "external-force"})
_SUB_HEALTH: Final = frozenset({"graceExit", "forceExit", "hotSwitch"})


class BlockSize(NamedTuple):
    """A number of chips: as it is ``written``, without the spaces around it; ``chips`` is 0 where that is no number."""

    written: str
    chips: int


class JobOptions(msgspec.Struct, frozen=True):
    """A job's options. ``None`` and empty texts: not stated; a switch is on only by its own word."""

    # rescheduling

    #: ``grace``, ``force``, ``external-grace``, ``external-force``; anything else is ``off``.
    fault_scheduling: str
    #: Failures of its own that are answered by new pods; 0 where none is stated, or no number of at most nine digits.
    fault_retry_times: int
    #: ``graceExit``, ``forceExit``, ``hotSwitch``; anything else is ``ignore``.
    sub_health: str
    #: Only faulty pods go.
    pod_rescheduling: bool
    #: How far a restart may widen: ``pod`` or ``job``; an annotation counts before the label.
    recover_policy_path: str
    #: A Volcano Job may run with fewer pods, at least ``min_replicas`` of them (0: no usable number).
    elastic_scheduling: bool
    min_replicas: int
    #: Duration for which room must last before a small job grows, or ``off``, as written.
    grow_after: str

    # recovery of processes

    #: ``on``, ``pause`` or ``off``, as written; ``off`` where it is absent.
    process_recovery: str
    #: The strategies that the job allows, in its order; empty only where the annotation is.
    recover_strategies: tuple[str, ...]
    #: Seconds that a job waits for new pods before it trains with fewer; None without a number of at most four digits.
    wait_reschedule: int | None
    #: The level of recovery that was chosen by cost, while one is open.
    recovery_level: str | None
    #: The strategy that process recovery runs now.
    running_strategy: str
    #: Summaries of recoveries, as JSON; None where nothing reports them.
    recovery_summaries: str | None

    # placement

    schedule_policy: str
    #: Chips of the job that stay in one super pod, in one rack.
    sp_block: BlockSize | None
    ra_block: BlockSize | None
    #: ``level1=x,level2=y``, as written.
    affinity_config: str | None
    sp_fit: str
    #: ``true``: the job stays in one UBMem domain.
    ub_memory: str | None
    #: Its blocks may be spread where they do not fit.
    soft_affinity: bool
    #: ``large-model-schema``, ``normal-schema``, as written; ``null`` where it is absent.
    switch_affinity: str
    #: A job on Atlas 300I Duo may spread over servers.
    distributed: bool
    #: ``chip`` or ``card``, as written; ``chip`` where it is absent.
    npu_310_strategy: str
    duo: bool
    #: The kind of chips of jobs that ask for AI cores.
    ring_controller: str
    #: All pods of the job are scored together.
    batch_scoring: bool
    #: The NPU resource without its prefix, where the job names it.
    schedule_plugin: str
    #: Pods that start together, as written.
    min_available: str | None
    #: Percent of AI cores, MiB of memory and policy of a shared chip, as written.
    share_cores: str | None
    share_memory: str | None
    share_policy: str | None
    #: ``false`` keeps its pods where they run; an annotation.
    preemptable: str | None
    #: Whether it says by label or annotation if it may be preempted.
    states_preemption: bool
    shard: str

    # what runs in it

    framework: str
    app: str | None
    #: The inference service that a job of MindIE belongs to.
    service_job_id: str | None
    inference_service_id: str
    #: A service of OME.
    ome: bool
    scaling_rule: str | None
    scaling_group: str
    #: ``ROCE``, ``UBOE``, in capitals; empty for the default.
    scaleout: str

    @property
    def recovers_processes(self) -> bool:
        """Whether process recovery is on."""
        return self.process_recovery == "on"

    @property
    def is_mindie(self) -> bool:
        """Whether the job is an inference instance (labels ``jobID`` and ``app``)."""
        return bool(self.service_job_id and self.app)

    @property
    def shares_chips(self) -> bool:
        """Whether pods share chips by quota."""
        return bool(self.share_cores and self.share_memory and self.share_policy)


def read_options(labels: Mapping[str, str], annotations: Mapping[str, str]) -> JobOptions:
    """The options of a job with these labels and annotations."""
    reschedules = labels.get(FAULT_SCHEDULING, "off")
    sub_health = labels.get(SUB_HEALTHY_STRATEGY, "ignore")
    return JobOptions(
        fault_scheduling=reschedules if reschedules in _RESCHEDULES else "off",
        fault_retry_times=whole_number(labels.get(FAULT_RETRY_TIMES, "")) or 0,
        sub_health=sub_health if sub_health in _SUB_HEALTH else "ignore",
        pod_rescheduling=labels.get(POD_RESCHEDULING) == "on",
        recover_policy_path=annotations.get(RECOVER_POLICY_PATH) or labels.get(RECOVER_POLICY_PATH, ""),
        elastic_scheduling=labels.get(ELASTIC_SCHEDULING) == "on",
        min_replicas=whole_number(annotations.get(MIN_REPLICAS, "")) or 0,
        grow_after=annotations.get(GROW_AFTER, "").strip(),
        process_recovery=labels.get(PROCESS_RECOVER_ENABLE, "off"),
        recover_strategies=read_strategies(annotations),
        wait_reschedule=whole_number(annotations.get(WAIT_RESCHEDULE_TIMEOUT, "").strip(), digits=4),
        recovery_level=annotations.get(RECOVERY_LEVEL),
        running_strategy=annotations.get(PROCESS_RECOVER_STRATEGY, ""),
        recovery_summaries=annotations.get(PROCESS_RECOVERIES),
        schedule_policy=annotations.get(SCHEDULE_POLICY, ""),
        sp_block=_block_size(annotations.get(SP_BLOCK)),
        ra_block=_block_size(annotations.get(RA_BLOCK)),
        affinity_config=annotations.get(AFFINITY_CONFIG),
        sp_fit=annotations.get(SP_FIT, ""),
        ub_memory=annotations.get(SCHEDULE_UB_MEMORY),
        soft_affinity=labels.get(SUPER_POD_AFFINITY) == "soft",
        switch_affinity=labels.get(TOR_AFFINITY, "null"),
        distributed=labels.get(DISTRIBUTED_LABEL) == "true",
        npu_310_strategy=labels.get(NPU_310_STRATEGY, "chip"),
        duo=labels.get("duo") == "true",
        ring_controller=labels.get(RING_CONTROLLER, ""),
        batch_scoring=labels.get(PODGROUP_SCHED_ENABLE) == "true",
        schedule_plugin=annotations.get(VOLCANO_SCHEDULE_PLUGIN, ""),
        min_available=annotations.get(SCHEDULE_MIN_AVAILABLE),
        share_cores=labels.get(SHARE_CORES),
        share_memory=labels.get(SHARE_MEMORY),
        share_policy=labels.get(SHARE_POLICY),
        preemptable=annotations.get(VOLCANO_PREEMPTABLE),
        states_preemption=VOLCANO_PREEMPTABLE in annotations or VOLCANO_PREEMPTABLE in labels,
        shard=labels.get(SHARD_LABEL, ""),
        framework=labels.get(FRAMEWORK_LABEL, ""),
        app=labels.get(APP_LABEL),
        service_job_id=labels.get(SERVICE_JOB_ID),
        inference_service_id=labels.get(INFERENCE_SERVICE_ID, ""),
        ome=OME_SERVICE in labels,
        scaling_rule=labels.get(SCALING_RULE),
        scaling_group=labels.get(SCALING_GROUP, ""),
        scaleout=labels.get(SCALEOUT_TYPE, "").strip().upper(),
    )


def read_strategies(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies of process recovery that a job allows, in its order; empty only where the annotation is."""
    text = annotations.get(RECOVER_STRATEGY, "")
    return tuple(word.strip() for word in text.split(",")) if text else ()


def names_scaling_rule(labels: Mapping[str, str]) -> bool:
    """Whether a job names a scaling rule; cheaper than all options where most of thousands name none."""
    return SCALING_RULE in labels


def stated_chips(block: BlockSize | None, default: int) -> int:
    """The chips of a block; ``default`` where the job states none."""
    return block.chips if block is not None and block.written else default


def _block_size(text: str | None) -> BlockSize | None:
    if text is None:
        return None
    written = text.strip()
    return BlockSize(written, whole_number(written) or 0)
