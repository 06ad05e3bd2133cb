"""Jobs whose pods get a part of a chip: vNPUs cut on demand (``huawei.com/npu-core``) and soft shares.

Sources: component/ascend-for-volcano/internal/npu/ascend310p/vnpu/job.go, ascend910/vnpu/job.go and
policy/chip1softsharedev/job.go; docs/zh/scheduling/04_usage/02_virtual_instance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from belay.engine.model.cluster import Pod
from belay.engine.model.job_options import JobOptions
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import (
    ASCEND_910,
    NPU,
    NPU_CORE,
    RING_CONTROLLER,
    SHARE_CORES,
    SHARE_MEMORY,
    SHARE_POLICY,
    VNPU_DVPP,
    VNPU_LEVEL,
)
from belay.engine.model.pending_reasons import INVALID_REQUEST, NOT_SUPPORTED
from belay.engine.model.quantities import signed_number
from belay.engine.plan.place.causes import CutByLayoutsOnly, IllegalCores, NotForCores, NumberWanted, UnknownLabel
from belay.engine.plan.place.handler import Refusal

if TYPE_CHECKING:
    from belay.engine.documents import Desired, InitParams, VNPUTemplates

#: Kind of chip that a request of AI cores means, by label.
KINDS: Final = {
    "ascend-910": "Ascend910",
    "ascend-910b": "Ascend910",
    NPU: "Ascend910",
    "ascend-310P": "Ascend310P",
}
SMALL_KIND: Final = "Ascend310P"
LOW, HIGH = "low", "high"
DVPP_NULL: Final = "null"
DVPP_VALUES: Final = (DVPP_NULL, "yes", "no")
SOFT_HANDLER: Final = "softshare"
SHARE_POLICIES: Final = ("fixed-share", "elastic", "best-effort")
#: Resources whose jobs are placed by ``huawei.com/schedule_policy``; 300I and 310P jobs ignore it.
BY_POLICY: Final = frozenset({ASCEND_910, NPU})
#: Devices that Kubernetes counts per softly shared chip.
FULL: Final = 100
#: MiB of memory that a share without any is advised to ask for; people know better.
LEAST_MEMORY: Final = 1024
NO_HANDLER: Final = "no policy handler registered, NPU type may be invalid"
ILLEGAL: Final = "InvalidResourceRequest"


@dataclass(frozen=True, slots=True)
class DynamicVNPU:
    """vNPUs that the device plugin cuts when the pod starts; ``kind`` is Ascend310P or Ascend910."""

    kind: str


@dataclass(frozen=True, slots=True)
class SoftShare:
    """A share of a chip per pod: ``cores`` percent of its AI cores, ``memory`` MiB; ``pods`` of the job ask for one."""

    cores: int
    memory: int
    policy: str
    pods: int


Sharing = DynamicVNPU | SoftShare


def of(
    gang: Gang,
    resource: str,
    pods: Iterable[Pod],
    count: int,
    desired: Desired,
    params: InitParams,
    *,
    policy: str,
) -> Sharing | Refusal | None:
    """The parts of chips that the job asks for, or why it can never be placed; None when its pods ask for whole chips.

    Args:
        pods: those that ask for the resource.
        count: how many pods of the job ask for it.
        policy: its ``huawei.com/schedule_policy``.
    """
    if resource == NPU_CORE:
        return _dynamic(gang, list(pods), desired, params)
    product = desired.product_for_policy(policy, resource) if policy and resource in BY_POLICY else None
    if product is None or product.spec.placement.handler != SOFT_HANDLER:
        return None
    return _soft(gang, list(pods), count, policy)


def level_of(pod: Pod) -> str:
    """Label ``vnpu-level``; any value but high means low."""
    return HIGH if pod.labels.get(VNPU_LEVEL) == HIGH else LOW


def dvpp_of(pod: Pod) -> str:
    """Label ``vnpu-dvpp``, null by default; an illegal value is returned unchanged."""
    return pod.labels.get(VNPU_DVPP, DVPP_NULL)


def illegal(kind: str, templates: VNPUTemplates, chip_cores: int, pod: Pod) -> Refusal | None:
    """Why a chip family cannot serve the pod's request, in MindCluster's words; None when it can."""
    unfit = _unfit(kind, templates, chip_cores, pod)
    return Refusal(INVALID_REQUEST, f"{ILLEGAL}: {unfit[0]}", unfit[1]) if unfit is not None else None


def illegal_cores(templates: VNPUTemplates, chip_cores: int, pod: Pod) -> IllegalCores:
    """The numbers of cores that are legal instead."""
    return IllegalCores(pod.name, pod.count, tuple(sorted({*templates.spec.rules.requests, chip_cores})))


def _unfit(
    kind: str, templates: VNPUTemplates, chip_cores: int, pod: Pod
) -> tuple[str, IllegalCores | NotForCores] | None:
    cores, level, dvpp = pod.count, level_of(pod), dvpp_of(pod)
    without_dvpp = NotForCores(VNPU_DVPP, dvpp, cores, DVPP_NULL)
    whole = cores % chip_cores == 0
    rows = [row for row in templates.spec.rules.choices if row.aicore == cores]
    flexible = any(row.dvpp is not None for row in rows) and not whole
    legal = whole or cores in templates.spec.rules.requests
    if kind == SMALL_KIND:
        if not legal:
            text = f"task<{pod.name}> get virTemplate is null: task req npu should be [1,2,4,8,10], not {cores}"
            return text, illegal_cores(templates, chip_cores, pod)
        if not flexible and not whole and dvpp != DVPP_NULL:
            return f"{pod.name} req {cores} ai-core, but dvpp label is:{dvpp}", without_dvpp
        return None
    family = templates.spec.family
    if not legal:
        return f"{pod.name} req err {cores}", illegal_cores(templates, chip_cores, pod)
    if not flexible and level != LOW:
        text = f"{pod.name} req {cores} ai-core and npu is {family}, but cpu level is:{level}"
        return text, NotForCores(VNPU_LEVEL, level, cores, LOW)
    if not flexible and dvpp != DVPP_NULL:
        return f"{pod.name} req {cores} ai-core and npu is {family}, but dvpp label is:{dvpp}", without_dvpp
    return None


def kind_of(templates: VNPUTemplates) -> str:
    """Which of the two kinds a chip family belongs to."""
    return SMALL_KIND if templates.spec.family == SMALL_KIND else "Ascend910"


def _dynamic(gang: Gang, pods: list[Pod], desired: Desired, params: InitParams) -> Sharing | Refusal:
    label = gang.options.ring_controller
    kind = KINDS.get(label)
    if kind is None:
        text = f"label {RING_CONTROLLER}={label} names none" if label else f"label {RING_CONTROLLER} is missing"
        unknown = UnknownLabel(RING_CONTROLLER, label, tuple(sorted(KINDS)))
        return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: {NPU_CORE} needs to know the kind of chips, {text}", unknown)
    if params.preset_virtual_device:
        text = "volcano configuration presetVirtualDevice true, only support static vnpu"
        return Refusal(INVALID_REQUEST, f"InvalidArgument: {text}", CutByLayoutsOnly(NPU_CORE, "presetVirtualDevice"))
    families = [t for t in desired.families.values() if t.spec.dynamic and kind_of(t) == kind]
    for pod in pods:
        if dvpp_of(pod) not in DVPP_VALUES:
            given = dvpp_of(pod)
            unusable = UnknownLabel(VNPU_DVPP, given, DVPP_VALUES)
            return Refusal(INVALID_REQUEST, f"{ILLEGAL}: err dvpp value:{given}", unusable)
        why = [illegal(kind, t, row.aicore, pod) for t in families for row in t.spec.chips]
        if why and why[0] is not None and None not in why:
            return why[0]
        if not why:
            return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: no template of {kind} chips is known")
    return DynamicVNPU(kind)


def _soft(gang: Gang, pods: list[Pod], count: int, plugin: str) -> Sharing | Refusal:
    head = f"{plugin} check share device job({gang.name}) valid failed"
    quota = soft_quota(gang.options, pods[0].count)
    if isinstance(quota, WrongQuota):
        return Refusal(INVALID_REQUEST, f"{ILLEGAL}: {head}, {quota.text}", quota.cause)
    cores, memory, policy = quota
    wrong = next((pod for pod in pods if pod.count != cores), None)
    if wrong is not None:
        text = f"aicoreQuota: {cores} is not what pod {wrong.name} requests: {wrong.count}"
        label = NumberWanted(SHARE_CORES, str(cores), wrong.count, wrong.count, wrong.count)
        cause = label if {pod.count for pod in pods} == {wrong.count} and wrong.count <= FULL else None
        return Refusal(INVALID_REQUEST, f"{ILLEGAL}: {head}, {text}", cause)
    return SoftShare(cores, memory, policy, count)


class WrongQuota(NamedTuple):
    """What is wrong with the labels of a share, in MindCluster's words, and the first label to correct."""

    text: str
    cause: NumberWanted | UnknownLabel


def soft_quota(options: JobOptions, asked: int) -> tuple[int, int, str] | WrongQuota:
    """(percent of AI cores, MiB of memory, policy) that a job asks for, or what is wrong with them.

    ``asked`` are the percents that the pods ask for, which the label has to repeat.
    """
    cores, memory, policy = options.share_cores, options.share_memory, options.share_policy
    cores_wanted = NumberWanted(SHARE_CORES, cores or "", 1, FULL, asked)
    memory_wanted = NumberWanted(SHARE_MEMORY, memory or "", 1, 0, LEAST_MEMORY)
    policy_wanted = UnknownLabel(SHARE_POLICY, policy or "", SHARE_POLICIES)
    if cores is None or memory is None or policy is None:
        there = (str(value is not None).lower() for value in (cores, memory, policy))
        first = cores_wanted if cores is None else memory_wanted if memory is None else policy_wanted
        return WrongQuota("hasAicoreQuota: {}, hasHbmQuota: {}, hasSchedulingPolicy: {}".format(*there), first)

    percent, mib = signed_number(cores), signed_number(memory)
    if percent is None:
        return WrongQuota(f"aicoreQuota: {cores:.40} convert to int err", cores_wanted)
    if mib is None:
        return WrongQuota(f"hbmQuota: {memory:.40} convert to int err", memory_wanted)
    if not 1 <= percent <= FULL:
        return WrongQuota(f"aicoreQuota: {percent} not in range [1,100]", cores_wanted)
    if mib < 1:
        return WrongQuota(f"hbmQuota: {mib} less than 1", memory_wanted)
    if policy not in SHARE_POLICIES:
        return WrongQuota(f"schedulingPolicy: {policy:.40} is invalid", policy_wanted)
    return percent, mib, policy
