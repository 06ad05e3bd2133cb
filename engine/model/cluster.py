"""The observed cluster: nodes, chips, pods and reports in the newest snapshot.

Everything is frozen and built by ``belay.engine.observe.observed`` from Kubernetes objects; times are
Unix seconds (float) unless a field says milliseconds; chip ids are the driver's physical
ids; sets of chips are integer bit masks (bit *i* = chip *i*).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.fault_subscriptions import NO_SUBSCRIPTIONS, FaultSubscriptions
from belay.engine.model.history import History
from belay.engine.model.last_changes import Place
from belay.engine.model.log_evidence import PodEvidence
from belay.engine.model.public_faults import PublicFaultMessage, PublicFaultProblem
from belay.engine.model.recovery.progress import RecoveryProgress
from belay.engine.model.refusals import RefusalKey, ServerRefusal
from belay.engine.model.seals import Seal, Warrant
from belay.engine.model.workload_kinds import NO_TABLE, WorkloadTable


class Taint(msgspec.Struct, frozen=True):
    """A Kubernetes node taint."""

    key: str
    value: str
    effect: str


class Departure(msgspec.Struct, frozen=True):
    """That a node is about to go: who removes it, in words, and whether its pods go ``now``.

    They stay otherwise until their eviction begins: who removes the node may still think better of it. ``waits``: who
    removes it leaves pods that their annotations keep there until their time is over.
    """

    text: str
    now: bool
    waits: bool = False


#: Conditions of a Node that say what Belay judges itself, or what Kubernetes has a taint for.
MAINTENANCE_CONDITIONS: Final = ("DrainInProgress", "Drained", "MaintenanceInProgress")
JUDGED_OTHERWISE: Final = frozenset(
    {"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable", *MAINTENANCE_CONDITIONS}
)


class NodeCondition(msgspec.Struct, frozen=True):
    """A condition that others set on a Node; ``since`` is its last transition (Unix s, 0: unknown)."""

    type: str
    status: str
    reason: str
    since: float


class Node(msgspec.Struct, frozen=True):
    """One Kubernetes node.

    ``allocatable`` and ``capacity`` count NPU resources in pieces, ``cpu`` in milli-cores,
    ``memory`` and ``ephemeral-storage`` in bytes. ``base_chips`` is the mask of the chips in
    annotation ``baseDeviceInfos`` (0 when absent), ``base_devices`` its parsed content. ``maintenance`` is the
    condition of those who look after nodes that says that this one is emptied or worked on; empty: none.
    ``departure`` is who removes it from the cluster, ``server`` the system UUID that its kubelet reports.
    ``conditions`` are those that only fault policies judge.
    """

    name: str
    uid: str
    resource_version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    created: float
    ready: bool
    ready_changed: float
    unschedulable: bool
    taints: tuple[Taint, ...]
    capacity: dict[str, int]
    allocatable: dict[str, int]
    internal_ip: str
    base_chips: int
    base_devices: dict[str, dict[str, Any]]
    maintenance: str = ""
    departure: Departure | None = None
    server: str = ""
    conditions: tuple[NodeCondition, ...] = ()


class ChipFault(msgspec.Struct, frozen=True):
    """One fault code on one chip plane in a report.

    ``kind`` is CardUnhealthy, CardNetworkUnhealthy, NodeUnhealthy or PublicFault; ``chip`` is -1 for a
    node fault; ``level`` is the report's level; ``time_ms`` when the fault was raised (0: unknown);
    ``code`` is empty for a pure manual isolation.
    """

    kind: str
    chip: int
    code: str
    level: str
    time_ms: int


class Upgrade(msgspec.Struct, frozen=True):
    """An entry of ``UpgradeFaultReason``: a frequency, duration or autofill upgrade of one chip."""

    chip: int
    code: str
    level: str
    kind: str
    time_ms: int


class SwitchFault(msgspec.Struct, frozen=True):
    """One fault of a switch: the assembled code, the level that the report gives it, and when it was raised (Unix ms).

    ``level`` is empty and ``time_ms`` 0 if the report does not say.
    """

    code: str
    level: str = ""
    time_ms: int = 0


class SwitchReport(msgspec.Struct, frozen=True):
    """``SwitchInfoCfg`` of an A3 node: worst level, node status, the assembled codes and the text as reported.

    ``faults`` are its faults one by one; several ports may report the same code.
    """

    level: str
    node_status: str
    codes: tuple[str, ...]
    update_time: float
    text: str = ""
    faults: tuple[SwitchFault, ...] = ()


class DeviceReport(msgspec.Struct, frozen=True):
    """A verified ``mindx-dl-deviceinfo-<node>``.

    Masks: ``listed`` every chip the report names anywhere, ``free`` its own (sunset) free list,
    ``unhealthy``, ``recovering``; ``network_unhealthy`` is None when the key is missing
    (a distributed job under a network-aware handler is then refused).
    ``super_pod_id`` -1 not in a super pod, -2 unsupported. ``withheld`` are faults that a running stress
    test causes: shown, without consequences.
    """

    node: str
    resource_version: str
    resource: str
    prefix: str
    listed: int
    free: int
    unhealthy: int
    network_unhealthy: int | None
    recovering: int
    faults: tuple[ChipFault, ...]
    manual: int
    upgrades: tuple[Upgrade, ...]
    switch: SwitchReport | None
    update_time: float
    super_pod_id: int
    server_index: int
    rack_id: int
    withheld: tuple[ChipFault, ...] = ()


class NodeDevice(msgspec.Struct, frozen=True):
    """An element of NodeD's ``FaultDevList``."""

    device_type: str
    device_id: int
    codes: tuple[str, ...]
    level: str


class NodeReport(msgspec.Struct, frozen=True):
    """A verified ``mindx-dl-nodeinfo-<node>``; absent means healthy."""

    node: str
    devices: tuple[NodeDevice, ...]
    status: str


class PublicReport(msgspec.Struct, frozen=True):
    """A ConfigMap with public faults: its valid messages, the first problems, and the number of all problems."""

    messages: tuple[PublicFaultMessage, ...]
    problems: tuple[PublicFaultProblem, ...] = ()
    found: int = 0


class AgentChip(msgspec.Struct, frozen=True):
    """One chip in ``belay-report-<node>``; ``idle_since_ms`` is None while it is in use.

    ``reset_stage`` is the stage of a reset under a job (``belay.agents.node.in_place_recovery``), empty without one.
    """

    serial: str
    processes: int
    idle_since_ms: int | None
    reset_epoch_done: int
    reset_result: str
    reset_stage: str = ""


class AgentVNPU(msgspec.Struct, frozen=True):
    """One vNPU that exists on the node; ``used_by`` is ``namespace/pod`` or empty."""

    id: int
    chip: int
    template: str
    used_by: str


class AgentReport(msgspec.Struct, frozen=True):
    """A ``belay-report-<node>``: executed epochs, vNPUs, serials, and the orders generation seen.

    ``orders_trust`` is how the agent judges its orders: ``Unsigned`` (it holds no keys), ``Verified``, or ``Refused``;
    empty from older agents. ``idle_wait`` is for how many seconds chips must be idle before it resets them.
    ``chip_name`` is the model of its chips as the driver names it, such as ``910B3``; empty where it names none.
    ``reset_groups`` are the chips that reset together as the driver says; empty if it has not said so.
    """

    node: str
    boot: str
    seq: int
    time_ms: int
    orders_seen: int
    chips: dict[int, AgentChip]
    vnpu_epoch_done: int
    vnpu_result: str
    vnpus: tuple[AgentVNPU, ...]
    errors: tuple[str, ...]
    orders_trust: str = ""
    idle_wait: float = 60.0
    chip_name: str = ""
    reset_groups: tuple[tuple[int, ...], ...] = ()


class InPlaceReset(msgspec.Struct, frozen=True, rename="camel"):
    """What a reset under a job needs besides: the one pod (``namespace/name``, its UID) that may hold the chips, the
    ``policy`` of ``belay.engine.model.in_place_recovery``, and the seconds that a fault may take to heal and a chip to
    boot.
    """

    pod: str
    uid: str
    policy: str
    heal_seconds: int = 15
    boot_seconds: int = 150


class ResetOrder(msgspec.Struct, frozen=True):
    """A standing reset order for one chip's group.

    ``left``: attempts that the group has left after this one (-1: unknown). ``online``: set when the chips are in use
    and are healed under their job; None for a reset of idle chips.
    """

    epoch: int
    group: tuple[int, ...]
    reason: str
    not_before_ms: int
    left: int = -1
    online: InPlaceReset | None = None


class Orders(msgspec.Struct, frozen=True):
    """A ``belay-orders-<node>``: the desired state of a node.

    ``pool`` is the pool whose policy applies (empty in orders of older engines). ``warrants`` are what entitles single
    orders, by the names of `belay.engine.model.seals`. ``seal`` is the engine's signature over texts with the SHA-256
    ``digests``; None for unsigned orders.
    """

    node: str
    resource_version: str
    generation: int
    revision: str
    policy_digest: str
    issued_ms: int
    not_after_ms: int
    isolate: dict[int, str]
    resets: dict[int, ResetOrder]
    vnpu_epoch: int
    vnpu_layout: dict[int, tuple[str, ...]]
    pool: str = ""
    warrants: dict[str, Warrant] = {}
    seal: Seal | None = None
    digests: dict[str, str] = {}


class Container(msgspec.Struct, frozen=True):
    """State of one container: exit codes are None while not (yet) terminated.

    ``reason`` and ``message`` are those of its newest end, ``message`` the end of what kubelet kept of its last words.
    """

    name: str
    ready: bool
    exit_code: int | None
    last_exit_code: int | None
    restarts: int
    reason: str = ""
    message: str = ""


class ExtendedRequest(msgspec.Struct, frozen=True):
    """What one container asks for of a resource that a device plugin or a DeviceClass offers.

    ``before``: it is an init container, which ends before the containers start.
    """

    container: str
    resource: str
    amount: int
    before: bool = False


class Pod(msgspec.Struct, frozen=True):
    """One pod.

    ``requests`` sums containers (and takes the largest init container) with ``cpu`` in
    milli-cores and ``memory`` in bytes; ``resource``/``count`` are its one NPU resource
    (empty/0 when it requests none). ``chips`` are the device names that its annotations
    give it (``huawei.com/AscendReal``, else the resource annotation). ``host_ports`` are
    (address, protocol, port) with ``0.0.0.0`` for any address. ``spread`` are its topology spread constraints,
    ``claims`` the persistent volume claims that it mounts, ``resource_claims`` its claims of dynamic resource
    allocation (name in the pod, name of the ResourceClaim, empty until that is made). ``restart_policy`` is empty where
    the object has none. ``task_index`` is its index within its Volcano task, None for other pods. ``unscheduled`` is
    the message of its condition ``PodScheduled=False`` with reason ``Unschedulable``, empty without one.
    ``extended`` is what its containers ask for of extended resources while it has no node and no claim for them.
    ``scheduling_group`` is the PodGroup of Kubernetes itself that it names (``spec.schedulingGroup``), empty without.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    labels: dict[str, str]
    annotations: dict[str, str]
    owner_api: str
    owner_kind: str
    owner_name: str
    owner_uid: str
    node: str
    phase: str
    deleting: float | None
    grace_seconds: int
    created: float
    started: float | None
    scheduler: str
    priority: int
    priority_class: str
    requests: dict[str, int]
    resource: str
    count: int
    chips: tuple[str, ...]
    node_selector: dict[str, str]
    affinity: dict[str, Any]
    tolerations: tuple[dict[str, Any], ...]
    gates: tuple[str, ...]
    pod_ip: str
    host_ip: str
    host_network: bool
    containers: tuple[Container, ...]
    volumes: tuple[str, ...]
    reason: str
    host_ports: tuple[tuple[str, str, int], ...] = ()
    spread: tuple[dict[str, Any], ...] = ()
    claims: tuple[str, ...] = ()
    restart_policy: str = ""
    task_index: int | None = None
    unscheduled: str = ""
    resource_claims: tuple[tuple[str, str], ...] = ()
    scheduling_group: str = ""
    extended: tuple[ExtendedRequest, ...] = ()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        """Whether the pod Succeeded or Failed: it holds no chips (a terminating pod still does)."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def holds_chips(self) -> bool:
        """Whether the pod is bound and not finished, so that its chips are in use."""
        return bool(self.node) and not self.finished


class Observed(msgspec.Struct, frozen=True):
    """One consistent snapshot of the cluster.

    ``objects`` holds every other object raw (jobs, PodGroups, queues, services, managed
    ConfigMaps …). ``problems`` maps a node to the reason its newest device report was refused;
    ``reports`` then still holds the last good one if there is any. ``ledger`` maps
    ``node/chip name`` to the pod UID that claimed it; while a ledger cannot be read (``ledger_broken``) nothing may be
    placed, reset or partitioned. ``inventory`` lists what Git applied last
    (None: none recorded), ``places`` where in Git its documents stood, by ``Kind/name`` or ``Kind/namespace/name``.
    ``init_params`` are the raw ``init-params`` of the scheduler ConfigMap.
    ``newest_report`` is the newest report time, 0 when there is no report. ``public`` holds the ConfigMaps with public
    faults by ``namespace/name``. ``reserved`` is what shards reserved of the budgets, by limit and scope: time
    (Unix ms), unit, count, shard; while it cannot be read (``reserved_broken``) no disruptive action may run.
    ``recoveries`` are the open process recoveries, by UID of the job. ``evidence`` is what the logs of failed pods say,
    by node. ``refusals`` is what the API server refused when it was tried last. ``fault_subscriptions`` says which
    inference services hear of faults. ``workloads`` is how the declared table reads the owners of pods; it comes from
    Git, and `belay.engine.documents.Desired.reading` sets it.
    """

    nodes: dict[str, Node] = {}
    reports: dict[str, DeviceReport] = {}
    problems: dict[str, str] = {}
    node_reports: dict[str, NodeReport] = {}
    agents: dict[str, AgentReport] = {}
    orders: dict[str, Orders] = {}
    pods: dict[str, Pod] = {}
    objects: dict[ObjectKey, dict[str, Any]] = {}
    history: History = History()
    ledger: dict[str, str] = {}
    ledger_broken: bool = False
    inventory: tuple[ObjectKey, ...] | None = None
    places: dict[str, Place] = {}
    applied_revision: str = ""
    init_params: dict[str, str] = {}
    diagnostics: tuple[Diagnostic, ...] = ()
    newest_report: float = 0.0
    public: dict[str, PublicReport] = {}
    reserved: dict[str, tuple[tuple[int, str, int, str], ...]] = {}
    reserved_broken: bool = False
    recoveries: dict[str, RecoveryProgress] = {}
    evidence: dict[str, tuple[PodEvidence, ...]] = {}
    refusals: dict[RefusalKey, ServerRefusal] = {}
    fault_subscriptions: FaultSubscriptions = NO_SUBSCRIPTIONS
    workloads: WorkloadTable = NO_TABLE
