"""One gang as placement sees it: the resource it wants, how much of it, and under which family and gang rule.

Source: component/ascend-for-volcano/internal/npu/factory.go and plugin/job.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from belay.engine.gangs.forming import pod_group_of, task_of
from belay.engine.gangs.owners import GENERATED_GROUP, controller_of, spec_of
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.labels import (
    ACCELERATOR_TYPE,
    ASCEND_310,
    ASCEND_310P,
    ASCEND_910,
    HUAWEI_PREFIX,
    NPU,
    NPU_CORE,
    TOR_AFFINITY,
)
from belay.engine.model.pending_reasons import INVALID_REQUEST, NOT_SUPPORTED
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.pod_options import is_backup
from belay.engine.model.quantities import whole_number
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.place import legal_blocks, part_requests, switch_config
from belay.engine.plan.place.causes import NamespaceOfSystem, SeveralResources, SeveralVNPUs, UnknownResource
from belay.engine.plan.place.families import rack950, registry
from belay.engine.plan.place.families.multilevel import read_group_sizes, read_trees
from belay.engine.plan.place.families.rack950 import RackBlocks
from belay.engine.plan.place.families.superpod import Blocks, blocks
from belay.engine.plan.place.handler import Family, JobRequest, Refusal, TaskRequest
from belay.engine.plan.place.part_requests import Sharing
from belay.engine.wire.reserved import SYSTEM_NAMESPACES

if TYPE_CHECKING:
    from belay.engine.documents import Desired, InitParams

WHOLE_CHIP: Final = frozenset({ASCEND_910, ASCEND_310, ASCEND_310P, NPU})
STATIC_VNPU: Final = re.compile(r"^huawei\.com/(Ascend910-([2-6]|8|10|12|16)c|Ascend310P-(1|2|4)c)")
#: MindCluster's word for a request that no node can ever meet.
ILLEGAL_SIZE: Final = "InvalidResourceRequest"
NO_HANDLER: Final = "no policy handler registered, NPU type may be invalid"


class SchedulerJob(msgspec.Struct, frozen=True, eq=False):
    """A gang's request and the rules under which it is placed.

    ``resource``: empty for a gang without NPU; ``pods``: live pods that ask for chips; ``family``: None without NPU and
    for pre-cut vNPUs, which are only counted; ``topology``: the gang rule (superpod, rack, multilevel, switch) or
    empty; ``blocks``: those of a super-pod job; ``strict``: the job keeps off network-unhealthy chips; ``shared``: its
    pods get parts of chips; ``model``: a job with the same family, request and candidates, if one is known.
    """

    gang: Gang
    resource: str
    pods: tuple[Pod, ...]
    request: JobRequest
    family: Family | None
    topology: str = ""
    node_chips: int = 0
    blocks: Blocks | RackBlocks | None = None
    strict: bool = False
    shared: Sharing | None = None
    model: SchedulerJob | None = None

    @property
    def scored(self) -> bool:
        """Whether nodes get a raw score for this job."""
        return self.family is not None or self.shared is not None

    @property
    def distributed(self) -> bool:
        """Whether several pods of the job ask for chips."""
        return self.request.pods > 1


def of(
    gang: Gang, desired: Desired, observed: Observed, params: InitParams, cache: PlanCache
) -> SchedulerJob | Refusal:
    """The job behind a gang, or why it can never be placed."""
    if gang.namespace in SYSTEM_NAMESPACES:
        text = f"no job is placed in namespace {gang.namespace}"
        return Refusal(INVALID_REQUEST, text, NamespaceOfSystem(gang.namespace))
    pods = tuple(observed.pods[key] for key in gang.pods)
    npu_pods = tuple(pod for pod in pods if pod.count)
    least = _stated(gang, npu_pods, observed)
    resource = _resource(gang, npu_pods, least)
    request = _request(gang, pods, npu_pods, least.get(resource, 0))
    if not resource:
        return SchedulerJob(gang, "", (), request, None)
    static = bool(STATIC_VNPU.match(resource))
    refused = None if static else switch_config.check(gang.options, observed, cache)
    if refused is not None:
        return refused
    if not static and resource not in WHOLE_CHIP and resource != NPU_CORE:
        return Refusal(
            NOT_SUPPORTED,
            f"{NO_HANDLER}: {resource} is not a resource that a placement policy handles",
            UnknownResource(resource, tuple(sorted(WHOLE_CHIP))),
        )
    mixed = sorted({pod.resource for pod in npu_pods} - {resource})
    if mixed:
        return Refusal(
            INVALID_REQUEST,
            f"a job may ask for one NPU resource only, not {resource} and {', '.join(mixed)}",
            SeveralResources((resource, *mixed)),
        )
    for pod in npu_pods:
        limit = _resources_of(pod)
        if len(limit) > 1:
            return Refusal(
                INVALID_REQUEST,
                f"pod {pod.name} asks for several NPU resources: {', '.join(limit)}",
                SeveralResources(tuple(limit), pod.name),
            )
    if static:
        return _counted(gang, resource, npu_pods, request)
    options = gang.options
    shared = part_requests.of(gang, resource, npu_pods, request.pods, desired, params, policy=options.schedule_policy)
    if isinstance(shared, Refusal):
        return shared
    if shared is not None:
        return SchedulerJob(gang, resource, npu_pods, request, None, shared=shared)
    rule = registry.choose(resource, options, _selector(pods, ACCELERATOR_TYPE), desired)
    if isinstance(rule, Refusal):
        return rule
    racks = rack950.blocks(request, params.super_pod_size) if rule.topology == "rack" else None
    if isinstance(racks, Refusal):
        # before the sizes of pods: in MindCluster's order
        return legal_blocks.with_way_out(racks, request, rule.node_chips, partial(_size_refusal, rule, params))
    illegal = registry.check(rule, request)
    if illegal is not None and not rule.topology:
        illegal = illegal._replace(message=f"{ILLEGAL_SIZE}: {illegal.message}")
    cut = blocks(request, rule.node_chips, params.super_pod_nodes) if rule.topology == "superpod" else None
    if isinstance(cut, Refusal):
        illegal = _both(cut, illegal) if request.pods > 1 else illegal or cut
    if illegal is not None and rule.topology:
        return legal_blocks.with_way_out(illegal, request, rule.node_chips, partial(_size_refusal, rule, params))
    if illegal is not None:
        return illegal

    strict = rule.family.network_aware and request.pods > 1
    if switch_config.requested(options):
        if rule.topology:
            return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: label {TOR_AFFINITY} does not go with {rule.topology} rules")
        return SchedulerJob(gang, resource, npu_pods, request, rule.family, switch_config.RULE, strict=strict)
    if isinstance(cut, Blocks):
        strict = request.pods // cut.size > 1
        return SchedulerJob(gang, resource, npu_pods, request, rule.family, rule.topology, rule.node_chips, cut, strict)
    if racks is not None:
        return SchedulerJob(gang, resource, npu_pods, request, rule.family, rule.topology, rule.node_chips, racks)
    if rule.topology == "multilevel":
        return _on_tree(
            SchedulerJob(gang, resource, npu_pods, request, rule.family, rule.topology, strict=True), params
        )
    return SchedulerJob(gang, resource, npu_pods, request, rule.family, strict=strict)


def equivalent_job(model: SchedulerJob, gang: Gang, pod: Pod) -> SchedulerJob:
    """The job of a one-pod gang that asks for what ``model`` asks for."""
    task = TaskRequest(task_of(pod) or pod.name, pod.count)
    request = JobRequest(gang.name, model.request.total, model.request.pods, (task,), gang.labels, gang.annotations)
    pods = (pod,) if model.pods else ()
    return SchedulerJob(gang, model.resource, pods, request, model.family, strict=model.strict, model=model)


def _both(cut: Refusal, illegal: Refusal | None) -> Refusal:
    """The refusal of a distributed job: its blocks first, then the sizes of its pods."""
    return cut if illegal is None else Refusal(cut.reason, f"{cut.message}; {illegal.message}", illegal.cause)


def _size_refusal(rule: registry.FamilyRule, params: InitParams, request: JobRequest) -> Refusal | None:
    """Why the rule of a family with blocks refuses the sizes of a request; None when it accepts them."""
    if rule.topology == "rack":
        cut: object = rack950.blocks(request, params.super_pod_size)
    elif rule.topology == "superpod":
        cut = blocks(request, rule.node_chips, params.super_pod_nodes)
    else:
        cut = None
    return cut if isinstance(cut, Refusal) else registry.check(rule, request)


def _on_tree(job: SchedulerJob, params: InitParams) -> SchedulerJob | Refusal:
    trees, group_sizes = read_trees(params.resource_level_config), read_group_sizes(job.request)
    if isinstance(trees, Refusal):
        return trees
    return legal_blocks.of_groups(group_sizes, job.request) if isinstance(group_sizes, Refusal) else job


def least_chips(job: SchedulerJob, observed: Observed) -> int:
    """The chips that must be free in the cluster before the job starts, by ``minResources`` of its PodGroup; 0 where it
    states nothing or has been let in.

    A job's operator writes the sum over all replicas even where the job may start with fewer; there the job's minimum
    counts instead. What people write into a PodGroup of their own reserves room for pods to come, and holds.

    Sources: component/ascend-for-volcano/plugin/factory.go (JobEnqueueable); Volcano asks only while a PodGroup is
    Pending (pkg/scheduler/actions/enqueue).
    """
    group = pod_group_of(observed, job.gang)
    if nested_map(group, "status").get("phase") not in (None, "", "Pending"):
        return 0
    stated = _npu_resources(group).get(job.resource, 0)
    of_operator = bool(controller_of(group))
    elastic = job.gang.min_available < len(job.pods) and stated >= sum(pod.count for pod in job.pods)
    return 0 if of_operator and elastic else stated


def _stated(gang: Gang, npu_pods: tuple[Pod, ...], observed: Observed) -> dict[str, int]:
    """What a PodGroup states that people or their controllers wrote, NPU entries only.

    A group that was generated from a pod repeats what that pod asked for, also after its workload has another template.
    """
    if npu_pods and gang.pod_group.startswith(GENERATED_GROUP):
        return {}
    return _npu_resources(pod_group_of(observed, gang))


def _npu_resources(group: Mapping[str, Any]) -> dict[str, int]:
    """``minResources`` of a PodGroup, NPU entries only, sorted by name."""
    if not group:
        return {}
    least = nested_map(spec_of(group), "minResources")
    wanted = sorted(key for key in map(str, least) if key.startswith(HUAWEI_PREFIX) and key in least)
    return {key: whole_number(str(least[key])) or 0 for key in wanted}


def _resource(gang: Gang, npu_pods: tuple[Pod, ...], least: Mapping[str, int]) -> str:
    """The PodGroup's first NPU resource, else the kind that an annotation names, else what the pods ask for."""
    if least:
        return next(iter(least))
    if kind := gang.options.schedule_plugin:
        return HUAWEI_PREFIX + kind
    return npu_pods[0].resource if npu_pods else ""


def _request(gang: Gang, pods: tuple[Pod, ...], npu_pods: tuple[Pod, ...], least: int) -> JobRequest:
    rows: dict[tuple[str, int], TaskRequest] = {}
    for pod in pods:
        name = task_of(pod) or pod.name
        rows.setdefault((name if task_of(pod) else "", pod.count), TaskRequest(name, pod.count))
    # while pods are replaced, old and new ones together exceed what the job runs; backups do, too
    npu_pods = tuple(pod for pod in npu_pods if not is_backup(pod)) or npu_pods
    staying = tuple(pod for pod in npu_pods if pod.deleting is None)
    if gang.kind in ("Pod", "PodGroup"):
        count = max(len(staying), min(len(npu_pods), gang.min_available))
    elif gang.template and npu_pods:
        count = gang.replicas  # its controller makes the others while it takes the old ones away
    else:
        count = min(len(npu_pods), gang.replicas)
    counted = next((pods for pods in (staying, npu_pods) if len(pods) == count), None)
    total = least or npu_pods[0].count * count if counted is None else sum(pod.count for pod in counted)
    return JobRequest(gang.name, total, count, tuple(rows.values()), gang.labels, gang.annotations)


def _selector(pods: tuple[Pod, ...], key: str) -> str:
    """The job's node selector for ``key``; values of several tasks are joined with "|", as MindCluster does."""
    values: list[str] = []
    for pod in pods:
        value = pod.node_selector.get(key)
        if value and value not in values:
            values.append(value)
    return "|".join(values)


def _resources_of(pod: Pod) -> list[str]:
    return sorted(key for key, count in pod.requests.items() if count and key.startswith(HUAWEI_PREFIX))


def _counted(gang: Gang, resource: str, npu_pods: tuple[Pod, ...], request: JobRequest) -> SchedulerJob | Refusal:
    """The job of pre-cut vNPUs: one device a pod, placed by Kubernetes' own count."""
    greedy = next((pod for pod in npu_pods if pod.count > 1), None)
    if greedy is not None:
        text = f"{ILLEGAL_SIZE}: job <{gang.name}> task num is <{len(npu_pods)}>, request vnpu num <{greedy.count}>"
        why = SeveralVNPUs(greedy.count, resource)
        return Refusal(INVALID_REQUEST, f"{text} more than 1 virtual device, keep job pending ", why)
    return SchedulerJob(gang, resource, npu_pods, request, None)
