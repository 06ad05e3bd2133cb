"""What each of Belay's ServiceAccounts may write; pure.

RBAC grants verbs on kinds. These rules add names: an agent writes the reports of its own node, its own Node's labels
and annotations, and annotations of pods on its node; a server writes its records and what process recovery needs; the
engine creates nothing in the namespaces of Kubernetes itself. Requests of others are none of their business and pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec

from belay.engine.errors import bounded
from belay.engine.model.labels import (
    ACCELERATOR_LABEL,
    ACCELERATOR_TYPE,
    BASE_DEVICES,
    HOST_ARCH,
    HUAWEI_PREFIX,
    INFER_CARD_TYPE,
    NODE_CARD_TYPE,
    NODE_HEALTHY_STATUS,
    NODE_RACK,
    NODE_SERVER_INDEX,
    NODE_SERVER_TYPE,
    NODE_SUPER_POD,
    PRODUCT_SERIAL,
    RESET_INFO,
    SERVER_TYPE,
    SERVER_USAGE,
)
from belay.engine.model.unstructured import nested_map
from belay.engine.wire import (
    evidence,
    faultjob,
    leases,
    links,
    pings,
    publicinfo,
    recoveryrecord,
    resetinfo,
    steptimes,
    superpods,
)
from belay.engine.wire.names import (
    DEVICE_NAMESPACE,
    DEVICE_PREFIX,
    DPU_PREFIX,
    FAULT_SUBSCRIBERS,
    NODE_NAMESPACE,
    NODE_PREFIX,
    NODES,
    NOTIFY,
    REPORT_PREFIX,
    SCHEDULER_NAMESPACE,
    SLOW_NETWORKS,
    SLOW_NODES,
    SYSTEM,
)  # fmt: skip
from belay.engine.wire.names import SERVER as SERVER_PROBLEMS
from belay.engine.wire.reserved import CONTROL_PRIORITY, KUBERNETES, SYSTEM_NAMESPACES

ACCOUNT: Final = f"system:serviceaccount:{SYSTEM}:"
AGENT: Final = f"system:serviceaccount:{NODES}:belay-agent"
SERVER: Final = f"{ACCOUNT}belay-server"
ENGINE: Final = f"{ACCOUNT}belay-engine"
#: User of an agent that runs as a service of its host, with a certificate of the cluster's authority.
HOST_AGENT: Final = "belay:agent:"
#: Group that has the rights of such agents (deploy/components/host-agents).
HOST_AGENTS: Final = "belay:agents"
#: Where job ConfigMaps are not: Kubernetes' own namespaces, Belay's, MindCluster's and Volcano's.
GUARDED: Final = KUBERNETES | {SYSTEM, NODES, NODE_NAMESPACE, publicinfo.STATISTICS_NAMESPACE, SCHEDULER_NAMESPACE}
#: Senders of public faults among the parts of an agent, as their ConfigMaps `<sender>-fault-<node>` name them.
SENDERS: Final = ("dpcstorage", "dtfsstorage", "pingmesh")
JOB_PREFIXES: Final = (resetinfo.PREFIX, resetinfo.LEGACY_PREFIX, "data-trace-")
#: ConfigMaps that a server writes, and the prefixes of those that it writes for each conversation or super pod.
SERVER_RECORDS: Final = frozenset(
    {
        (publicinfo.MESSAGES_NAMESPACE, publicinfo.MESSAGES), (SYSTEM, SLOW_NODES), (SYSTEM, SLOW_NETWORKS),
        (SYSTEM, SERVER_PROBLEMS), (SYSTEM, FAULT_SUBSCRIBERS), (SYSTEM, NOTIFY), (faultjob.NAMESPACE, faultjob.NAME),
    }
)  # fmt: skip
SERVER_PREFIXES: Final = ((SYSTEM, recoveryrecord.PREFIX), (superpods.NAMESPACE, superpods.PREFIX))
#: What the names of the Leases in belay-system begin with that an account writes.
LEASES: Final = {SERVER: (leases.RECOVERY,), ENGINE: (leases.SHARD_PREFIX, leases.CONTROLLER_PREFIX)}
#: All that the engine writes in Belay's own namespaces.
ENGINE_RECORDS: Final = ("configmaps", "leases", "events")
SSH_SUFFIX: Final = "-ssh"
NODE_LABELS: Final = frozenset(
    {ACCELERATOR_LABEL, ACCELERATOR_TYPE, SERVER_TYPE, SERVER_USAGE, HOST_ARCH, INFER_CARD_TYPE}
)
NODE_LABEL_PREFIXES: Final = (HUAWEI_PREFIX, "mind-cluster/", "node.kubernetes.io/npu.")
NODE_ANNOTATIONS: Final = frozenset(
    {
        BASE_DEVICES, RESET_INFO, NODE_SUPER_POD, NODE_SERVER_INDEX, NODE_RACK, NODE_SERVER_TYPE, NODE_CARD_TYPE,
        PRODUCT_SERIAL,
    }
)  # fmt: skip
SERVER_NODE_ANNOTATIONS: Final = frozenset({NODE_HEALTHY_STATUS})
_MAX_NAME: Final = 120
_MAX_REFUSAL: Final = 1000


class WriteRequest(msgspec.Struct, frozen=True):
    """A write that the API server asks about. ``old`` and ``new`` are empty if there is no such object; ``node`` is
    the node that the writer runs on, empty when that is not known. ``subresource`` is ``status`` or ``eviction``, and
    empty for the object itself.
    """

    user: str
    operation: str
    resource: str
    namespace: str
    name: str
    old: Mapping[str, Any] = {}
    new: Mapping[str, Any] = {}
    node: str = ""
    groups: tuple[str, ...] = ()
    subresource: str = ""


def concerned(user: str, groups: Collection[str] = ()) -> bool:
    """Whether there are rules for the user."""
    return user in (AGENT, SERVER, ENGINE) or user.startswith(HOST_AGENT) or HOST_AGENTS in groups


def needs_node(user: str, resource: str) -> bool:
    """Whether the verdict depends on the node of the writer."""
    return user == AGENT and resource in ("configmaps", "nodes", "pods")


def refusal(request: WriteRequest) -> str:
    """Why the write is refused, for the person who reads the answer; empty when it is allowed."""
    return bounded(_refusal(request), _MAX_REFUSAL)


def _refusal(request: WriteRequest) -> str:
    if request.user.startswith(HOST_AGENT):
        return _of_agent(msgspec.structs.replace(request, node=request.user.removeprefix(HOST_AGENT)))
    if HOST_AGENTS in request.groups:
        return (
            f"a member of {HOST_AGENTS} writes as {HOST_AGENT}<node>, not as {_cut(request.user)}: "
            f"its certificate needs CN={HOST_AGENT}<node>"
        )
    if request.user == AGENT:
        return _of_agent(request)
    if request.user == SERVER:
        return _of_server(request)
    if request.user == ENGINE:
        return _of_engine(request)
    return ""


def reports_of(node: str) -> frozenset[tuple[str, str]]:
    """(namespace, name) of every ConfigMap that the agent of a node writes."""
    public = {(publicinfo.STATISTICS_NAMESPACE, f"{sender}-fault-{node}") for sender in SENDERS}
    return frozenset(
        {
            (DEVICE_NAMESPACE, DEVICE_PREFIX + node), (DEVICE_NAMESPACE, DPU_PREFIX + node),
            (NODE_NAMESPACE, NODE_PREFIX + node),
            (NODES, REPORT_PREFIX + node), (NODES, links.name_of(node)), (NODES, steptimes.name_of(node)),
            (NODES, pings.name_of(node)), (NODES, evidence.PREFIX + node), *public,
        }
    )  # fmt: skip


def _of_agent(request: WriteRequest) -> str:
    if request.resource not in ("configmaps", "nodes", "pods"):
        return ""
    node = request.node
    if not node:
        return (
            "the agent's token does not say on which node it runs: mount a projected serviceAccountToken as "
            f"deploy/overlays/nodes does, or give an agent outside a pod the user {HOST_AGENT}<node>"
        )
    match request.resource:
        case "configmaps":
            return _report(request, node)
        case "nodes":
            if request.name != node:
                return f"the agent of node {node} may not change node {_cut(request.name)}"
            return _node_change(request, f"the agent of node {node}", NODE_LABELS, NODE_ANNOTATIONS)
        case _:
            where = str(nested_map(request.old, "spec").get("nodeName") or "")
            if where != node:
                return f"the agent of node {node} may not change pod {_key(request)}, which is on node {_cut(where)!r}"
            if _but(request.old, "annotations") != _but(request.new, "annotations") or _changes_status(request):
                return f"the agent of node {node} may change annotations of pod {_key(request)} only"
            return ""


def _report(request: WriteRequest, node: str) -> str:
    if (request.namespace, request.name) not in reports_of(node):
        return f"the agent of node {node} may write the reports of its node only, not ConfigMap {_key(request)}"
    if request.operation == "DELETE":
        allowed = request.namespace == NODE_NAMESPACE
        return "" if allowed else f"the agent of node {node} may not delete ConfigMap {_key(request)}"
    data = nested_map(request.new, "data")
    if not publicinfo.has_public_faults(request.new):
        return ""
    others = sorted(_influenced(data) - {node})
    if others:
        return f"the agent of node {node} may not report public faults of {_cut(', '.join(others))}"
    return ""


def _influenced(data: Mapping[str, Any]) -> set[str]:
    """The nodes that the public faults in a ConfigMap concern; serial numbers count as other nodes."""
    found = set()
    for key, text in data.items():
        if key != publicinfo.KEY and not key.startswith(f"{publicinfo.KEY}."):
            continue
        try:
            body = msgspec.json.decode(text) if isinstance(text, str) else {}
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            continue  # readers refuse it as well
        for fault in _rows(body, "faults"):
            for hit in _rows(fault, "influence"):
                names = [str(hit[field]) for field in ("nodeName", "nodeSN") if hit.get(field)] or ["no node"]
                found.update(names)
    return found


def _of_server(request: WriteRequest) -> str:
    match request.resource:
        case "configmaps":
            own = (
                (request.namespace, request.name) in SERVER_RECORDS
                or any(request.namespace == space and request.name.startswith(name) for space, name in SERVER_PREFIXES)
                or (request.namespace not in GUARDED and request.name.startswith(JOB_PREFIXES))
            )
            return "" if own else f"belay-server may write its own records and those of recovery, not {_key(request)}"
        case "nodes":
            return _node_change(request, "belay-server", frozenset(), SERVER_NODE_ANNOTATIONS)
        case "leases":
            return _lease(request, "belay-server")
        case "pods" | "podgroups":
            if request.namespace in GUARDED:
                return f"belay-server marks pods of jobs, not {request.resource} {_key(request)}"
            kept = _but(request.old, "annotations", "labels") == _but(request.new, "annotations", "labels")
            if not kept or _changes_status(request):
                return f"belay-server may change labels and annotations of {request.resource} {_key(request)} only"
            return ""
        case _:
            return ""


def _of_engine(request: WriteRequest) -> str:
    if request.resource in ("namespaces", "priorityclasses"):
        return _of_the_cluster(request)
    if request.namespace in KUBERNETES and request.resource != "events":
        return f"belay-engine writes nothing in namespace {request.namespace}: {request.resource} {_key(request)}"
    if request.namespace in (SYSTEM, NODES) and request.resource not in ENGINE_RECORDS:
        return f"belay-engine starts and ends no workloads in namespace {request.namespace}: {_key(request)}"
    if request.resource == "secrets":
        kind = request.new.get("type") or "Opaque"
        if not request.name.endswith(SSH_SUFFIX) or kind != "Opaque" or request.namespace in GUARDED:
            return f"belay-engine creates Secrets of Volcano's plugin ssh only (<job>{SSH_SUFFIX}), not {_key(request)}"
    if request.resource == "leases":
        return _lease(request, "belay-engine")
    ends = request.operation == "DELETE" or request.subresource == "eviction"
    if request.resource == "pods" and ends and request.namespace in GUARDED:
        return f"belay-engine ends no pods in namespace {request.namespace}: {_key(request)}"
    return ""


def _of_the_cluster(request: WriteRequest) -> str:
    """A Namespace carries the label by which webhooks choose it; the PriorityClass, pods of Belay."""
    if request.resource == "namespaces" and request.name in SYSTEM_NAMESPACES:
        return f"belay-engine does not change namespace {request.name}, which belongs to Kubernetes or Belay"
    if request.resource == "priorityclasses" and request.name == CONTROL_PRIORITY:
        return f"belay-engine does not change PriorityClass {CONTROL_PRIORITY}, which Belay's own pods have"
    return ""


def _lease(request: WriteRequest, who: str) -> str:
    """A process writes its own Leases only: a Lease in other hands stops the process that works by it."""
    own = LEASES[request.user]
    if request.namespace == SYSTEM and request.name.startswith(own):
        return ""
    return f"{who} may write Leases {' and '.join(own)}… of {SYSTEM} only, not {_key(request)}"


def _node_change(request: WriteRequest, who: str, labels: frozenset[str], annotations: frozenset[str]) -> str:
    kept = _but(request.old, "annotations", "labels") == _but(request.new, "annotations", "labels")
    if not kept or _changes_status(request):
        what = f"labels and annotations of node {_cut(request.name)}"
        return f"{who} may change {what} only, neither taints nor its spec or status"
    prefixes = NODE_LABEL_PREFIXES if labels else ()
    for field, allowed in (("labels", labels), ("annotations", annotations)):
        before, after = (nested_map(nested_map(one, "metadata"), field) for one in (request.old, request.new))
        for key in sorted(before.keys() | after.keys()):
            fits = key in allowed or (field == "labels" and key.startswith(prefixes or "\0"))
            if before.get(key) != after.get(key) and not fits:
                return f"{who} may not change {field.removesuffix('s')} {_cut(key)} of node {_cut(request.name)}"
    return ""


def _but(obj: Mapping[str, Any], *fields: str) -> dict[str, Any]:
    """The object without status, bookkeeping of the API server, and these fields of its metadata."""
    left = {key: value for key, value in obj.items() if key not in ("metadata", "status")}
    kept = ("name", "namespace", "labels", "annotations", "finalizers", "ownerReferences")
    metadata = nested_map(obj, "metadata")
    return {**left, "metadata": {key: metadata[key] for key in kept if metadata.get(key) and key not in fields}}


def _changes_status(request: WriteRequest) -> bool:
    """Whether a write of the status changes more than metadata; other writes cannot change a status."""
    return request.subresource == "status" and request.old.get("status") != request.new.get("status")


def _rows(obj: Any, key: str) -> list[Mapping[str, Any]]:
    found = obj.get(key) if isinstance(obj, Mapping) else None
    return [row for row in found if isinstance(row, Mapping)] if isinstance(found, list) else []


def _key(request: WriteRequest) -> str:
    return _cut(f"{request.namespace}/{request.name}" if request.namespace else request.name)


def _cut(text: str) -> str:
    return bounded(text, _MAX_NAME)


__all__ = [
    "AGENT",
    "ENGINE",
    "HOST_AGENT",
    "HOST_AGENTS",
    "SERVER",
    "WriteRequest",
    "concerned",
    "needs_node",
    "refusal",
    "reports_of",
]
