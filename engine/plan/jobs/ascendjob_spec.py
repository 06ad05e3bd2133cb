"""An AscendJob as declared: read once per version, defaulted, and checked as MindCluster's operator does.

Sources: component/ascend-operator/pkg/controllers/v1/ascendjob_validate.go, pkg/api/v1 (defaults) and
docs/zh/scheduling/06_api/15_yaml_configuration.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from belay.engine.model.job_options import JobOptions
from belay.engine.model.unstructured import nested_map
from belay.engine.plan.jobs.lifecycle import JobObject
from belay.engine.plan.jobs.pod_template import (
    ASCEND,
    container,
    containers,
    min_resources,
    misshapen,
    npu_request,
    pod_spec,
)

FRAMEWORKS: Final[dict[str, str]] = {"mindspore": "Scheduler", "pytorch": "Master", "tensorflow": "Chief"}
WORKER: Final = "Worker"
MAX_REPLICAS: Final = 20000
PORT_NAME: Final = "ascendjob-port"
DEFAULT_PORT: Final = 2222
INVALID_QUEUE: Final = "InvalidQueue"
_CHECKED_BEFORE_QUEUE: Final = frozenset(
    {"InvalidScalingConfig", "InvalidScaleOutConfig", "InvalidSpecs", "InvalidSuccessPolicy"}
)
_TYPES: Final = {name.lower(): name for name in (*FRAMEWORKS.values(), WORKER)}


class SpecProblem(NamedTuple):
    """Why a job is invalid."""

    reason: str
    message: str


class ReplicaSpec(NamedTuple):
    """One replica type; its container ``ascend`` requests ``chips`` of ``resource``."""

    type: str
    size: int
    restart_policy: str
    template: Mapping[str, Any]
    resource: str
    chips: int

    @property
    def lower(self) -> str:
        """The type as names and labels write it."""
        return self.type.lower()


class AscendSpec(NamedTuple):
    """A checked AscendJob, leader first in ``replicas``.

    ``expected`` are its pods: name, position in ``replicas``, and index. ``problem`` is set when it is invalid.
    """

    framework: str
    replicas: tuple[ReplicaSpec, ...]
    options: JobOptions
    policy: dict[str, Any]
    scheduling: dict[str, Any] | None
    scheduler: str
    expected: tuple[tuple[str, int, int], ...]
    problem: SpecProblem | None

    @property
    def leader(self) -> ReplicaSpec | None:
        """The Master, Chief or Scheduler."""
        return next((replica for replica in self.replicas if replica.type != WORKER), None)

    @property
    def worker(self) -> ReplicaSpec | None:
        """The workers."""
        return next((replica for replica in self.replicas if replica.type == WORKER), None)

    @property
    def total(self) -> int:
        """Number of pods of the whole job."""
        return len(self.expected)

    @property
    def leader_has_chips(self) -> bool:
        """Whether the leader's pod has chips too; then it has rank 0, and workers count from 1."""
        return bool(self.leader and self.leader.chips)

    @property
    def npu(self) -> tuple[str, int]:
        """NPU resource and chips per pod: the workers', or the leader's where only that one has chips."""
        candidates = [self.worker, self.leader] if self.leader_has_chips else [self.worker]
        return next(((r.resource, r.chips) for r in candidates if r is not None and r.chips), ("", 0))

    @property
    def npu_pods(self) -> int:
        """Number of pods that count for the world size."""
        return sum(r.size for r in self.replicas if self.leader_has_chips or r.type == WORKER)

    @property
    def soft_share(self) -> bool:
        """Whether pods share chips by quota."""
        return self.options.shares_chips

    @property
    def inference(self) -> bool:
        """Whether the job is an inference instance (labels ``jobID`` and ``app``)."""
        return self.options.is_mindie

    def scheduler_of(self, replica: ReplicaSpec, default: str) -> str:
        """The scheduler of a replica's pods: its template's, the job's, else ``default``."""
        return str(pod_spec(replica.template).get("schedulerName") or self.scheduler or default)

    def rank(self, replica: ReplicaSpec, index: int) -> int:
        """The rank of a pod."""
        return index + 1 if replica.type == WORKER and self.leader_has_chips else index

    def pod_name(self, job: JobObject, replica: ReplicaSpec, index: int) -> str:
        """``<job>-<type>-<index>``."""
        return f"{job.key.name}-{replica.lower}-{index}"


def read(job: JobObject) -> AscendSpec:
    """Read the job's spec with defaults; ``problem`` names the first error."""
    spec = nested_map(job.raw, "spec")
    policy = nested_map(spec, "runPolicy")
    scheduling = policy.get("schedulingPolicy")
    options = job.options
    framework = options.framework
    problem = _scaling(job.key.name, options) or _scaleout(options) or _basics(spec) or _framework(framework)
    replicas = _replicas(spec)
    problem = problem or _types(framework, nested_map(spec, "replicaSpecs"), replicas)
    ordered = tuple(sorted(replicas.values(), key=lambda r: (r.type == WORKER, r.type))) if problem is None else ()
    expected = tuple(
        (f"{job.key.name}-{replica.lower}-{index}", position, index)
        for position, replica in enumerate(ordered)
        for index in range(replica.size)
    )
    return AscendSpec(
        framework=framework,
        replicas=ordered,
        options=options,
        policy=policy,
        scheduling=scheduling if isinstance(scheduling, dict) else None,
        scheduler=str(spec.get("schedulerName") or ""),
        expected=expected,
        problem=problem,
    )


def pod_group_spec(spec: AscendSpec) -> dict[str, Any]:
    """minMember, minTaskMember, queue, priority class and resources of the job's PodGroup."""
    scheduling = spec.scheduling or {}
    least = scheduling.get("minAvailable")
    members = least if isinstance(least, int) and not isinstance(least, bool) else spec.total
    resources = nested_map(scheduling, "minResources") or min_resources(
        [(replica.template, replica.size) for replica in spec.replicas], members
    )
    out: dict[str, Any] = {
        "minMember": members,
        "minTaskMember": {replica.lower: replica.size for replica in spec.replicas},
        "queue": str(scheduling.get("queue") or "default"),
    }
    if scheduling.get("priorityClass"):
        out["priorityClassName"] = str(scheduling["priorityClass"])
    if resources:
        out["minResources"] = dict(resources)
    return out


def problem_of(spec: AscendSpec, queues: frozenset[str] | None) -> SpecProblem | None:
    """The first error of a job in this cluster; the queue is checked before framework and replicas."""
    if spec.problem is not None and spec.problem.reason in _CHECKED_BEFORE_QUEUE:
        return spec.problem
    return _queue(spec, queues) or spec.problem


def _queue(spec: AscendSpec, queues: frozenset[str] | None) -> SpecProblem | None:
    if spec.scheduling is None or queues is None:
        return None
    queue = str(spec.scheduling.get("queue") or "default")
    if queue in queues:
        return None
    error = f'queues.scheduling.volcano.sh "{queue}" not found'
    return SpecProblem(INVALID_QUEUE, f"check queue<{queue}> failed, err: {error}, maybe it is not create")


def port_of(leader: ReplicaSpec) -> int:
    """The port that followers dial."""
    row = container(pod_spec(leader.template), ASCEND) or {}
    return next((p["containerPort"] for p in ports(row) if p.get("name") == PORT_NAME), DEFAULT_PORT)


def ports(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A container's ports with a ``containerPort``."""
    found = row.get("ports")
    rows = found if isinstance(found, list) else []
    return [p for p in rows if isinstance(p, dict) and isinstance(p.get("containerPort"), int)]


def _scaling(name: str, options: JobOptions) -> SpecProblem | None:
    if options.scaling_rule is None:
        return None
    if not options.scaling_group:
        hint = "please set label of mind-cluster/group-name=<the group of job>"
        return SpecProblem("InvalidScalingConfig", f"job {name} has no group name, {hint}")
    if not options.service_job_id:
        hint = "please set label of jobID=<the jobID of job>"
        return SpecProblem("InvalidScalingConfig", f"job {name} has no jobID, {hint}")
    return None


def _scaleout(options: JobOptions) -> SpecProblem | None:
    if options.scaleout in ("", "ROCE", "UBOE"):
        return None
    message = "the value of label scaleout-type is invalid, which should be ROCE or UBOE"
    return SpecProblem("InvalidScaleOutConfig", message)


def _basics(spec: Mapping[str, Any]) -> SpecProblem | None:
    if not isinstance(spec.get("replicaSpecs"), dict) or not spec["replicaSpecs"]:
        return SpecProblem("InvalidSpecs", "replicaSpecs is not set, please modify your job")
    if spec.get("successPolicy") not in (None, "", "AllWorkers"):
        message = 'job success policy is invalid, it must be one of <"", AllWorkers>'
        return SpecProblem("InvalidSuccessPolicy", message)
    return None


def _framework(framework: str) -> SpecProblem | None:
    if not framework:
        hint = "please set label framework as one of <pytorch,mindspore,tensorflow>"
        return SpecProblem("InvalidFramework", f"framework label is not set, {hint}")
    if framework not in FRAMEWORKS:
        return SpecProblem(
            "InvalidFramework", f"framework label<{framework}> is not in [{' '.join(sorted(FRAMEWORKS))}]"
        )
    return None


def _replicas(spec: Mapping[str, Any]) -> dict[str, ReplicaSpec]:
    """Replicas by normalised type; malformed ones are left out here and reported by the checks."""
    out = {}
    for written, body in sorted(nested_map(spec, "replicaSpecs").items()):
        if isinstance(body, dict):
            kind = _TYPES.get(str(written).lower(), str(written))
            count = body.get("replicas")
            template = nested_map(body, "template")
            resource, chips = npu_request(container(pod_spec(template), ASCEND))
            number = count if isinstance(count, int) and not isinstance(count, bool) else 1
            out[kind] = ReplicaSpec(kind, number, str(body.get("restartPolicy") or "Never"), template, resource, chips)
    return out


def _types(framework: str, written: Mapping[str, Any], replicas: Mapping[str, ReplicaSpec]) -> SpecProblem | None:
    leader = FRAMEWORKS[framework]
    for name in sorted(written):
        kind = _TYPES.get(str(name).lower(), str(name))
        if kind not in (leader, WORKER):
            return SpecProblem("InvalidReplicaType", f"replicaType is {kind} but must be one of [{leader} {WORKER}]")
        if kind not in replicas:
            return SpecProblem("InvalidReplicaSpec", f"{kind} replicaSpec is not set, please modify your job")
        problem = _replica(replicas[kind], leader)
        if problem is not None:
            return problem
    return None if leader in replicas else _leaderless(framework, replicas)


def _replica(replica: ReplicaSpec, leader: str) -> SpecProblem | None:
    kind, count = replica.type, replica.size
    rows = containers(pod_spec(replica.template))
    wrong = misshapen(replica.template)
    main = container(pod_spec(replica.template), ASCEND)
    if count < 0:
        message = f"{kind} replicaSpec is not valid: replicas can not be negative num, but got {count}"
    elif count > MAX_REPLICAS:
        message = f"{kind} replicaSpec is not valid: replicas can not be larger than {MAX_REPLICAS}, but got {count}"
    elif not rows:
        message = f"{kind} replicaSpec is not valid: containers is undefined"
    elif wrong:
        message = f"{kind} replicaSpec is not valid: template.{wrong}"
    elif kind == leader and count != 1:
        message = f"{kind} replicaSpec is not valid, the replicas must be only 1"
    elif main is None:
        return SpecProblem("InvalidContainer", f"{kind} replicaSpec is not valid: There is no container named {ASCEND}")
    elif not main.get("image"):
        message = f"{kind} replicaSpec is not valid: Image is undefined in the container of {ASCEND}"
        return SpecProblem("InvalidContainer", message)
    else:
        return None
    return SpecProblem("InvalidReplicaSpec", message)


def _leaderless(framework: str, replicas: Mapping[str, ReplicaSpec]) -> SpecProblem | None:
    if framework != "mindspore":
        message = "replicaType is not valid: there need 1 leader replicaType, Master for pytorch, Chief of tensorflow"
        return SpecProblem("InvalidReplicaType", message)
    worker = replicas.get(WORKER)
    if worker is not None and worker.chips * worker.size > 1:
        message = "replicaSpec is not valid: when scheduler not found, the req num must be 1"
        return SpecProblem("InvalidReplicaSpec", message)
    return None
