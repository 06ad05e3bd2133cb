"""Every pod of deploy/ may talk to what it needs and to nothing else; needs follow from arguments and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.kustomize import kustomized as overlay
from tests.test_deploy_nodes import COMPONENTS
from tests.test_deploy_nodes import built as nodes

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
ANYWHERE = "anywhere"
PROMETHEUS = "prometheus"
#: The API server: by its Service, and behind it.
API = ((ANYWHERE, "TCP", 443), (ANYWHERE, "TCP", 6443))
DNS = ((ANYWHERE, "UDP", 53), (ANYWHERE, "TCP", 53))
#: By which names settings and arguments mean a pod, and its port.
PEERS = {"belay-redis": 6379, "belay-server": 8899}

Flow = tuple[str, str, int]
"""(peer, protocol, port): the peer is a pod's name, `anywhere`, or for ingress `prometheus`."""


class PodKind(NamedTuple):
    """The pods of one workload."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    def ports(self) -> dict[str, int]:
        return {p["name"]: p["containerPort"] for c in self.spec["containers"] for p in c.get("ports") or ()}


def pod_kinds(documents: list[dict[str, Any]]) -> list[PodKind]:
    return [
        PodKind(
            d["metadata"]["name"], d["metadata"]["namespace"],
            d["spec"]["template"]["metadata"]["labels"], d["spec"]["template"]["spec"],
        )
        for d in documents if d["kind"] in WORKLOADS
    ]  # fmt: skip


def needed_egress(pod: PodKind, settings: Mapping[str, str], redis: bool = True) -> set[Flow]:
    """Whom the process calls; ``redis``: the shipped one runs, else one elsewhere is called, or its Sentinels."""
    (container,) = pod.spec["containers"]
    arguments = " ".join(container.get("args") or ())
    flows: set[Flow] = set()
    if pod.spec.get("serviceAccountName"):  # it talks to the API server, by its name
        flows |= {*API, *DNS}
    if any("configMapRef" in source for source in container.get("envFrom") or ()):
        assert re.match(r"rediss?://belay-redis:6379/", settings["BELAY_REDIS_URL"])
        flows |= {("belay-redis", "TCP", 6379)} if redis else {(ANYWHERE, "TCP", 6379), (ANYWHERE, "TCP", 26379)}
    variables = {entry["name"]: entry.get("value") or "" for entry in container.get("env") or ()}
    if arguments.startswith("controller"):
        flows.add((ANYWHERE, "TCP", 22 if "GIT_SSH_COMMAND" in variables else 443))
    if arguments.startswith("server") or arguments.startswith("agent"):  # a server relays, an agent may send faults
        flows.add(("belay-server", "TCP", 8899))
    assert "lanplus" not in arguments and "getPodFromKubelet" not in arguments, "needs a flow of its own"
    return flows


def needed_ingress(pod: PodKind) -> set[Flow]:
    """Who calls the process: whom a port is for."""
    readers = {"metrics": {PROMETHEUS}, "redis": {"belay-controller", "belay-worker", "belay-server"}}
    return {(peer, "TCP", port) for name, port in pod.ports().items() for peer in readers.get(name, {ANYWHERE})}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for one in selector.get("matchExpressions") or ():
        inside = labels.get(one["key"]) in one["values"]
        assert one["operator"] in ("In", "NotIn")
        if inside != (one["operator"] == "In"):
            return False
    return True


class Policies:
    """The NetworkPolicies of one deployment, as a network plugin reads them."""

    def __init__(self, documents: list[dict[str, Any]], pods: list[PodKind]) -> None:
        self._found = [d for d in documents if d["kind"] == "NetworkPolicy"]
        self._namespaces = {
            d["metadata"]["name"]: d["metadata"]["labels"] for d in documents if d["kind"] == "Namespace"
        }
        self._pods = pods

    def of(self, pod: PodKind, direction: str) -> list[dict[str, Any]]:
        return [
            d["spec"] for d in self._found
            if d["metadata"]["namespace"] == pod.namespace and direction in d["spec"]["policyTypes"]
            and selects(d["spec"]["podSelector"], pod.labels)
        ]  # fmt: skip

    def allowed(self, pod: PodKind, direction: str) -> set[Flow]:
        """Every flow that the policies of the pod allow, named by the pods of this deployment."""
        field, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
        found: set[Flow] = set()
        for spec in self.of(pod, direction):
            for rule in spec.get(field) or ():
                assert rule.get("ports"), "a rule without ports allows each"
                names = set(self._peers(pod, rule[peers])) if peers in rule else {ANYWHERE}
                for port in rule["ports"]:
                    number = port["port"] if isinstance(port["port"], int) else pod.ports().get(port["port"], 0)
                    assert number, f"{pod.name} has no port {port['port']}"
                    found |= {(name, port.get("protocol", "TCP"), number) for name in names}
        return found

    def _peers(self, pod: PodKind, peers: list[dict[str, Any]]) -> Iterator[str]:
        for peer in peers:
            assert set(peer) <= {"podSelector", "namespaceSelector"}
            chosen = peer.get("podSelector") or {}
            if chosen.get("matchLabels") == {"app": PROMETHEUS}:
                yield PROMETHEUS  # in any namespace
                continue
            matched = [
                other.name for other in self._pods
                if selects(chosen, other.labels) and (
                    selects(peer["namespaceSelector"], self._namespaces[other.namespace])
                    if "namespaceSelector" in peer else other.namespace == pod.namespace
                )
            ]  # fmt: skip
            assert matched, f"the policy of {pod.name} selects no pod: {peer}"
            yield from matched


def exporter(_: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "monitoring" / "exporter.yaml").read_text()))


WAYS = {
    "simulated": lambda _: overlay(ROOT / "deploy" / "overlays" / "simulated"),
    "nodes": nodes,
    "everything": lambda folder: nodes(folder, *COMPONENTS, "git-ssh", "git-ca"),
    "a Redis of one's own": lambda folder: nodes(folder, "redis-tls", "redis-existing"),
    "exporter": exporter,
}


@pytest.mark.parametrize("way", WAYS)
def test_each_pod_may_talk_to_what_it_needs_and_to_nothing_else(way: str, tmp_path: Path) -> None:
    documents = WAYS[way](tmp_path)
    (settings,) = [d["data"] for d in documents if d["metadata"]["name"] == "belay-settings"] or [{}]
    pods = pod_kinds(documents)
    policies = Policies(documents, pods)
    assert pods
    for pod in pods:
        for direction in ("Ingress", "Egress"):
            assert policies.of(pod, direction), f"{pod.name} has no policy of {direction}: everything is allowed"
        shipped = any(one.name == "belay-redis" for one in pods)
        wanted, given = needed_egress(pod, settings, shipped), policies.allowed(pod, "Egress")
        if way == "everything" and pod.name == "belay-server":  # component notifications: SMTP, an Alertmanager
            wanted |= {(ANYWHERE, "TCP", port) for port in (25, 465, 587, 9093)}
        if way == "everything" and pod.name in ("belay-controller", "belay-worker"):  # component tracing: a collector
            wanted |= {(ANYWHERE, "TCP", 4318)}
        assert given == wanted, f"{pod.name}: egress"
        assert policies.allowed(pod, "Ingress") == needed_ingress(pod), f"{pod.name}: ingress"
        for peer, protocol, port in {flow for flow in wanted if flow[0] != ANYWHERE}:
            (other,) = [one for one in pods if one.name == peer]
            assert PEERS[peer] == port and port in other.ports().values()
            let_in = policies.allowed(other, "Ingress")
            assert {(pod.name, protocol, port), (ANYWHERE, protocol, port)} & let_in, f"{peer} refuses {pod.name}"


@pytest.mark.parametrize("way", WAYS)
def test_services_lead_to_ports_that_policies_open(way: str, tmp_path: Path) -> None:
    documents = WAYS[way](tmp_path)
    pods = pod_kinds(documents)
    policies = Policies(documents, pods)
    for service in (d for d in documents if d["kind"] == "Service" and d["spec"].get("selector")):
        behind = [
            pod for pod in pods
            if pod.namespace == service["metadata"]["namespace"]
            and selects({"matchLabels": service["spec"]["selector"]}, pod.labels)
        ]  # fmt: skip
        assert behind, service["metadata"]["name"]
        for pod in behind:
            opened = {port for _, _, port in policies.allowed(pod, "Ingress")}
            assert {pod.ports()[port["targetPort"]] for port in service["spec"]["ports"]} <= opened


def test_a_pod_that_is_added_may_call_nothing(tmp_path: Path) -> None:
    documents = nodes(tmp_path)
    policies = Policies(documents, pod_kinds(documents))
    for namespace in ("belay-system", "belay-nodes"):
        stranger = PodKind("stranger", namespace, {"app": "x"}, {"containers": []})
        for direction in ("Ingress", "Egress"):
            assert policies.of(stranger, direction)
            assert policies.allowed(stranger, direction) <= {*DNS}
