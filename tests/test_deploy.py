"""The manifests in deploy/: they build, they name what exists, and agents may do no more than they need."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from belay.agents.daemon.__main__ import _parser
from belay.engine.cli import main
from belay.engine.observe.resources import WATCHED
from belay.engine.settings import PREFIX, Settings
from belay.engine.source.git import PASSED_ON
from tests.kustomize import kustomized

ROOT = Path(__file__).resolve().parents[1]
BASE = ROOT / "deploy" / "base"
AGENT = ROOT / "deploy" / "overlays" / "simulated" / "agent.yaml"


def documents() -> list[dict[str, Any]]:
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == sorted(
        f.name for f in BASE.glob("*.yaml") if f.stem != "kustomization"
    )
    files = [*(BASE / name for name in kustomization["resources"]), AGENT]
    return [d for file in files for d in yaml.safe_load_all(file.read_text())]


def pods() -> list[dict[str, Any]]:
    return [
        d["spec"]["template"]["spec"] for d in documents() if d["kind"] in ("Deployment", "StatefulSet", "DaemonSet")
    ]


def test_every_process_is_a_verb_with_these_options() -> None:
    seen = set()
    for pod in pods():
        for container in pod["containers"]:
            if container["image"] != "belay":
                continue
            verb, *arguments = container["args"]
            seen.add(verb)
            answer = CliRunner().invoke(main, [verb, "--help"])
            assert answer.exit_code == 0, verb
            for option in (a for a in arguments if a.startswith("--")):
                if verb != "agent" or option in ("--driver", "--journal"):
                    assert option in answer.output
            if verb == "agent":  # its other options are the daemon's own
                _parser().parse_args(["--node=n0", *(a.replace("--journal", "--state-dir") for a in arguments)])
    assert seen == {"controller", "worker", "server", "agent", "admission"}


def test_settings_are_ones_that_exist() -> None:
    (settings,) = [d for d in documents() if d["kind"] == "ConfigMap"]
    known = {PREFIX + name.upper() for name in Settings.__struct_fields__}
    assert set(settings["data"]) <= known


@pytest.mark.parametrize("verb", ["worker", "server"])
def test_kubelet_asks_whether_they_live(verb: str) -> None:
    (container,) = [c for pod in pods() for c in pod["containers"] if c.get("args", [""])[0] == verb]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"]["path"] == path and container[probe]["httpGet"]["port"] in ports
    if verb == "worker":
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert variables["BELAY_HEALTH_PORT"] == str(ports["health"])


def test_accounts_and_roles_belong_together() -> None:
    found = documents()
    accounts = {d["metadata"]["name"] for d in found if d["kind"] == "ServiceAccount"}
    used = {pod["serviceAccountName"] for pod in pods() if "serviceAccountName" in pod}
    roles = {
        (d["kind"], d["metadata"]["name"], d["metadata"].get("namespace")) for d in found if d["kind"].endswith("Role")
    }
    assert used == accounts
    for binding in (d for d in found if d["kind"].endswith("RoleBinding")):
        ref = binding["roleRef"]
        assert (ref["kind"], ref["name"], binding["metadata"].get("namespace")) in roles
        assert {subject["name"] for subject in binding["subjects"]} <= accounts


def test_the_engine_may_read_whatever_it_watches() -> None:
    (role,) = (d for d in documents() if d["kind"] == "ClusterRole" and d["metadata"]["name"] == "belay-engine")
    rights = {
        (group, kind)
        for rule in role["rules"] if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"] for kind in rule["resources"]
    }  # fmt: skip
    for one in WATCHED:
        group = one.resource.api_version.rpartition("/")[0]
        assert rights & {(group, one.resource.plural), (group, "*")}, one.resource


def test_agents_cannot_write_orders_or_pods() -> None:
    for role in (d for d in documents() if d["kind"].endswith("Role") and "agent" in d["metadata"]["name"]):
        for rule in role["rules"]:
            if "pods" in rule["resources"] or role["metadata"].get("namespace") == "belay-system":
                assert set(rule["verbs"]) <= {"get", "list", "watch"}


def test_the_controller_gets_the_credentials_of_its_repository(tmp_path: Path) -> None:
    parts = sorted(path.name for path in (ROOT / "deploy" / "components").glob("git-*"))
    assert parts == ["git-ca", "git-ssh", "git-token"]
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    own = tmp_path / "deploy" / "overlays" / "own"
    own.mkdir()
    named: dict[str, list[str]] = {"resources": ["../../base"]}
    for components, variables in (
        (["git-ssh", "git-ca"], {"GIT_SSH_COMMAND", "GIT_SSL_CAINFO"}),
        (["git-token", "git-ca"], {"GIT_ASKPASS", "GIT_SSL_CAINFO"}),
    ):
        named["components"] = [f"../../components/{part}" for part in components]
        (own / "kustomization.yaml").write_text(yaml.safe_dump(named))
        (pod,) = (
            d["spec"]["template"]["spec"]
            for d in kustomized(own)
            if d["kind"] == "Deployment" and d["metadata"]["name"] == "belay-controller"
        )
        (container,) = pod["containers"]
        given = {entry["name"]: entry.get("value", "") for entry in container["env"]}
        assert variables <= set(given) and variables <= set(PASSED_ON), "Git is passed them on"
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        for path in re.findall(r"/etc/belay/[^\s=]+", " ".join(given[name] for name in variables)):
            assert path.rpartition("/")[0] in mounts
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("overlay", ["example", "simulated"])
def test_overlays_build(overlay: str) -> None:
    agents = [
        d["metadata"]["name"] for d in kustomized(ROOT / "deploy" / "overlays" / overlay) if d["kind"] == "DaemonSet"
    ]
    assert agents == (["belay-agent"] if overlay == "simulated" else []), "no simulated agent on a real node by default"
