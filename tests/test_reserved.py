"""Records of components and objects of the system are refused in Git at their line; the rest counts."""

from __future__ import annotations

import pytest

from belay.engine.load import load
from belay.engine.wire.reserved import RECORDS, refusal, writer_of

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: {namespace}\ndata: {{a: b}}\n"
REFUSED = [
    ("belay-system", "belay-orders-node-1", "Belay"),
    ("belay-system", "belay-budget", "Belay"),
    ("belay-system", "belay-sync", "Belay"),
    ("belay-system", "belay-ledger-main", "Belay"),
    ("belay-system", "belay-policy-default", "Belay"),
    ("belay-system", "belay-settings", "Belay"),
    ("belay-nodes", "belay-report-node-1", "the node's agent"),
    ("belay-nodes", "anything", "the node's agent"),
    ("kube-system", "mindx-dl-deviceinfo-node-1", "the node's device plugin"),
    ("kube-system", "mindx-dl-switchinfo-node-1", "the node's device plugin"),
    ("mindx-dl", "mindx-dl-nodeinfo-node-1", "NodeD of the node"),
    ("mindx-dl", "cluster-info-device-0", "ClusterD"),
    ("mindx-dl", "cluster-info-node-cm", "ClusterD"),
    ("volcano-system", "vcjob-fault-npu-cm", "the scheduler"),
    ("cluster-system", "fault-job-info", "ClusterD"),
    ("cluster-system", "statistic-fault-info", "ClusterD"),
    ("cluster-system", "clusterd-manual-info-cm", "ClusterD"),
    ("default", "job-summary-train", "ClusterD"),
    ("kube-system", "coredns", "Kubernetes"),
    ("default", "kube-root-ca.crt", "Kubernetes"),
]


@pytest.mark.parametrize(("namespace", "name", "writer"), REFUSED)
def test_a_record_is_refused_where_it_is_named(namespace: str, name: str, writer: str) -> None:
    text = CONFIG.format(name="mine", namespace="default") + "---\n" + CONFIG.format(name=name, namespace=namespace)
    loaded = load({"desired/a.yaml": text.encode()})
    (found,) = loaded.diagnostics
    assert (found.severity, found.file, found.line, found.column) == ("error", "desired/a.yaml", 11, 9)
    assert found.field == "metadata.name" and writer in found.message and "remove the document" in found.message
    assert [manifest.key.name for manifest in loaded.desired.manifests] == ["mine"], "nothing else is lost"
    assert not loaded.refused


@pytest.mark.parametrize(
    ("namespace", "name"),
    [
        ("default", "reset-config-train"),
        ("default", "rings-config-train"),
        ("default", "belay-budget"),
        ("volcano-system", "volcano-scheduler-configmap"),
        ("cluster-system", "pingmesh-config"),
    ],
)
def test_what_people_write_and_components_read_is_declared(namespace: str, name: str) -> None:
    loaded = load({"desired/a.yaml": CONFIG.format(name=name, namespace=namespace).encode()})
    assert loaded.diagnostics == () and [one.key.name for one in loaded.desired.manifests] == [name]


def test_what_people_write_in_a_namespace_of_kubernetes_counts_with_a_warning() -> None:
    """With admission, as installed, the API server refuses Belay to write it."""
    text = CONFIG.format(name="mindx-dl-fault-config", namespace="kube-system")
    loaded = load({"desired/a.yaml": text.encode()})
    (said,) = loaded.diagnostics
    assert (said.severity, said.line, said.field) == ("warning", 5, "metadata.namespace")
    assert "apply it by kubectl" in said.message and len(loaded.desired.manifests) == 1


def test_the_priority_of_belays_own_pods_is_not_declared() -> None:
    text = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\nvalue: 5\n"
    loaded = load({f"desired/{name}.yaml": (text % name).encode() for name in ("belay-control", "urgent")})
    assert [(one.file, one.severity) for one in loaded.diagnostics] == [("desired/belay-control.yaml", "error")]
    assert [manifest.key.name for manifest in loaded.desired.manifests] == ["urgent"]


@pytest.mark.parametrize("namespace", ["kube-system", "kube-public", "kube-node-lease", "belay-system", "belay-nodes"])
def test_nothing_runs_in_a_namespace_of_the_system(namespace: str) -> None:
    head = f"apiVersion: v1\nkind: Service\nmetadata: {{name: x, namespace: {namespace}}}\n"
    service = f"{head}spec: {{ports: [{{port: 1}}]}}\n"
    own = f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}\n"
    loaded = load({"desired/a.yaml": f"{service}---\n{own}".encode()})
    assert loaded.desired.manifests == ()
    places = {(one.line, one.field): one.message for one in loaded.diagnostics}
    assert "choose another namespace" in places[3, "metadata.namespace"]
    assert f"namespace {namespace} belongs to Kubernetes or Belay" in places[8, "metadata.name"]


@pytest.mark.parametrize(
    "kind",
    [
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"), ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("rbac.authorization.k8s.io/v1", "Role"), ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        ("v1", "Secret"), ("v1", "ServiceAccount"), ("v1", "Node"), ("v1", "Pod"),
        ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"), ("coordination.k8s.io/v1", "Lease"),
        ("apps/v1", "DaemonSet"), ("policy/v1", "PodDisruptionBudget"),
    ],
)  # fmt: skip
def test_kinds_that_bear_rights_are_not_declared(kind: tuple[str, str]) -> None:
    text = f"apiVersion: {kind[0]}\nkind: {kind[1]}\nmetadata: {{name: x}}\n"
    loaded = load({"desired/a.yaml": text.encode(), "desired/b.yaml": CONFIG.format(name="m", namespace="a").encode()})
    assert [one.file for one in loaded.diagnostics] == ["desired/a.yaml"]
    assert [manifest.key.name for manifest in loaded.desired.manifests] == ["m"]


def test_every_record_has_its_writer() -> None:
    for row in RECORDS:
        name = row.name.replace("*", "x")
        assert writer_of(row.namespace or "anywhere", name) and refusal("ConfigMap", row.namespace or "anywhere", name)
        assert not refusal("ConfigMap", "default", "mine")
