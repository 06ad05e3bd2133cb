"""What each of Belay's accounts asks of the API server: derived from the code where that is possible, else listed with
the file that asks. Compared with deploy/ (`test_rights.py`) and with the audit log of a real API server.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from belay.engine.act.permitted import _WRITTEN
from belay.engine.kube import Resource, resource_for
from belay.engine.observe.resources import WATCHED
from belay.engine.observe.workload_watches import shipped_kinds
from belay.engine.serve.grpc.observed_cluster import WATCHED as SERVER_WATCHED


class Right(NamedTuple):
    """A verb on a resource; ``namespace`` is empty where it holds in all, ``name`` where it holds for all."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def covers(self, other: Right) -> bool:
        """Whether this right allows what the other is about."""
        same = (self.verb, self.group, self.resource) == (other.verb, other.group, other.resource)
        return same and self.namespace in ("", other.namespace) and self.name in ("", other.name)


class Asked(NamedTuple):
    """Rights that one file asks for."""

    file: str
    group: str
    resource: str
    verbs: str
    namespace: str = ""
    name: str = ""

    def rights(self) -> set[Right]:
        return {Right(verb, self.group, self.resource, self.namespace, self.name) for verb in self.verbs.split()}


SYSTEM, NODES = "belay-system", "belay-nodes"
#: Not granted, although a plan could contain it.
NEVER: Mapping[Right, str] = {
    Right("delete", "", "namespaces"): "Secrets that the engine cannot see would go with it",
}
#: Status that plans patch by the subresource.
_STATUS = ("AscendJob", "Job.batch.volcano.sh", "InferServiceSet", "InferService", "InstanceSet", "PodGroup", "Queue")
#: Older versions: of the same group, or never served beside the newer one.
_OLD = {"scheduling.incubator.k8s.io/v1alpha1", "autoscaling/v2beta2"}

ENGINE = (
    Asked("engine/plan/place/nodes/claim_choices.py", "resource.k8s.io", "resourceclaims", "patch"),
    Asked("engine/plan/place/nodes/claim_choices.py", "resource.k8s.io", "resourceclaims/status", "patch"),
    Asked("engine/plan/claims/extended.py", "resource.k8s.io", "resourceclaims", "create"),
    # newer API servers ask for it beside the status, when allocation and users change
    Asked("engine/plan/place/nodes/claim_choices.py", "resource.k8s.io", "resourceclaims/binding", "patch"),
    Asked("engine/act/orders.py", "", "nodes", "get patch"),
    Asked("engine/act/pods.py", "", "pods", "get list create delete"),
    Asked("engine/act/objects.py", "", "pods/status", "patch"),
    Asked("engine/act/pods.py", "", "pods/binding", "create"),
    Asked("engine/act/pods.py", "", "pods/eviction", "create"),
    Asked("engine/controller/waiting_writer.py", "", "pods/status", "patch"),
    Asked("engine/controller/waiting_writer.py", "", "events", "get create patch"),
    Asked("engine/act/claims.py", "", "configmaps", "get create update"),
    Asked("engine/controller/status_writer.py", "", "configmaps", "create patch delete"),
    Asked("engine/act/ssh_keys.py", "", "secrets", "create"),
    Asked("engine/act/permitted.py", "scheduling.k8s.io", "podgroups/status", "patch"),
    Asked("engine/act/permitted.py", "", "persistentvolumeclaims", "patch"),
    Asked("engine/act/permitted.py", "", "persistentvolumes", "patch"),
    Asked("engine/act/permitted.py", "bus.volcano.sh", "commands", "delete"),
    Asked("engine/kube/lease.py", "coordination.k8s.io", "leases", "get list create update", SYSTEM),
)
SERVER = (
    Asked("engine/serve/records/writer.py", "", "events", "list watch"),
    Asked("engine/serve/notify/service.py", "belay.dev", "notificationpolicies", "list watch"),
    Asked("engine/serve/notify/ledger_map.py", "", "configmaps", "get create update", SYSTEM),
    Asked("engine/serve/grpc/recovery/cluster_writer.py", "", "pods/status", "patch"),
    Asked("engine/serve/grpc/recovery/cluster_writer.py", "", "nodes/status", "patch"),
    Asked("engine/serve/grpc/recovery/cluster_writer.py", "scheduling.volcano.sh", "podgroups", "patch"),
    Asked("engine/serve/grpc/recovery/cluster_writer.py", "", "configmaps", "get update"),
    Asked("engine/serve/grpc/profiling.py", "", "configmaps", "get create update"),
    Asked("engine/serve/grpc/slow_nodes.py", "", "configmaps", "get create update", SYSTEM),
    Asked("engine/serve/grpc/super_pods.py", "", "configmaps", "get create update", "cluster-system"),
    Asked("engine/serve/grpc/recovery/session_store.py", "", "configmaps", "delete", SYSTEM),
    Asked("engine/serve/grpc/recovery/registry.py", "", "events", "get create patch"),
    Asked("engine/serve/console/viewers.py", "authentication.k8s.io", "tokenreviews", "create"),
    Asked("engine/serve/console/viewers.py", "authorization.k8s.io", "subjectaccessreviews", "create"),
    Asked("engine/serve/grpc/token_reviews.py", "authentication.k8s.io", "tokenreviews", "create"),
    Asked("engine/serve/grpc/leader.py", "coordination.k8s.io", "leases", "get update", SYSTEM, "belay-recovery"),
    Asked("engine/serve/grpc/leader.py", "coordination.k8s.io", "leases", "create", SYSTEM),
)
AGENT = (
    Asked("agents/common/client.py", "", "nodes", "get"),
    Asked("agents/common/client.py", "", "nodes/status", "patch"),
    Asked("agents/common/client.py", "", "pods", "list watch"),
    Asked("agents/kubelet/plugin.py", "", "pods/status", "patch"),
    Asked("agents/node/jobfiles.py", "", "configmaps", "list watch"),
    Asked("agents/kubelet/slownode.py", "", "configmaps", "list watch", "kube-system", "steptime-dtpgroup"),
    Asked("agents/node/followed_orders.py", "", "configmaps", "get list watch", SYSTEM),
    Asked("agents/node/agent.py", "", "configmaps", "get create patch", NODES),
    Asked("agents/node/agent.py", "", "configmaps", "get create patch", "kube-system"),
    Asked("agents/node/agent.py", "", "events", "create", "kube-system"),
    Asked("agents/node/cluster_tables.py", "", "configmaps", "list watch", "kube-system", "mindx-dl-fault-config"),
    Asked("agents/node/cluster_tables.py", "", "configmaps", "list watch", "mindx-dl", "mindx-dl-node-fault-config"),
    Asked("agents/node/surroundings_monitor.py", "", "configmaps", "get create patch delete", "mindx-dl"),
    Asked("agents/node/surroundings_monitor.py", "", "configmaps", "get create patch", "cluster-system"),
    Asked("agents/node/hardware/pingmesh.py", "", "configmaps", "list watch", "cluster-system"),
)
#: With deploy/components/dra.
AGENT_DRA = (
    Asked("agents/dra/publisher.py", "resource.k8s.io", "resourceslices", "get list create update delete"),
    Asked("agents/dra/driver.py", "resource.k8s.io", "resourceclaims", "get"),
)
ADMISSION = (
    Asked("engine/serve/admission/server.py", "", "pods", "get"),
    Asked("engine/serve/admission/server.py", "", "nodes", "get"),
    Asked(
        "engine/serve/admission/server.py", "admissionregistration.k8s.io", "validatingwebhookconfigurations",
        "get update", "", "belay-admission",
    ),
)  # fmt: skip


def needed() -> dict[str, set[Right]]:
    """The rights that each account needs, by the account's name."""
    listed = {
        "belay-engine": ENGINE,
        "belay-server": SERVER,
        "belay-agent": (*AGENT, *AGENT_DRA),
        "belay-admission": ADMISSION,
    }
    found = {account: set().union(*(one.rights() for one in rows)) for account, rows in listed.items()}
    found["belay-engine"] |= _watched(one.resource for one in WATCHED) | _written()
    found["belay-server"] |= _watched(one.resource for one in SERVER_WATCHED)
    found["belay-server"] |= {right for right in _watched(one.resource for one in WATCHED) if right.verb == "list"}
    kinds = {Right(verb, row.group, row.plural) for row in shipped_kinds() if row.group for verb in ("list", "watch")}
    found["belay-engine"] |= kinds
    found["belay-server"] |= kinds  # one role for both: the server only lists them
    found["belay-engine"] -= NEVER.keys()
    return found


def _watched(resources: Iterable[Resource]) -> set[Right]:
    return {Right(verb, _group(one), one.plural) for one in resources for verb in ("list", "watch")}


def _written() -> set[Right]:
    """Objects that plans apply (create and patch), delete, and read before a deletion that waits for them."""
    found = set()
    for api_version, kind in _WRITTEN:
        if api_version in _OLD or kind == "Source":  # a Source is not an object of the cluster
            continue
        one = resource_for(api_version, kind)
        found |= {Right(verb, _group(one), one.plural) for verb in ("get", "create", "patch", "delete")}
        if _group(one) == "belay.dev" or {kind, f"{kind}.{_group(one)}"} & set(_STATUS):
            found.add(Right("patch", _group(one), f"{one.plural}/status"))
    return found


def _group(resource: Resource) -> str:
    return resource.api_version.rpartition("/")[0]


def granted(documents: Iterable[Mapping[str, Any]]) -> dict[str, set[Right]]:
    """The rights that manifests give to each account."""
    documents = list(documents)
    rules = {
        (d["kind"], d["metadata"]["name"], d["metadata"].get("namespace", "")): _rules(d, documents)
        for d in documents if d["kind"] in ("Role", "ClusterRole")
    }  # fmt: skip
    found: dict[str, set[Right]] = defaultdict(set)
    for binding in (d for d in documents if d["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        namespace = binding["metadata"].get("namespace", "")
        reference = binding["roleRef"]
        place = namespace if reference["kind"] == "Role" else ""
        for subject in binding["subjects"]:
            for rule in rules[reference["kind"], reference["name"], place]:
                found[subject["name"]] |= {
                    Right(verb, group, resource, namespace, name)
                    for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
                    for name in rule.get("resourceNames", [""])
                }  # fmt: skip
    return dict(found)


def _rules(role: Mapping[str, Any], documents: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rules of a role, with those that Kubernetes adds to it by their label."""
    found = list(role["rules"])
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors", ()):
        wanted = selector["matchLabels"].items()
        for other in documents:
            if other["kind"] == "ClusterRole" and wanted <= (other["metadata"].get("labels") or {}).items():
                found += other["rules"]
    return found


def audited(log: Path) -> dict[str, dict[Right, int]]:
    """What accounts asked of a real API server, and the HTTP status of the answer, from its audit log."""
    found: dict[str, dict[Right, int]] = defaultdict(dict)
    for line in log.read_text().rpartition("\n")[0].splitlines():  # the last line may be half written
        event = json.loads(line)
        about = event.get("objectRef")
        if about is None or "resource" not in about:
            continue  # discovery, which every account may
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        place = about.get("namespace", ""), about.get("name", "")
        right = Right(event["verb"], about.get("apiGroup", ""), resource, *place)
        account = event["user"]["username"].rpartition(":")[2]
        code = int((event.get("responseStatus") or {}).get("code", 0))
        found[account][right] = max(code, found[account].get(right, 0))
    return dict(found)
