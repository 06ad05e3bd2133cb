"""Agents on real nodes: manifests and units build, say what agents understand, and give no more than is needed."""

from __future__ import annotations

import configparser
import shlex
import shutil
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from click.testing import CliRunner

from belay.agents.daemon.__main__ import _parser
from belay.agents.exporter.runtimes import MODES
from belay.agents.kubelet.flags import node_settings, plugin_settings
from belay.agents.node import jobfiles, linkfiles, rankfiles
from belay.agents.node.hardware import settings as hardware
from belay.agents.node.hardware import storage
from belay.agents.node.settings import Settings
from belay.agents.rdma import config as rdma
from belay.engine.cli import main
from tests.kube_server import TOKEN
from tests.kustomize import kustomized
from tests.loop_world import until

ROOT = Path(__file__).resolve().parents[1]
NODES = ROOT / "deploy" / "overlays" / "nodes"
UNITS = ROOT / "deploy" / "systemd"
DRIVER_WRITES = ("/etc/vnpu.cfg", "/run/vnpu_cfg_lock", "/var/log/lingqu")
"""Where the driver keeps vNPUs over a reboot and locks them, and where the bus switch's library logs."""
#: Components that go together; those of Git are the controller's, and a Redis of one's own takes away the shipped one.
COMPONENTS = sorted(
    p.name
    for p in (ROOT / "deploy" / "components").iterdir()
    if not p.name.startswith("git-") and p.name != "redis-existing"
)


def built(folder: Path, *components: str, overlay: str = "nodes") -> list[dict[str, Any]]:
    # beside a copy of what it names: kustomize takes nothing from outside its root but by relative path
    shutil.copytree(ROOT / "deploy", folder / "deploy", dirs_exist_ok=True)
    mine = folder / "deploy" / "overlays" / "mine"
    mine.mkdir(exist_ok=True)
    named = {"resources": [f"../{overlay}"], "components": [f"../../components/{name}" for name in components]}
    (mine / "kustomization.yaml").write_text(
        yaml.safe_dump({"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **named})
    )
    return kustomized(mine)


def agent(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [d for d in documents if d["kind"] == "DaemonSet"]
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("components", [(), *((name,) for name in COMPONENTS), tuple(COMPONENTS)])
def test_the_agents_manifest_says_what_the_agent_understands(tmp_path: Path, components: tuple[str, ...]) -> None:
    pod = agent(built(tmp_path, *components))
    (container,) = pod["containers"]
    verb, *arguments = container["args"]
    assert verb == "agent"
    arguments = ["--node=n0", *(a.replace("--journal", "--state-dir") for a in arguments)]
    options = _parser().parse_args(arguments)
    chosen = hardware.chosen(options)
    assert chosen is not None and chosen.bmc is not None and options.device_plugin
    assert chosen.super_pod == ("super-pod" in components)
    assert chosen.snapshots == ("snapshots" in components)
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert len({mount["mountPath"] for mount in container["volumeMounts"]}) == len(container["volumeMounts"])
    assert options.state_dir in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_agents_alone_bring_no_engine_and_reset_as_configured(tmp_path: Path) -> None:
    documents = built(tmp_path, overlay="nodes-alone")
    left = {d["metadata"]["name"] for d in documents if d["kind"] in ("Deployment", "StatefulSet", "Service")}
    assert left == {"belay-admission"}, "what checks the agents' own writes stays"
    (container,) = agent(documents)["containers"]
    arguments = [a.replace("--journal", "--state-dir") for a in container["args"][1:]]
    options = _parser().parse_args(["--node=n0", *arguments])
    assert node_settings(options, Settings()).own_resets
    assert not node_settings(_parser().parse_args(["--node=n0", "--driver=dcmi"]), Settings()).own_resets
    assert not node_settings(_parser().parse_args(["--node=n0", "--driver=dcmi", "-hotReset=2"]), Settings()).own_resets


@pytest.mark.parametrize("components", [("soft-shares",), tuple(COMPONENTS)])
def test_soft_shares_have_the_flags_and_the_folders_they_need(tmp_path: Path, components: tuple[str, ...]) -> None:
    pod = agent(built(tmp_path, *components))
    (container,) = pod["containers"]
    arguments = [a.replace("--journal", "--state-dir") for a in container["args"][1:]]
    settings = plugin_settings(_parser().parse_args(["--node=n0", *arguments]), {})
    assert settings.soft and settings.volcano
    for server in ("Ascend910B-20", "Ascend910A3-24", "npu-20"):
        settings.check(server, {})
    volumes = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {m["mountPath"]: m for m in container["volumeMounts"]}
    # kubelet binds what the agent writes into containers: both must mean the same folder by the same name
    mount = mounts[str(settings.enpu)]
    assert volumes[mount["name"]] == str(settings.enpu) and not mount.get("readOnly")
    assert volumes[mounts["/dev"]["name"]] == "/dev" and Path(settings.soft_share_dir).is_relative_to("/dev/shm")


SOC_FILES = ("/var/slogd", "/var/dmp_daemon", "/usr/lib64/libyaml-0.so.2", "/etc/hdcBasic.cfg", "/etc/slog.conf")
"""What the driver of Atlas 200I SoC A1 needs of its host, beside /usr/local/Ascend/driver."""


@pytest.mark.parametrize("components", [("soc",), tuple(COMPONENTS)])
def test_the_agents_of_a_soc_have_its_daemons_and_no_dcmi_folder(tmp_path: Path, components: tuple[str, ...]) -> None:
    pod = agent(built(tmp_path, *components))
    (container,) = pod["containers"]
    assert container["command"] == ["belay-soc"] and container["args"][0] == "agent"
    assert pod["nodeSelector"]["servertype"] == "soc" and "affinity" not in pod
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert not [path for path in mounts if "dcmi" in path]
    for file in SOC_FILES:
        assert volumes[mounts[file]["name"]]["hostPath"] == {"path": file, "type": "File"} and mounts[file]["readOnly"]
    written = ("/var/driver", "/var/dmp", "/usr/slog", "/home/drv/hdc_ppc")
    assert all("emptyDir" in volumes[mounts[folder]["name"]] for folder in written)
    (path,) = [one["value"] for one in container["env"] if one["name"] == "LD_LIBRARY_PATH"]
    assert path == "/usr/local/Ascend/driver/lib64:/usr/lib64"


def test_general_agents_and_exporters_keep_off_socs(tmp_path: Path) -> None:
    exporter = [one for one in yaml.safe_load_all((ROOT / "deploy/monitoring/exporter.yaml").read_text()) if one]
    for pod in (agent(built(tmp_path)), agent(exporter)):
        required = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = required["nodeSelectorTerms"]
        assert term == {"matchExpressions": [{"key": "servertype", "operator": "NotIn", "values": ["soc"]}]}


def test_a_socs_daemons_run_as_their_users_before_the_agent(tmp_path: Path) -> None:
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    for name in ("chown", "chmod", "setpriv", "sleep", "belay"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n')
        (programs / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "deploy/image/soc.sh"), "agent", "--driver=dcmi"],
        env={"PATH": str(programs)},
        check=False,
    )
    # the daemons run beside what follows: their lines may come late
    until(lambda: log.read_text().count("setpriv ") == 2, 20, what="the lines of both daemons")
    lines = log.read_text().splitlines()
    daemons = [line.partition("--init-groups ")[::2] for line in lines if line.startswith("setpriv")]
    assert done.returncode == 0 and "belay agent --driver=dcmi" in lines
    assert {(user.split()[2], command) for user, command in daemons} == {
        ("HwHiAiUser", "/var/slogd -d"), ("HwDmUser", "/var/dmp_daemon -I -M -U 8087"),
    }  # fmt: skip
    image = (ROOT / "deploy/image/Containerfile").read_text()
    for stage in ("FROM base AS agent", "FROM controller AS all"):
        body = image.partition(stage)[2].partition("FROM ")[0]
        assert "--uid 1000 " in body and "--uid 1101 " in body and "/usr/local/bin/belay-soc" in body
        assert body.count("HwHiAiUser") >= 1 and body.count("HwDmUser") == 1


def test_plugins_of_resets_are_found_where_they_are_mounted(tmp_path: Path) -> None:
    pod = agent(built(tmp_path, "reset-plugins"))
    (container,) = pod["containers"]
    arguments = [a.replace("--journal", "--state-dir") for a in container["args"][1:]]
    options = _parser().parse_args(["--node=n0", *arguments])
    (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == options.hot_reset_hooks]
    assert mount["readOnly"] and Path(options.hot_reset_plugins).parent == Path(options.hot_reset_hooks)


def test_agents_start_on_nodes_that_lack_what_a_component_reads(tmp_path: Path) -> None:
    """A mount of what a node lacks would keep the whole agent from starting there."""
    pod = agent(built(tmp_path, "rdma", "storage-clients"))
    (container,) = pod["containers"]
    hosts = {volume["name"]: volume["hostPath"] for volume in pod["volumes"] if "hostPath" in volume}
    assert not [path for one in hosts.values() if "hinicadm5" in (path := one["path"]) or path.startswith("/proc/")]
    mounts = {mount["mountPath"]: hosts.get(mount["name"]) for mount in container["volumeMounts"]}
    assert mounts[str(rdma.HOST_PROGRAMS)] == {"path": "/usr/sbin", "type": "Directory"}
    assert mounts["/host/proc"] == {"path": "/proc", "type": "Directory"}
    for kind in (storage.DPC, storage.DTFS):
        (seen,) = [file for file in kind.files if file.startswith("/host/proc/")]
        assert seen.removeprefix("/host") in kind.files


@pytest.mark.parametrize("mode", MODES)
def test_the_exporters_manifest_has_the_sockets_of_every_runtime(mode: str) -> None:
    """The lines of other runtimes than containerd are comments: a mount of a socket that is not there stops the pod."""
    text = (ROOT / "deploy" / "monitoring" / "exporter.yaml").read_text()
    assert mode == "containerd" or f"# -containerMode={mode}" in text
    given = agent(list(yaml.safe_load_all(text)))
    whole = agent(list(yaml.safe_load_all(text.replace("# - {", "- {"))))
    there = {volume["name"]: volume["hostPath"]["path"] for volume in whole["volumes"] if "hostPath" in volume}
    mounts = {mount["mountPath"]: there.get(mount["name"]) for mount in whole["containers"][0]["volumeMounts"]}
    for socket in {*MODES[mode].cri, *MODES[mode].oci}:
        (path,) = [path for path in mounts if Path(socket).is_relative_to(path)]
        assert mounts[path] == path
    assert {volume["name"] for volume in given["volumes"]} == {
        m["name"] for m in given["containers"][0]["volumeMounts"]
    }
    assert not [one for one in given["volumes"] if one.get("hostPath", {}).get("type") == "Socket"]


WRITTEN = [jobfiles.RESET_ROOT, jobfiles.TRACE_ROOT, linkfiles.ROOT, rankfiles.ROOT, *map(Path, DRIVER_WRITES)]
"""What an agent of default settings writes on the host, beside its journal and kubelet's folders."""


@pytest.mark.parametrize("path", WRITTEN, ids=str)
def test_manifest_and_unit_let_the_agent_write_what_it_must(path: Path, tmp_path: Path) -> None:
    pod = agent(built(tmp_path))
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mount = mounts[str(path)]
    assert volumes[mount["name"]]["hostPath"]["path"] == str(path) and not mount.get("readOnly")

    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNITS / "belay-agent.service")
    service = parsed["Service"]
    assert service["ProtectSystem"] == "strict"
    writable = [Path(word.lstrip("-")) for word in service["ReadWritePaths"].split()]
    for key, above in (("RuntimeDirectory", "/run"), ("LogsDirectory", "/var/log"), ("StateDirectory", "/var/lib")):
        writable += [Path(above, word) for word in service[key].split()]
    assert any(path.is_relative_to(folder) for folder in writable)


@pytest.mark.parametrize("unit", ["belay-agent.service", "belay-containers.service"])
def test_units_run_verbs_that_exist(unit: str, tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNITS / unit)
    program, *words = shlex.split(parsed["Service"]["ExecStart"])
    assert program == "/usr/local/bin/belay"
    verbs = [word for word in words if not word.startswith(("-", "$"))]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    answer = CliRunner().invoke(main, [*verbs, "--help"])
    assert answer.exit_code == 0
    assert all(option in answer.output for option in options)
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        # the unit as it is, but for the program, which is not installed where tests run
        copy = tmp_path / unit
        copy.write_text((UNITS / unit).read_text().replace("/usr/local/bin/belay", "/bin/true"))
        done = subprocess.run([verify, "verify", str(copy)], capture_output=True, text=True, timeout=60)
        assert unit not in done.stderr, done.stderr


def test_the_timer_starts_the_service_that_is_there() -> None:
    text = (UNITS / "belay-containers.timer").read_text()
    named = [line.partition("=")[2] for line in text.splitlines() if line.startswith("Unit=")]
    assert [(UNITS / name).is_file() for name in named] == [True]


ALLOWED = [
    ("get", "nodes", ""),
    ("patch", "nodes/status", ""),
    ("list", "pods", ""),
    ("watch", "pods", ""),
    ("patch", "pods/status", "default"),
    ("watch", "configmaps", "belay-system"),
    ("patch", "configmaps", "belay-nodes"),
    ("create", "configmaps", "belay-nodes"),
    ("patch", "configmaps", "kube-system"),
    ("watch", "configmaps", "kube-system"),
    ("watch", "configmaps", "mindx-dl"),
    ("create", "events", "kube-system"),
    ("patch", "configmaps", "mindx-dl"),
    ("delete", "configmaps", "mindx-dl"),
    ("patch", "configmaps", "cluster-system"),
    ("watch", "configmaps", "cluster-system"),
]
DENIED = [
    ("patch", "nodes", ""),
    ("patch", "pods", "default"),
    ("delete", "pods", "default"),
    ("create", "pods", "default"),
    ("list", "nodes", ""),
    ("delete", "nodes", ""),
    ("patch", "configmaps", "belay-system"),
    ("delete", "configmaps", "kube-system"),
    ("get", "secrets", "belay-system"),
    ("list", "secrets", ""),
    ("patch", "configmaps", "default"),
    ("create", "pods/eviction", "default"),
    ("create", "pods/binding", "default"),
    ("update", "configmaps", "kube-system"),
    ("update", "configmaps", "belay-nodes"),
    ("patch", "deployments", "default"),
    ("create", "serviceaccounts/token", "belay-system"),
]


OTHERS_DENIED = [
    ("belay-engine", "create", "pods/exec", "kube-system"),
    ("belay-engine", "get", "secrets", "kube-system"),
    ("belay-engine", "list", "secrets", ""),
    ("belay-engine", "create", "serviceaccounts/token", "kube-system"),
    ("belay-engine", "delete", "nodes", ""),
    ("belay-server", "create", "pods", "default"),
    ("belay-server", "patch", "pods", "default"),
    ("belay-server", "patch", "nodes", ""),
    ("belay-server", "delete", "pods", "default"),
    ("belay-server", "create", "pods/exec", "default"),
    ("belay-server", "create", "pods/eviction", "default"),
    ("belay-server", "delete", "configmaps", "default"),
    ("belay-server", "get", "secrets", "belay-system"),
    ("belay-server", "patch", "deployments", "default"),
]


@pytest.mark.e2e
def test_a_real_api_server_gives_agents_what_they_need_and_no_more(kubeconfig: str, tmp_path: Path) -> None:
    rights = [
        d for d in built(tmp_path, "super-pod")
        if d["kind"] in ("Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    ]  # fmt: skip
    (tmp_path / "rights.yaml").write_text(yaml.safe_dump_all(rights))
    kubectl = ["kubectl", "--kubeconfig", kubeconfig]
    subprocess.run(
        [*kubectl, "apply", "--validate=false", "-f", str(tmp_path / "rights.yaml")],
        check=True, capture_output=True, timeout=90,
    )  # fmt: skip
    server = yaml.safe_load(Path(kubeconfig).read_text())["clusters"][0]["cluster"]["server"]
    answers = {asked: _may(server, *asked) for asked in [*ALLOWED, *DENIED]}
    assert {asked for asked in ALLOWED if not answers[asked]} == set()
    assert {asked for asked in DENIED if answers[asked]} == set()
    assert [asked for asked in OTHERS_DENIED if _may(server, *asked[1:], account=asked[0])] == []
    assert _may(server, "create", "tokenreviews", "", account="belay-server")


def _may(server: str, verb: str, resource: str, namespace: str, account: str = "belay-agent") -> bool:
    name, _, sub = resource.partition("/")
    home = "belay-nodes" if account == "belay-agent" else "belay-system"
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{home}:{account}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb, "resource": name, "subresource": sub, "namespace": namespace,
                "group": {"deployments": "apps", "tokenreviews": "authentication.k8s.io"}.get(name, ""),
            },
        },
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server}/apis/authorization.k8s.io/v1/subjectaccessreviews",
        data=orjson.dumps(body),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
    )
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        return bool(orjson.loads(answer.read())["status"]["allowed"])
