"""One gang as placement sees it: which resource it wants, how much, and under which handler.

Source of the choice: component/ascend-for-volcano/internal/npu/factory.go and plugin/job.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engine.model.cluster import Observed, Pod
from engine.model.jobs import Gang
from engine.plan.gangs import pod_group_of, task_of
from engine.plan.owners import part, spec_of
from engine.plan.place import families, rack950, sharing, torconfig
from engine.plan.place.multilevel import read_trees, read_wish
from engine.plan.place.rack950 import RackBlocks
from engine.plan.place.sharing import Sharing
from engine.plan.place.superpod import Blocks, blocks
from engine.plan.place.verdict import INVALID_REQUEST, NOT_SUPPORTED, Family, Refusal, Shape, Task
from engine.wire.parts import NPU_CORE

if TYPE_CHECKING:
    from engine.documents import Desired, InitParams

GROUP: Final = "huawei.com/"
NPU: Final = "huawei.com/npu"
WHOLE_CHIP: Final = frozenset({"huawei.com/Ascend910", "huawei.com/Ascend310", "huawei.com/Ascend310P", NPU})
STATIC_VNPU: Final = re.compile(r"^huawei\.com/(Ascend910-([2-6]|8|10|12|16)c|Ascend310P-(1|2|4)c)")
PLUGIN_KEY: Final = "volcano.sh/schedule.plugin"
POLICY_KEY: Final = "huawei.com/schedule_policy"
#: Upstream's word for a request that no node can ever meet.
ILLEGAL_SIZE: Final = "InvalidResourceRequest"
NO_HANDLER: Final = "no policy handler registered, NPU type may be invalid"


class Job(msgspec.Struct, frozen=True, eq=False):
    """``resource`` is empty for a gang without NPU; ``family`` is None for it and for pre-cut vNPUs, which are only
    counted. ``pods`` are the gang's live pods that ask for chips, ``topology`` names the gang-level rule (superpod,
    multilevel …) or is empty; ``blocks`` are those of a super-pod job; ``strict`` jobs keep off network-unhealthy
    chips. ``model`` is a job with the same handler, shape and candidates, if one is known."""

    gang: Gang
    resource: str
    pods: tuple[Pod, ...]
    shape: Shape
    family: Family | None
    topology: str = ""
    node_chips: int = 0
    blocks: Blocks | RackBlocks | None = None
    strict: bool = False
    shared: Sharing | None = None
    model: Job | None = None

    @property
    def scored(self) -> bool:
        """Whether a handler gives nodes a score for this job."""
        return self.family is not None or self.shared is not None

    @property
    def distributed(self) -> bool:
        """Several pods of the job ask for chips."""
        return self.shape.pods > 1


def of(gang: Gang, desired: Desired, observed: Observed, params: InitParams) -> Job | Refusal:
    """The job behind a gang, or why no handler will ever place it."""
    pods = tuple(observed.pods[key] for key in gang.pods)
    seekers = tuple(pod for pod in pods if pod.count)
    least = _npu_resources(pod_group_of(observed, gang))
    resource = _resource(gang, seekers, least)
    shape = _shape(gang, pods, seekers, least.get(resource, 0))
    if not resource:
        return Job(gang, "", (), shape, None)
    static = bool(STATIC_VNPU.match(resource))
    refused = None if static else torconfig.wanted(gang.labels, observed)
    if refused is not None:
        return refused
    if not static and resource not in WHOLE_CHIP and resource != NPU_CORE:
        return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: {resource} is no resource that a placement policy handles")
    mixed = sorted({pod.resource for pod in seekers} - {resource})
    if mixed:
        return Refusal(
            INVALID_REQUEST, f"a job may ask for one NPU resource only, not {resource} and {', '.join(mixed)}"
        )
    for pod in seekers:
        limit = _resources_of(pod)
        if len(limit) > 1:
            return Refusal(INVALID_REQUEST, f"pod {pod.name} asks for several NPU resources: {', '.join(limit)}")
    if static:
        return _counted(gang, resource, seekers, shape)
    policy = gang.annotations.get(POLICY_KEY, "")
    shared = sharing.of(gang, resource, seekers, shape.pods, desired, params, policy=policy)
    if isinstance(shared, Refusal):
        return shared
    if shared is not None:
        return Job(gang, resource, seekers, shape, None, shared=shared)
    rule = families.choose(
        resource, gang.annotations, gang.labels, _selector(pods, "accelerator-type"), desired, policy_key=POLICY_KEY
    )
    if isinstance(rule, Refusal):
        return rule
    illegal = rule.family.check(shape) or families.legal_sizes(rule, shape)
    if illegal is not None and not rule.topology:
        illegal = Refusal(illegal.reason, f"{ILLEGAL_SIZE}: {illegal.message}")
    cut = blocks(shape, rule.node_chips, params.super_pod_nodes) if rule.topology == "superpod" else None
    if isinstance(cut, Refusal):
        illegal = _both(cut, illegal) if shape.pods > 1 else illegal or cut
    if illegal is not None:
        return illegal
    strict = rule.family.network_aware and shape.pods > 1
    if torconfig.asked(gang.labels):
        if rule.topology:
            return Refusal(
                NOT_SUPPORTED, f"{NO_HANDLER}: label {torconfig.LABEL} does not go with {rule.topology} rules"
            )
        return Job(gang, resource, seekers, shape, rule.family, torconfig.RULE, strict=strict)
    if isinstance(cut, Blocks):
        strict = shape.pods // cut.size > 1
        return Job(gang, resource, seekers, shape, rule.family, rule.topology, rule.node_chips, cut, strict)
    if rule.topology == "rack":
        racks = rack950.blocks(shape, params.super_pod_size)
        if isinstance(racks, Refusal):
            return racks
        return Job(gang, resource, seekers, shape, rule.family, rule.topology, rule.node_chips, racks)
    if rule.topology == "multilevel":
        return _on_tree(Job(gang, resource, seekers, shape, rule.family, rule.topology, strict=True), params)
    return Job(gang, resource, seekers, shape, rule.family, strict=strict)


def named_alike(model: Job, gang: Gang, pod: Pod) -> Job:
    """The job of a gang of one pod that asks for what ``model`` does."""
    task = Task(task_of(pod) or pod.name, pod.count)
    shape = Shape(gang.name, model.shape.total, model.shape.pods, (task,), gang.labels, gang.annotations)
    pods = (pod,) if model.pods else ()
    return Job(gang, model.resource, pods, shape, model.family, strict=model.strict, model=model)


def _both(cut: Refusal, illegal: Refusal | None) -> Refusal:
    """What is wrong with a distributed job: its blocks first, then the sizes of its pods."""
    return cut if illegal is None else Refusal(cut.reason, f"{cut.message}; {illegal.message}")


def _on_tree(job: Job, params: InitParams) -> Job | Refusal:
    trees, wish = read_trees(params.resource_level_config), read_wish(job.shape)
    for answer in (trees, wish):
        if isinstance(answer, Refusal):
            return answer
    return job


def least_chips(job: Job, observed: Observed) -> int:
    """The chips that must be free in the cluster before anything of a job starts, by ``minResources`` of its PodGroup;
    0 where it says nothing, or has been let in.

    What an operator sums up over all replicas of a job that may start with fewer is no such wish: the job's minimum
    says what it needs. Sources: component/ascend-for-volcano/plugin/factory.go (JobEnqueueable); Volcano asks while a
    PodGroup is Pending only (pkg/scheduler/actions/enqueue).
    """
    group = pod_group_of(observed, job.gang)
    if part(group, "status").get("phase") not in (None, "", "Pending"):
        return 0
    stated = _npu_resources(group).get(job.resource, 0)
    elastic = job.gang.min_available < len(job.pods) and stated >= sum(pod.count for pod in job.pods)
    return 0 if elastic else stated


def _npu_resources(group: Mapping[str, Any]) -> dict[str, int]:
    """``minResources`` of a PodGroup, NPU entries only, in the order of their names."""
    if not group:
        return {}
    least = part(spec_of(group), "minResources")
    wanted = sorted(key for key in map(str, least) if key.startswith(GROUP) and key in least)
    return {key: int(str(least[key])) if str(least[key]).isdecimal() else 0 for key in wanted}


def _resource(gang: Gang, seekers: tuple[Pod, ...], least: Mapping[str, int]) -> str:
    """The PodGroup's first NPU resource, else the kind that an annotation names, else what the pods ask for."""
    if least:
        return next(iter(least))
    kind = gang.annotations.get(PLUGIN_KEY, "")
    if kind:
        return GROUP + kind
    return seekers[0].resource if seekers else ""


def _shape(gang: Gang, pods: tuple[Pod, ...], seekers: tuple[Pod, ...], least: int) -> Shape:
    rows: dict[tuple[str, int], Task] = {}
    for pod in pods:
        name = task_of(pod) or pod.name
        rows.setdefault((name if task_of(pod) else "", pod.count), Task(name, pod.count))
    # while pods are replaced, old and new ones together are more than the job ever runs; so are backups
    seekers = tuple(pod for pod in seekers if pod.annotations.get("podType") != "backup") or seekers
    staying = tuple(pod for pod in seekers if pod.deleting is None)
    if gang.kind in ("Pod", "PodGroup"):
        count = max(len(staying), min(len(seekers), gang.min_available))
    else:
        count = min(len(seekers), gang.replicas)
    counted = next((pods for pods in (staying, seekers) if len(pods) == count), None)
    total = least or seekers[0].count * count if counted is None else sum(pod.count for pod in counted)
    return Shape(gang.name, total, count, tuple(rows.values()), gang.labels, gang.annotations)


def _selector(pods: tuple[Pod, ...], key: str) -> str:
    """The job's node selector for ``key``; values of several tasks are joined with "|", as upstream does."""
    values: list[str] = []
    for pod in pods:
        value = pod.node_selector.get(key)
        if value and value not in values:
            values.append(value)
    return "|".join(values)


def _resources_of(pod: Pod) -> list[str]:
    return sorted(key for key, count in pod.requests.items() if count and key.startswith(GROUP))


def _counted(gang: Gang, resource: str, seekers: tuple[Pod, ...], shape: Shape) -> Job | Refusal:
    """Pre-cut vNPUs: one device a pod, placed by Kubernetes' own count."""
    greedy = next((pod for pod in seekers if pod.count > 1), None)
    if greedy is not None:
        text = f"{ILLEGAL_SIZE}: job <{gang.name}> task num is <{len(seekers)}>, request vnpu num <{greedy.count}>"
        return Refusal(INVALID_REQUEST, f"{text} more than 1 virtual device, keep job pending ")
    return Job(gang, resource, seekers, shape, None)
