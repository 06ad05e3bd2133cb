"""The Helm chart and kustomize make the same objects of the same manifests; and what values change beyond them."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from belay.engine import settings
from belay.engine.cli.rights import rendered
from belay.engine.serve.admission.rules import SERVER_RECORDS, reports_of
from tests.chart import CHART, ROOT, SCHEMA, components, library, plain, render, schema
from tests.kube_server import define
from tests.kustomize import kustomized
from tests.permits import READS
from tests.pod_security import ENFORCE, violations
from tests.rights import granted
from tests.test_network_policies import PodKind, Policies, pod_kinds

IMAGE = {"repository": "registry.example.com/belay", "tag": "9.9.9"}
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
OVERLAYS = {
    "none": "base",
    "simulated": "overlays/simulated",
    "npu": "overlays/nodes",
    "npu-alone": "overlays/nodes-alone",
}
AGENTS = [
    "ascend950",
    "dra",
    "metrics",
    "rdma",
    "reset-plugins",
    "snapshots",
    "soc",
    "soft-shares",
    "storage-clients",
    "super-pod",
]
#: (mode of agents, components): each component once, and many together.
WAYS: list[tuple[str, list[str]]] = [
    ("none", []),
    ("simulated", []),
    ("npu", []),
    ("npu-alone", ["metrics"]),
    ("npu", AGENTS),
    (
        "npu",
        [
            "metrics",
            "scrape-annotations",
            "disruption-budgets",
            "prometheus-operator",
            "redis-tls",
            "git-ssh",
            "git-ca",
        ],
    ),
    ("none", ["git-token", "redis-existing", "history-volume", "notifications", "tracing"]),
    ("none", ["admission-policy", "host-agents", "redis-tls", "redis-existing"]),
]
#: Said by a value of its own.
BY_NAME = "without-admission"
DIGEST = "belay.dev/settings"
#: What no account writes everywhere in an installation without admission.
BY_NAME_ONLY = frozenset(
    {"configmaps", "pods", "pods/status", "pods/binding", "pods/eviction", "nodes/status", "secrets", "leases",
     "services", "deployments", "statefulsets", "jobs", "namespaces", "podgroups", "ascendjobs", "resourceslices"}
)  # fmt: skip
Key = tuple[str, str, str, str]


def by_name(documents: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    for one in documents:
        metadata = one["metadata"]
        key = (one["apiVersion"], one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in found, f"{key} twice"
        found[key] = one
    return found


@pytest.fixture(scope="module")
def kustomize(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function: (overlay, components, further fields) -> what kustomize builds."""
    folder = tmp_path_factory.mktemp("kustomize")
    for name in ("base", "overlays", "components"):
        shutil.copytree(ROOT / "deploy" / name, folder / name)
    mine = folder / "mine"
    mine.mkdir()

    def build(overlay: str, listed: list[str], **more: Any) -> list[dict[str, Any]]:
        images = [{"name": "belay", "newName": IMAGE["repository"], "newTag": IMAGE["tag"]}]
        named = {
            "resources": [f"../{overlay}"],
            "components": [f"../components/{one}" for one in listed],
            "images": images,
        }
        (mine / "kustomization.yaml").write_text(
            yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **named, **more})
        )
        return kustomized(mine)

    return build


def same(chart: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Object by object; definitions are not kustomize's (`kubectl apply -f deploy/crds`)."""
    ours = by_name([plain(one) for one in chart if one["kind"] != "CustomResourceDefinition"])
    theirs = by_name([plain(one) for one in other])
    assert sorted(ours) == sorted(theirs)
    for key, one in theirs.items():
        assert ours[key] == one, key


def test_the_ways_meet_every_component() -> None:
    assert {name for _, listed in WAYS for name in listed} | {BY_NAME} == set(components())


@pytest.mark.parametrize(
    ("mode", "listed"), WAYS, ids=lambda one: one if isinstance(one, str) else ",".join(one) or "-"
)
def test_helm_and_kustomize_make_the_same_objects(kustomize: Any, mode: str, listed: list[str]) -> None:
    values = {"image": IMAGE, "agents": {"mode": mode}, "components": listed, "admissionControl": "webhook"}
    same(render(values), kustomize(OVERLAYS[mode], listed))


@pytest.mark.parametrize(
    ("control", "listed"),
    [("auto", []), ("webhook", []), ("policy", ["admission-policy"])],
)
def test_one_value_says_who_checks_what_belay_writes(kustomize: Any, control: str, listed: list[str]) -> None:
    """Rendered without a cluster, Helm knows of no policies: the webhook is what every server understands."""
    chart = render({"image": IMAGE, "agents": {"mode": "npu"}, "admissionControl": control})
    same(chart, kustomize(OVERLAYS["npu"], listed))


@pytest.mark.parametrize("mode", sorted(OVERLAYS))
def test_without_admission_both_grant_by_name(kustomize: Any, tmp_path: Path, mode: str) -> None:
    """The chart grants what `belay rights` prints, and no account keeps a write that holds for every name."""
    listed = {"nodes": ["n1", "n0.example.com"], "namespaces": ["team-a"], "superPods": ["3"]}
    chart = render({"image": IMAGE, "agents": {"mode": mode}, "admissionControl": "none", "withoutAdmission": listed})
    printed = list(yaml.safe_load_all(rendered(listed["nodes"], listed["namespaces"], ["main"], listed["superPods"])))
    if mode == "none":  # MindCluster's device plugin and NodeD report
        printed = [one for one in printed if not about_agents(one)]
    same(chart, [*kustomize(OVERLAYS[mode], [BY_NAME]), *printed])

    for account, rights in granted(chart).items():
        for right in rights:
            named = right.name or right.namespace in {"team-a", "belay-recovery"} or right.verb in READS
            assert named or right.namespace or right.resource not in BY_NAME_ONLY, f"{account}: {right}"
            assert named or right.namespace not in {"kube-system", "belay-nodes"}, f"{account}: {right}"


def about_agents(document: dict[str, Any]) -> bool:
    own = document["kind"] == "ConfigMap" and "super-pod" not in document["metadata"]["name"]
    return own or document["metadata"]["name"].startswith("belay-agent-")


def test_records_that_are_made_for_agents_are_those_that_they_write() -> None:
    made = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in yaml.safe_load_all(rendered(["n0"], [], [])) if one["kind"] == "ConfigMap"
    }  # fmt: skip
    assert made == reports_of("n0")
    fixed = yaml.safe_load_all((ROOT / "deploy" / "components" / BY_NAME / "rbac.yaml").read_text())
    server = {(d["metadata"]["namespace"], d["metadata"]["name"]) for d in fixed if d["kind"] == "ConfigMap"}
    assert server == SERVER_RECORDS


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agents": {"mode": "npu"}, "withoutAdmission": {"namespaces": ["a"]}}, "list withoutAdmission.nodes"),
        ({"withoutAdmission": {"nodes": ["n0"]}}, "list the namespaces of jobs"),
        ({"withoutAdmission": {"namespaces": ["kube-system"]}}, "kube-system belongs to Kubernetes"),
    ],
)
def test_what_by_name_lacks_is_said(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        render({"admissionControl": "none", **values})
    with pytest.raises(Exception, match="set that instead"):
        render({"components": [BY_NAME]})


def test_sets_of_agents_have_no_right_of_their_account(tmp_path: Path) -> None:
    sets = [{"name": "a3", "components": ["super-pod", "dra"]}]
    listed = {"nodes": ["n0"], "namespaces": ["team-a"], "kubeletConfig": "/etc/rancher/kubelet.yaml"}
    chart = render(
        {"agents": {"mode": "npu", "sets": sets}, "admissionControl": "none", "withoutAdmission": listed}
    )  # fmt: skip
    assert "belay-agent" not in granted(chart)
    (agents,) = [one for one in chart if one["kind"] == "DaemonSet"]
    pod = agents["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    paths = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert {"name": "KUBECONFIG", "value": "/etc/rancher/kubelet.yaml"} in container["env"]
    for name in ("kubelet-config", "kubelet-certificates"):
        assert mounts[name] == paths[name]
    assert mounts["kubelet-config"] == "/etc/rancher/kubelet.yaml"


def test_values_say_what_patches_say(kustomize: Any) -> None:
    resources = {"requests": {"cpu": "2", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}
    selector, where = {"node-role.kubernetes.io/control-plane": ""}, "/spec/template/spec"
    tolerations = [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}]
    values = {
        "image": IMAGE,
        "agents": {"mode": "npu", "args": ["-listWatchPeriod=5"], "resources": resources},
        "settings": {"BELAY_SOURCE_URL": "ssh://git@git.example.com/a.git", "BELAY_RESYNC": 5,
                     "BELAY_BATCH_BYTES": 67108864, "BELAY_FOREIGN_CONSUMERS": True},
        "worker": {"replicas": 5, "resources": resources, "nodeSelector": selector, "tolerations": tolerations},
        "controller": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}]},
        "server": {"podLabels": {"team": "a"}, "priorityClassName": "system-cluster-critical"},
    }  # fmt: skip

    def patch(kind: str, name: str, *operations: tuple[str, str, Any]) -> dict[str, Any]:
        text = yaml.safe_dump([{"op": op, "path": path, "value": value} for op, path, value in operations])
        return {"target": {"kind": kind, "name": name}, "patch": text}

    patches = [
        patch("DaemonSet", "belay-agent", ("add", f"{where}/containers/0/args/-", "-listWatchPeriod=5"),
              ("replace", f"{where}/containers/0/resources", resources)),
        patch("ConfigMap", "belay-settings", ("replace", "/data/BELAY_SOURCE_URL", "ssh://git@git.example.com/a.git"),
              ("add", "/data/BELAY_RESYNC", "5"), ("add", "/data/BELAY_BATCH_BYTES", "67108864"),
              ("add", "/data/BELAY_FOREIGN_CONSUMERS", "1")),
        patch("StatefulSet", "belay-worker", ("replace", "/spec/replicas", 5),
              ("add", f"{where}/nodeSelector", selector),
              ("replace", f"{where}/containers/0/resources", resources), ("add", f"{where}/tolerations", tolerations)),
        patch("Deployment", "belay-controller", ("add", f"{where}/containers/0/env/-",
              {"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"})),
        patch("Deployment", "belay-server", ("add", "/spec/template/metadata/labels/team", "a"),
              ("add", f"{where}/priorityClassName", "system-cluster-critical")),
    ]  # fmt: skip
    same(render(values), kustomize("overlays/nodes", [], patches=patches))


def test_the_exporter_is_the_one_of_its_manifest() -> None:
    own = {"image": IMAGE, "exporter": {"enabled": True}}
    manifest = list(yaml.safe_load_all((ROOT / "deploy" / "monitoring" / "exporter.yaml").read_text()))
    for one in manifest:
        if one["kind"] == "DaemonSet":
            one["spec"]["template"]["spec"]["containers"][0]["image"] = "registry.example.com/belay:9.9.9"
    ours = by_name([plain(one) for one in render(own)])
    for key, one in by_name(manifest).items():
        assert ours[key] == plain(one)


def test_definitions_and_rules_are_those_of_their_files() -> None:
    found = by_name([plain(one) for one in render({"monitoring": {"rules": True, "labels": {"release": "p"}}})])
    files = sorted((ROOT / "deploy" / "crds").glob("*.yaml"))
    for key, one in by_name([d for file in files for d in yaml.safe_load_all(file.read_text())]).items():
        assert found.pop(key) == plain(one)
    assert not [key for key in found if key[1] == "CustomResourceDefinition"]
    rule = found["monitoring.coreos.com/v1", "PrometheusRule", "belay-system", "belay"]
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "p"


SETS = [
    {"name": "a2", "nodeSelector": {"accelerator-type": "module-910b-8"}},
    {"name": "a3", "nodeSelector": {"accelerator-type": "module-a3-16-super-pod"}, "components": ["super-pod"]},
    {
        "name": "a5",
        "nodeSelector": {"accelerator": "huawei-npu"},
        "components": ["ascend950", "super-pod"],
        "args": ["-x"],
    },
]


def test_kinds_of_nodes_get_agents_of_their_own(kustomize: Any) -> None:
    found = by_name([plain(one) for one in render({"image": IMAGE, "agents": {"mode": "npu", "sets": SETS}})])
    agents = {key[3]: one for key, one in found.items() if key[1] == "DaemonSet"}
    assert set(agents) == {"belay-agent-a2", "belay-agent-a3", "belay-agent-a5"}
    assert ("rbac.authorization.k8s.io/v1", "Role", "cluster-system", "belay-agent-super-pod") in found
    for own in SETS:
        listed = own.get("components", [])
        one = copy.deepcopy(agents[f"belay-agent-{own['name']}"])
        spec, template = one["spec"], one["spec"]["template"]
        # exactly its own pods: two sets never take each other's
        assert spec["selector"]["matchLabels"]["belay.dev/agents"] == own["name"]
        assert template["spec"]["nodeSelector"] == {"workerselector": "dls-worker-node", **own["nodeSelector"]}
        for labels in (one["metadata"]["labels"], spec["selector"]["matchLabels"], template["metadata"]["labels"]):
            del labels["belay.dev/agents"]
        one["metadata"]["name"] = "belay-agent"
        template["spec"]["nodeSelector"] = {"workerselector": "dls-worker-node"}
        arguments = template["spec"]["containers"][0]["args"]
        for word in own.get("args", []):
            arguments.remove(word)
        (alone,) = [plain(d) for d in kustomize("overlays/nodes", listed) if d["kind"] == "DaemonSet"]
        assert one == alone, own["name"]


def test_an_existing_redis_with_sentinels_takes_the_place_of_the_shipped_one() -> None:
    url = "rediss+sentinel://a.example.com:26380,b.example.com:26380/mymaster/0"
    values = {
        "components": ["redis-tls", "redis-existing"],
        "redis": {"url": url, "passwordSecret": {"name": "cache", "key": "pw"}, "tlsSecret": "cache-ca",
                  "ports": [6380, 26380]},
    }  # fmt: skip
    documents = render(values)
    found = by_name(documents)
    assert not [key for key in found if key[3] == "belay-redis"]
    data = found["v1", "ConfigMap", "belay-system", "belay-settings"]["data"]
    assert data["BELAY_REDIS_URL"] == url
    assert settings.from_environment({"BELAY_REDIS_URL": url}).redis_url == url
    pods = pod_kinds(documents)
    policies = Policies(documents, pods)
    for pod in (one for one in pods if "redis" in {volume["name"] for volume in one.spec["volumes"]}):
        volumes = {volume["name"]: volume.get("secret") for volume in pod.spec["volumes"]}
        assert volumes["redis"]["secretName"] == "cache"
        assert volumes["redis"]["items"] == [{"key": "pw", "path": "password"}]
        assert volumes["redis-tls"]["secretName"] == "cache-ca"
        open_ports = {port for _, _, port in policies.allowed(pod, "Egress")}
        assert {6380, 26380} <= open_ports and not {6379, 26379} & open_ports


@pytest.mark.parametrize("mode", OVERLAYS)
def test_pods_of_the_chart_pass_their_namespace_and_have_policies(mode: str) -> None:
    documents = render({"agents": {"mode": mode, "sets": SETS if mode == "npu" else []}, "exporter": {"enabled": True}})
    levels = {d["metadata"]["name"]: d["metadata"]["labels"][ENFORCE] for d in documents if d["kind"] == "Namespace"}
    pods = pod_kinds(documents)
    policies = Policies(documents, pods)
    for pod in pods:
        assert violations(pod.spec, levels[pod.namespace]) == [], pod.name
        for direction in ("Ingress", "Egress"):
            assert isinstance(pod, PodKind) and (policies.of(pod, direction) or mode == "npu-alone"), pod.name


def test_a_changed_setting_starts_pods_again() -> None:
    def digests(**own: Any) -> dict[str, str]:
        return {
            d["metadata"]["name"]: (d["spec"]["template"]["metadata"].get("annotations") or {}).get(DIGEST, "")
            for d in render(own) if d["kind"] in WORKLOADS
        }  # fmt: skip

    before, after = digests(), digests(settings={"BELAY_RESYNC": 7})
    assert {name for name in before if before[name] != after[name]} == {
        "belay-controller",
        "belay-worker",
        "belay-server",
    }
    assert before == digests()
    assert set(digests(restartOnSettings=False).values()) == {""}


def test_the_schema_is_the_one_of_the_code() -> None:
    assert json.loads(SCHEMA.read_text()) == schema(), "run make chart"
    known = {settings.PREFIX + field.name.upper() for field in msgspec.structs.fields(settings.Settings)}
    assert set(schema()["properties"]["settings"]["properties"]) == known
    assert set(yaml.safe_load((CHART / "values.yaml").read_text())) | {"global"} == set(schema()["properties"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"setings": {}}, "setings"),
        ({"settings": {"BELAY_RESYNK": 1}}, "BELAY_RESYNK"),
        ({"settings": {"BELAY_RESYNC": 0}}, "BELAY_RESYNC"),
        ({"settings": {"BELAY_LEASE": "soon"}}, "BELAY_LEASE"),
        ({"components": ["git-shh"]}, "components"),
        ({"agents": {"mode": "real"}}, "mode"),
        ({"agents": {"sets": [{"nodeSelector": {}}]}}, "name"),
        ({"worker": {"replicas": -1}}, "replicas"),
        ({"redis": {"url": "redis://:secret@host:6379/0"}}, "url"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"image": {"tag": 0.2}}, "tag"),
        ({"image": {"repository": ""}}, "repository"),
        ({"image": {"repository": "a b"}}, "repository"),
        ({"agents": {"mode": None}}, "mode"),
        ({"worker": {"resources": {"requests": {"cpu": ["1"]}}}}, "cpu"),
        ({"worker": {"resources": {"request": {}}}}, "request"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], said: str) -> None:
    helm = library()
    with helm.Chart.load(CHART) as chart, pytest.raises(helm.HelmError, match=said):
        chart.validate_schema(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agents": {"mode": "npu", "sets": [{"name": "a"}, {"name": "a"}]}}, "two are named a"),
        ({"components": ["git-token", "git-ssh"]}, "exclude each other"),
    ],
    ids=["sets", "git"],
)
def test_values_that_cannot_go_together_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(library().HelmError, match=said):
        render(values)


def test_helm_lints_the_chart_and_packs_all_it_needs(tmp_path: Path) -> None:
    helm = library()
    report = helm.lint(CHART, {"agents": {"mode": "npu"}}, strict=True, kube_version="v1.20.2")
    assert report["errors"] == [] and [one for one in report["messages"] if one["severity"] > 1] == []
    with helm.Chart.load(CHART) as chart:
        packed = Path(chart.save(tmp_path))
    assert packed.stat().st_size < 400_000, "a release's Secret holds at most 1 MiB"
    values = {"agents": {"mode": "npu"}, "components": ["git-ssh", "disruption-budgets"]}
    assert render(values, packed) == render(values)


@pytest.mark.e2e
def test_a_real_api_server_takes_it_upgrades_it_and_goes_back(own_kubeconfig: str, tmp_path: Path) -> None:
    helm, kubeconfig = library(), own_kubeconfig
    define(Path(kubeconfig))
    first = {"image": IMAGE, "agents": {"mode": "npu"}, "components": ["disruption-budgets", "metrics", "git-ssh"]}
    second = {**first, "image": {**IMAGE, "tag": "10.0.0"}, "worker": {"replicas": 5}, "settings": {"BELAY_RESYNC": 5},
              "components": ["metrics", "git-ssh", "redis-tls"]}  # fmt: skip
    kubectl = ["kubectl", "--kubeconfig", kubeconfig, "-n", "belay-system"]

    def live(*names: str) -> Any:
        done = subprocess.run([*kubectl, "get", *names, "-o", "json"], capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def served(version: str) -> bool:
        done = subprocess.run([*kubectl, "api-versions"], capture_output=True, text=True, timeout=60)
        return version in done.stdout.split()

    subprocess.run([*kubectl, "create", "namespace", "belay-system"], capture_output=True, timeout=60)
    # every object with every component that Kubernetes 1.20 serves, as kubectl sends it
    more = ["redis-tls", "super-pod", "host-agents", "git-ca", "git-token"]
    # policy/v1 came with 1.21
    budgets = {"apiVersion": "policy/v1" if served("policy/v1") else "policy/v1beta1"}
    everything = render({**first, "components": ["disruption-budgets", "metrics", *more]})
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(
        [one | budgets if one["kind"] == "PodDisruptionBudget" else one for one in everything
         if one["kind"] not in ("Namespace", "CustomResourceDefinition")]
    ))  # fmt: skip
    with helm.Config(kubeconfig_path=kubeconfig, namespace="belay-system") as release:
        try:
            release.install(CHART, "belay", first, timeout=60)
            dry = subprocess.run(
                [*kubectl[:3], "apply", "--validate=false", "--dry-run=server", "-f", str(tmp_path / "all.yaml")],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            assert dry.returncode == 0, dry.stderr[-2000:]
            before = live("statefulset/belay-worker")
            assert before["spec"]["replicas"] == 2
            assert live("poddisruptionbudget/belay-worker")["spec"]["maxUnavailable"] == 1
            release.upgrade(CHART, "belay", second, timeout=60)
            after = live("statefulset/belay-worker")
            assert after["spec"]["replicas"] == 5
            assert after["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":10.0.0")
            data = live("configmap/belay-settings")["data"]
            assert data["BELAY_RESYNC"] == "5" and data["BELAY_REDIS_URL"].startswith("rediss://")
            assert "NotFound" in live("poddisruptionbudget/belay-worker"), "what is switched off is removed"
            release.rollback("belay", version=1, timeout=60)
            again = live("statefulset/belay-worker")
            assert again["spec"] == before["spec"]
            assert "BELAY_RESYNC" not in live("configmap/belay-settings")["data"]
            assert live("poddisruptionbudget/belay-worker")["kind"] == "PodDisruptionBudget"
            assert [one["revision"] for one in release.history("belay")] == [1, 2, 3]
        finally:
            release.uninstall("belay", ignore_not_found=True, timeout=60)
    assert "NotFound" in live("statefulset/belay-worker")
    assert live("customresourcedefinition/nodepools.belay.dev")["kind"] == "CustomResourceDefinition", "objects stay"
    # what a release of the same name in another namespace kept is left alone, until its annotations name this one
    crd = ["crd", "nodepools.belay.dev"]

    def change(*words: str) -> None:
        subprocess.run([*kubectl, *words], capture_output=True, text=True, timeout=60, check=True)

    change("label", *crd, "app.kubernetes.io/managed-by=Helm")
    change("annotate", *crd, "meta.helm.sh/release-name=belay", "meta.helm.sh/release-namespace=belay-old")
    with helm.Config(kubeconfig_path=kubeconfig, namespace="belay-system") as release:
        try:
            release.install(CHART, "belay", first, timeout=60)
            assert live(*crd)["metadata"]["annotations"]["meta.helm.sh/release-namespace"] == "belay-old"
            notes = str(release.status("belay")["notes"])
            said = next(line.strip() for line in notes.splitlines() if "kubectl annotate" in line)
            assert "nodepools.belay.dev" in said and "faultpolicies" not in said, "only what another release kept"
            change(*said.split()[1:])
            change("annotate", *crd, "helm.sh/resource-policy-")
            release.upgrade(CHART, "belay", second, timeout=60)
            assert live(*crd)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", "it is this release's"
        finally:
            release.uninstall("belay", ignore_not_found=True, timeout=60)
            change("annotate", *crd, "meta.helm.sh/release-name-", "meta.helm.sh/release-namespace-")
