"""A real node for tests: kubelet of $KUBEBUILDER_ASSETS with containerd and runc, beside a real kube-apiserver.

Kubelet runs in a mount namespace of its own where `/var/lib/kubelet/device-plugins` is a folder of the test's, so that
it never meets another kubelet of the machine. `real_node` skips where the machine cannot
run containers, and fails there in CI.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containerd_server import ctr, image, missing
from tests.control_planes import minor
from tests.kube_server import real_cluster
from tests.needs import assets, lacking

NODE = "real-node"
IMAGE = "docker.io/library/teller:local"
PAUSE = "k8s.gcr.io/pause:3.2"
#: Prints its environment, then waits.
_PROGRAM = r"""
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
extern char **environ;
static void end(int signal) { (void)signal; _exit(0); }
int main(void) {
  signal(SIGTERM, end); signal(SIGINT, end);
  setbuf(stdout, 0);
  for (char **entry = environ; *entry; entry++) puts(*entry);
  puts("up");
  for (;;) pause();
}
"""
#: What kubelet wanted before 1.24, and where its runtime listens.
REMOTE, ENDPOINT = "remote", "container-runtime-endpoint"
_KUBELET = """apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
# kubelets with pod cgroups end each other's pods on one machine
cgroupsPerQOS: false
failSwapOn: false
makeIPTablesUtilChains: false
enforceNodeAllocatable: []
evictionHard: {memory.available: 50Mi, nodefs.available: "1%", imagefs.available: "1%"}
nodeStatusUpdateFrequency: 2s
"""


class RealNode:
    """The running node. `plugins` is kubelet's folder of device plugin sockets, `pod_resources` its other socket."""

    def __init__(self, folder: Path, kubeconfig: Path, assets: Path) -> None:
        self.folder, self.kubeconfig, self._assets = folder, kubeconfig, assets
        self.plugins = folder / "plugins"
        self.pod_resources = folder / "kubelet" / "pod-resources" / "kubelet.sock"
        self._socket = folder / "c.sock"
        self._containerd: subprocess.Popen[bytes] | None = None
        self._kubelet: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        """Containerd's socket."""
        return self._socket

    @property
    def _is_new(self) -> bool:
        """Whether kubelet takes its runtime from its configuration; before 1.27 only flags name it."""
        return minor(self._assets / "kubelet") >= 27

    def _newer(self) -> Iterator[str]:
        """What newer kubelets want in their configuration: the runtime, and leave to run where cgroups are v1."""
        yield f'containerRuntimeEndpoint: "unix://{self._socket}"\n'
        if minor(self._assets / "kubelet") >= 31:
            yield "failCgroupV1: false\n"

    @property
    def assets(self) -> Path:
        """The folder of Kubernetes' programs."""
        return self._assets

    def kubectl(self, *arguments: str, given: object = None, check: bool = True) -> str:
        """Run kubectl; its output."""
        done = subprocess.run(
            [str(self._assets / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=None if given is None else json.dumps(given), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr[-1000:]}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object; empty when it is not there."""
        text = self.kubectl("get", kind, name, "-n", namespace, "-o", "json", check=False)
        return dict(json.loads(text)) if text.strip() else {}

    def until(self, what: str, truth: Any, seconds: float = 150.0) -> Any:
        """Wait until it is true; what it then is."""
        ends = time.monotonic() + seconds
        while not (found := truth()):
            assert time.monotonic() < ends, f"{what} did not come true in {seconds:g} s; see {self.folder}"
            time.sleep(0.2)
        return found

    def start(self) -> None:
        """Start containerd and kubelet, and wait until the node is ready."""
        (self.folder / "cni").mkdir()
        (self.folder / "cni" / "10-net.conflist").write_text(json.dumps(self._network()))
        (self.folder / "containerd.toml").write_text(
            f'version = 2\nroot = "{self.folder}/root"\nstate = "{self.folder}/state"\n'
            f'[grpc]\n  address = "{self._socket}"\n[ttrpc]\n  address = "{self.folder}/t.sock"\n'
            f'[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "{PAUSE}"\n  restrict_oom_score_adj = true\n'
            f'[plugins."io.containerd.grpc.v1.cri".cni]\n  conf_dir = "{self.folder}/cni"\n  bin_dir = "/usr/lib/cni"\n'
            '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
        )
        self._containerd = self._spawn(
            "containerd", self._program("containerd"), "--config", str(self.folder / "containerd.toml")
        )
        self.until("containerd", lambda: not ctr(self._socket, "version", check=False).returncode, 30)
        for tag in (PAUSE, IMAGE):
            ctr(self._socket, "-n", "k8s.io", "images", "import", str(image(self.folder, tag, "teller", _PROGRAM)))
        (self.folder / "kubelet.yaml").write_text(_KUBELET + ("".join(self._newer()) if self._is_new else ""))
        self.plugins.mkdir()
        self.start_kubelet()
        self.until("the node", self._ready, 240)

    def _network(self) -> dict[str, Any]:
        """The network of pods: addresses of their own, and a way to this machine; nothing else."""
        addresses = {
            "type": "host-local", "dataDir": str(self.folder / "addresses"),
            "ranges": [[{"subnet": "10.88.7.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
        }  # fmt: skip
        return {
            "cniVersion": "0.3.1",
            "name": "pods",
            "plugins": [{"type": "ptp", "ipMasq": False, "ipam": addresses}, {"type": "loopback"}],
        }

    def start_kubelet(self) -> None:
        """Start kubelet, as a service manager would after its end."""
        script = (
            'mkdir -p /var/lib/kubelet/device-plugins; mount --bind "$1" /var/lib/kubelet/device-plugins; '
            'shift; exec "$@"'
        )
        self._kubelet = self._spawn(
            "kubelet", "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "kubelet",
            str(self.plugins), str(self._assets / "kubelet"), "--config", str(self.folder / "kubelet.yaml"),
            "--kubeconfig", str(self.kubeconfig),
            *([] if self._is_new else [f"--container-runtime={REMOTE}", f"--{ENDPOINT}=unix://{self._socket}"]),
            f"--hostname-override={NODE}",
            "--root-dir", str(self.folder / "kubelet"), "--v=2",
            env={**os.environ, "KUBECONFIG": ""},
        )  # fmt: skip

    def stop_kubelet(self) -> None:
        """End kubelet where it stands; containers go on."""
        if self._kubelet is not None:
            self._kubelet.kill()
            self._kubelet.wait()
            self._kubelet = None

    def stop(self) -> None:
        """End everything."""
        self.stop_kubelet()
        if self._containerd is not None:
            rows = ctr(self._socket, "-n", "k8s.io", "tasks", "ls", check=False).stdout.splitlines()[1:]
            namespaces = {_inode(Path(f"/proc/{row.split()[1]}/ns/net")) for row in rows}
            for row in rows:
                ctr(self._socket, "-n", "k8s.io", "tasks", "rm", "-f", row.split()[0], check=False)
            _remove_networks(namespaces)
            self._containerd.terminate()
            try:
                self._containerd.wait(20)
            except subprocess.TimeoutExpired:
                self._containerd.kill()
                self._containerd.wait()
        for line in Path("/proc/mounts").read_text().splitlines():
            if f" {self.folder}/" in line:
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True, timeout=20)

    def environment(self, pod: dict[str, Any]) -> dict[str, str]:
        """What a container of a pod sees in its environment; empty until it runs."""
        metadata = pod["metadata"]
        folder = Path("/var/log/pods") / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        lines = [line.split(" ", 3)[3] for path in folder.glob("*/*.log") for line in path.read_text().splitlines()]
        return dict(line.split("=", 1) for line in lines if "=" in line) if "up" in lines else {}

    def devices(self, resource: str) -> tuple[str, str]:
        """(capacity, allocatable) that kubelet reports."""
        status = self.get("node", NODE).get("status") or {}
        return (status.get("capacity") or {}).get(resource, ""), (status.get("allocatable") or {}).get(resource, "")

    def _ready(self) -> bool:
        found = self.get("node", NODE)
        conditions = (found.get("status") or {}).get("conditions") or ()
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return False
        # a controller would take the taint of a new node away
        self.kubectl("patch", "node", NODE, "--type=merge", "-p", '{"spec": {"taints": null}}')
        return True

    def _program(self, name: str) -> str:
        """A program of the container runtime: the control plane's own where it brings one, else this machine's."""
        own = self._assets / name
        return str(own) if own.exists() else name

    def _spawn(self, name: str, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(list(command), stdout=log, stderr=log, start_new_session=True, env=env)


def _inode(file: Path) -> int:
    """The number of a file's inode, which names a network namespace; 0 when it has gone."""
    try:
        return file.stat().st_ino
    except OSError:
        return 0


def _remove_networks(namespaces: Collection[int]) -> None:
    """End the networks of pods that were not deleted; their links, and the host's routes to them, go as well."""
    for file in Path("/var/run/netns").glob("cni-*"):
        if _inode(file) in namespaces:
            subprocess.run(["umount", "-l", str(file)], check=False, capture_output=True, timeout=20)
            file.unlink(missing_ok=True)


def node_assets() -> Path:
    """The folder with kubelet and the API server; skips where none is configured, fails where it holds too little or
    containers cannot be run.
    """
    folder = assets("etcd", "kube-apiserver", "kubelet", "kubectl")
    if why := missing():
        lacking(f"no real node: {why} is missing")
    return folder


@pytest.fixture(scope="module")
def real_node() -> Iterator[RealNode]:
    """A node that is ready, with namespaces of Belay."""
    assets = node_assets()
    # short, because the path of a socket may have 107 letters
    folder = Path(tempfile.mkdtemp(prefix="rn-"))
    try:
        with real_cluster(assets, folder) as kubeconfig:
            node = RealNode(folder, kubeconfig, assets)
            try:
                node.start()
                for namespace in ("belay-nodes", "belay-system"):
                    node.kubectl("create", "namespace", namespace)
                yield node
            finally:
                node.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
