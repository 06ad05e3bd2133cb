"""Pods of the real kubelet, their containers made by containerd through belay-oci-runtime as its default."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from belay.agents.runtime import engines
from tests.kube_server import real_cluster
from tests.node_server import IMAGE, NODE, RealNode, node_assets
from tests.runtime_host import HOME, LISTS, ON_A_HOST, Host, libdcmi, oci_programs

__all__ = ["libdcmi", "oci_programs"]

RUNTIME = f"{HOME}/belay-oci-runtime"

pytestmark = ON_A_HOST


class Node(RealNode):
    """Kubelet and containerd on a host with chips; the runtime is the default."""

    def __init__(self, host: Host, *rest: Any) -> None:
        super().__init__(*rest)
        self.host = host

    def _spawn(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        if name == "containerd":
            config = self.folder / "containerd.toml"
            config.write_text(engines.add("containerd", config.read_text(), RUNTIME).text)
        return super()._spawn(name, *self.host.command(*command), env={**(env or os.environ), **self.host.env})

    def environment(self, pod: dict[str, Any]) -> dict[str, str]:
        """As of any real node, but the logs lie on the private host."""
        metadata = pod["metadata"]
        logs = f"/var/log/pods/{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        text = self.host.run("sh", "-c", f"cat {logs}/*/*.log", check=False).stdout
        lines = [line.split(" ", 3)[3] for line in text.splitlines()]
        return dict(line.split("=", 1) for line in lines if "=" in line) if "up" in lines else {}

    def pod(self, name: str, *env: str) -> dict[str, Any]:
        """A pod with one container on this node."""
        lines = [{"name": line.split("=", 1)[0], "value": line.split("=", 1)[1]} for line in env]
        container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "env": lines}
        self.kubectl("apply", "-f", "-", given={
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeName": NODE, "hostNetwork": True, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": False, "containers": [container],
            },
        })  # fmt: skip
        return self.get("pod", name)


@pytest.fixture(scope="module")
def node(oci_programs: Sequence[Path], libdcmi: Path) -> Iterator[Node]:
    assets = node_assets()
    folder = Path(tempfile.mkdtemp(prefix="ro-", dir="/tmp"))
    try:
        with Host() as host, real_cluster(assets, folder) as kubeconfig:
            host.install(oci_programs)
            host.driver(libdcmi)
            host.chips()
            host.write("/usr/local/Ascend/driver/lib64/driver/libdriver.so", "driver", "0444")
            host.write(f"{LISTS}/base.list", "/usr/local/Ascend/driver/lib64\n", "0440")
            made = Node(host, folder, kubeconfig, assets)
            try:
                made.start()
                yield made
            finally:
                made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def process(name: str) -> Path:
    """/proc of the pod's program."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                f"POD_IS={name}\0".encode() in (entry / "environ").read_bytes()
                and (entry / "comm").read_text() == "teller\n"
            ):
                return entry
        except OSError:
            continue
    raise AssertionError(f"no process of pod {name}")


def test_a_pod_gets_its_chips(node: Node) -> None:
    pod = node.pod("asks", "ASCEND_VISIBLE_DEVICES=2,5", "ASCEND_RUNTIME_OPTIONS=", "POD_IS=asks")
    seen = node.until("the pod's environment", lambda: node.environment(pod))
    assert seen["ASCEND_DOCKER_RUNTIME"] == "True"
    assert seen["LD_LIBRARY_PATH"].startswith("/usr/local/Ascend/driver/lib64/driver")
    inside = process("asks")
    names = sorted(entry.name for entry in (inside / "root/dev").iterdir())
    assert [name for name in names if name.startswith("davinci")] == ["davinci2", "davinci5", "davinci_manager"]
    assert {"devmm_svm", "hisi_hdc"} <= set(names)
    assert (inside / "root/usr/local/Ascend/driver/lib64/driver/libdriver.so").read_text() == "driver"
    assert " /usr/local/Ascend/driver/lib64 ro,nosuid" in (inside / "mountinfo").read_text()
    allowed = (
        node.host.read(f"/sys/fs/cgroup/devices{cgroup(inside)}/devices.list") if cgroup(inside) else "c 10:229 rwm"
    )
    assert "c 10:229 rwm" in allowed and "a *:* rwm" not in allowed


def cgroup(inside: Path) -> str:
    """The pod's place among device control groups of the first version; empty on the second."""
    lines = [line.split(":", 2) for line in (inside / "cgroup").read_text().splitlines()]
    return next((place for _, kinds, place in lines if "devices" in kinds.split(",")), "")


def test_a_pod_without_chips_gets_none(node: Node) -> None:
    pod = node.pod("plain", "POD_IS=plain")
    seen = node.until("the pod's environment", lambda: node.environment(pod))
    assert seen["ASCEND_DOCKER_RUNTIME"] == "True"
    assert not [entry for entry in (process("plain") / "root/dev").iterdir() if entry.name.startswith("davinci")]


def test_the_pod_says_why_it_cannot_start(node: Node) -> None:
    node.pod("wrong", "ASCEND_VISIBLE_DEVICES=9")

    def message() -> str:
        status = node.get("pod", "wrong").get("status", {}).get("containerStatuses") or [{}]
        state = status[0].get("state", {})
        return str((state.get("terminated") or state.get("waiting") or {}).get("message") or "")

    told = node.until("the reason", message)
    assert "asks for NPUs: /dev/davinci9: No such file or directory" in told
