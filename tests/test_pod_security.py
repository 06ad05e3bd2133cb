"""Every pod of deploy/ runs in the namespace that it is meant for, with no more rights than it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kustomize import kustomized as overlay
from tests.pod_security import ENFORCE, LEVELS, containers, lowest_level, violations
from tests.test_deploy_nodes import COMPONENTS
from tests.test_deploy_nodes import built as nodes

ROOT = Path(__file__).resolve().parents[1]
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet")
#: Pods with a right that the restricted level refuses, and why there is no way around it.
EXCEPTIONS = {
    "belay-agent": "root over the NPU driver, or (simulated) a journal that outlives the pod on the host",
    "npu-exporter": "reads chips through the driver's library",
}


def everything(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """What each way to deploy applies."""
    exporter = ROOT / "deploy" / "monitoring" / "exporter.yaml"
    return {
        "simulated": overlay(ROOT / "deploy" / "overlays" / "simulated"),
        "nodes": nodes(tmp_path / "nodes"),
        "nodes with every component": nodes(tmp_path / "all", *COMPONENTS, "git-ssh", "git-ca"),
        "git by token": nodes(tmp_path / "token", "git-token"),
        "the exporter alone": list(yaml.safe_load_all(exporter.read_text())),
    }


def test_every_namespace_says_its_level_and_every_pod_passes_it(tmp_path: Path) -> None:
    for way, documents in everything(tmp_path).items():
        labels = {d["metadata"]["name"]: d["metadata"]["labels"] for d in documents if d["kind"] == "Namespace"}
        pods = [d for d in documents if d["kind"] in WORKLOADS]
        assert pods, way
        for namespace, found in labels.items():
            assert found.get(ENFORCE) in LEVELS, f"{way}: namespace {namespace} enforces no level"
        for one in pods:
            name, level = one["metadata"]["name"], labels[one["metadata"]["namespace"]][ENFORCE]
            spec = one["spec"]["template"]["spec"]
            assert violations(spec, level) == [], f"{way}: {name} in a namespace of level {level}"
            assert (lowest_level(spec) == "restricted") != (name in EXCEPTIONS), f"{way}: {name}"
            assert (level == "privileged") == (name in EXCEPTIONS), f"{way}: {name} is in a namespace of level {level}"


def test_no_pod_holds_what_it_does_not_need(tmp_path: Path) -> None:
    for way, documents in everything(tmp_path).items():
        for one in (d for d in documents if d["kind"] in WORKLOADS):
            spec, name = one["spec"]["template"]["spec"], one["metadata"]["name"]
            shared = spec.get("securityContext") or {}
            talks = spec.get("serviceAccountName") is not None
            bound = any(volume["name"] == "kube-token" for volume in spec["volumes"])
            assert talks or spec.get("automountServiceAccountToken") is False, f"{way}: {name} needs no token"
            assert not bound or spec.get("automountServiceAccountToken") is False, f"{way}: {name} has two tokens"
            for inner, container, own in containers(spec):
                about = f"{way}: {name}/{inner}"
                assert own.get("readOnlyRootFilesystem") is True, about
                assert "memory" in container["resources"]["limits"], about
                if not own.get("privileged"):
                    assert (own.get("capabilities") or {}).get("drop") == ["ALL"], about
                    assert own.get("allowPrivilegeEscalation") is False, about
                    profile = own.get("seccompProfile") or shared.get("seccompProfile") or {}
                    assert profile.get("type") == "RuntimeDefault", about


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, "restricted"),
        ({"hostPID": True}, "privileged"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}, "privileged"),
        ({"volumes": [{"name": "v", "nfs": {}}]}, "baseline"),
        ({"securityContext": {"runAsNonRoot": True}}, "baseline"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "privileged"),
        ({"own": {"privileged": True}}, "privileged"),
        ({"own": {"allowPrivilegeEscalation": True}}, "baseline"),
        ({"own": {"capabilities": {}}}, "baseline"),
        ({"own": {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}}, "privileged"),
        ({"own": {"runAsUser": 0}}, "baseline"),
        ({"ports": [{"containerPort": 1, "hostPort": 1}]}, "privileged"),
    ],
)
def test_the_check_knows_the_standards(change: dict[str, Any], level: str) -> None:
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}} | change.pop("own", {})
    container = {"name": "c", "securityContext": own, "ports": change.pop("ports", [])}
    shared = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert lowest_level({"securityContext": shared, "containers": [container]} | change) == level
