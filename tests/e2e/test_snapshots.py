"""Container snapshots end to end: the planner marks, the agent saves, the container runtime goes on from it.

The planner, the agent's part, the container runtime and runc are real; what needs CRIU, a containerd or an API server
stands in: `runc checkpoint` and `runc restore` are a script, `ctr` packs the container's own files, and the world of
the planner's tests is the API server.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from belay.agents.node.hardware.snapshots import Snapshots
from tests.agent_world import VirtualClock
from tests.inference import PREFIX, Raw, owner, role, service_set
from tests.jobs import World
from tests.runtime_host import HOME, ON_A_HOST, Host, busybox, need, oci_programs

__all__ = ["oci_programs"]

RUNTIME = f"{HOME}/ascend-docker-runtime"
RUNC = """#!/bin/bash
real=$(PATH=${PATH#*:} command -v runc)
for word; do case $word in checkpoint|restore) verb=$word; break;; esac; done
[ -n "$verb" ] || exec "$real" "$@"
root=$2 kept=()
while [ $# -gt 0 ]; do
  case $1 in
    --image-path) image=$2; shift;;
    --work-path) shift;;
    restore) kept+=(create);;
    --detach|--ext-unix-sk|--file-locks|--leave-running) ;;
    *) kept+=("$1");;
  esac
  shift
done
if [ "$verb" = checkpoint ]; then
  mkdir -p "$image" && echo "memory of ${kept[-1]}" >"$image/pages"
else
  cp "$image/pages" /etc/went-on-from && "$real" "${kept[@]}" && "$real" --root "$root" start "${kept[-1]}"
fi
"""
CTR = """#!/bin/bash
exec tar -C "$(cat "/etc/rootfs-${@: -1}")" -cf - data
"""

pytestmark = ON_A_HOST


@pytest.fixture
def host(oci_programs: Sequence[Path]) -> Iterator[Host]:
    need("runc", "busybox")
    with Host() as made:
        made.install(oci_programs)
        made.write("/etc/ascend-docker-runtime.d/base.list", "")
        made.write("/usr/local/bin/runc", RUNC, "0755")
        made.write("/usr/local/bin/ctr", CTR, "0755")
        made.env["PATH"] = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        yield made


@pytest.fixture
def folder(host: Host) -> Iterator[Path]:
    # an image is trusted where root alone can write, above it, too
    made = Path(f"/var/lib/belay-snapshots-{os.getpid()}")
    made.mkdir(parents=True)
    yield made
    listed = host.run("runc", "--root", str(made / "k8s.io"), "list", "-q", check=False).stdout
    for name in listed.split():
        host.run("runc", "--root", str(made / "k8s.io"), "delete", "--force", name, check=False)
    shutil.rmtree(made)


class Cluster:
    """The world's pods as the agents of the nodes see them."""

    def __init__(self, world: World) -> None:
        self.world = world

    def on(self, node: str) -> Sequence[Mapping[str, Any]]:
        found = [self.world.pod(name) for name in self.world.pods()]
        return [pod for pod in found if pod["spec"].get("nodeName") == node]

    async def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        yield self.on(node)

    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        self.world.edit("Pod", name, lambda raw: raw["metadata"].setdefault("annotations", {}).update(annotations))


class Nodes:
    """Kubelets, StatefulSet controller and agents of two nodes that are one host."""

    def __init__(self, host: Host, folder: Path, world: World) -> None:
        self.host, self.folder, self.world = host, folder, world
        self.root = folder / "k8s.io"
        self.tool = folder / "runtime"
        command = " ".join(host.command("env", f"PATH={host.env['PATH']}", RUNTIME, "--root", str(self.root)))
        self.tool.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        self.tool.chmod(0o755)

    def start(self, index: int) -> list[str]:
        """Run an instance's two pods; the names of their containers."""
        workload = self.world.find("StatefulSet", f"llm-0-prefill-{index}")
        template, made = workload["spec"]["template"], []
        for number in range(2):
            pod = f"llm-0-prefill-{index}-{number}"
            container = f"c{index}{number}"
            self._create(container, self._variables(template, pod))
            ran = [{"name": "serve", "containerID": f"containerd://{container}"}]
            status: Raw = {"phase": "Running", "startTime": "2026-09-01T08:00:00Z", "containerStatuses": ran}
            status["conditions"] = [{"type": "Ready", "status": "True"}]
            meta = {**template["metadata"], "name": pod, "namespace": "vision", "ownerReferences": owner(workload)}
            spec = {**template["spec"], "nodeName": f"node{number}"}
            self.world.put({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status})
            made.append(container)
        counts = {"readyReplicas": 2, "replicas": 2, "updatedReplicas": 2}
        self.world.edit("StatefulSet", f"llm-0-prefill-{index}", lambda raw: raw.update(status=counts))
        return made

    def _variables(self, template: Raw, pod: str) -> list[str]:
        """The container's environment as kubelet resolves it."""
        found = ["PATH=/bin"]
        for entry in template["spec"]["containers"][0]["env"]:
            source = entry.get("valueFrom") or {}
            if "configMapKeyRef" in source:
                data = self.world.find("ConfigMap", source["configMapKeyRef"]["name"])["data"]
                value = data[source["configMapKeyRef"]["key"]]
            elif "fieldRef" in source:
                value = pod
            else:
                value = entry["value"]
            found.append(f"{entry['name']}={value}")
        return found

    def _create(self, name: str, variables: list[str]) -> None:
        bundle = self.folder / name
        busybox(bundle / "rootfs", ("sh", "sleep"), ("proc", "dev", "sys", "data", "root", "etc"))
        subprocess.run(["runc", "spec"], cwd=bundle, check=True, timeout=30)
        spec = json.loads((bundle / "config.json").read_text())
        script = f"[ -e /data/weights ] || echo loaded by {name} >/data/weights; sleep 600"
        spec["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", script], "env": variables}
        spec["root"]["readonly"] = False
        (bundle / "config.json").write_text(json.dumps(spec))
        self.host.write(f"/etc/rootfs-{name}", f"{bundle}/rootfs")
        null, log = subprocess.DEVNULL, bundle / "log"
        for verb in (["create", "--bundle", str(bundle), name], ["start", name]):
            with log.open("a") as said:
                command = self.host.command(RUNTIME, "--root", str(self.root), *verb)
                done = subprocess.run(command, env=self.host.env, stdin=null, stdout=said, stderr=said, timeout=60)
            assert done.returncode == 0, log.read_text()
        self.host.shell(f"for i in $(seq 600); do [ -e {bundle}/rootfs/data/weights ] && exit; sleep 0.1; done; exit 1")

    def agents(self) -> None:
        """One turn of the agents' part of both nodes."""

        async def turn() -> None:
            cluster = Cluster(self.world)
            for node in ("node0", "node1"):
                part = Snapshots(node, cluster, VirtualClock(), runtime=str(self.tool))
                await asyncio.gather(*part.start(cluster.on(node)))

        asyncio.run(turn())


def test_a_service_saves_once_and_later_containers_go_on_from_it(host: Host, folder: Path) -> None:
    one = role("prefill", 2, image="serve:1")
    one["metadata"]["labels"] = {PREFIX + "container-snapshot": "true"}
    images = {"name": "host_snapshot_dir_path", "value": str(folder / "images")}
    one["spec"]["template"]["spec"]["containers"][0]["env"] = [images]
    world = World(service_set(one))
    world.settle()
    nodes = Nodes(host, folder, world)
    assert nodes.start(0) == ["c00", "c01"]
    world.settle()
    assert PREFIX + "active" not in world.pod("llm-0-prefill-0-0")["metadata"]["labels"]
    nodes.agents()
    saved = folder / "images/vision/llm-0-prefill"
    assert [(saved / n / "image/pages").read_text() for n in "01"] == ["memory of c00\n", "memory of c01\n"]
    for name in ("c00", "c01"):
        state = json.loads(host.run("runc", "--root", str(nodes.root), "state", name).stdout)
        assert state["status"] == "running", "a checkpoint does not end its container"
    world.settle()
    assert world.pod("llm-0-prefill-0-0")["metadata"]["labels"][PREFIX + "active"] == "true"
    data = world.find("ConfigMap", "snapshot-metadata-llm-0-prefill-1")["data"]
    assert data["GrusSnapshotRestoredFlag"] == "true"
    # the second instance starts now: each of its containers goes on from the one of its own number
    nodes.start(1)
    assert host.read("/etc/went-on-from") == "memory of c01\n"
    found = [(folder / name / "rootfs/data/weights").read_text() for name in ("c10", "c11")]
    assert found == ["loaded by c00\n", "loaded by c01\n"], "files that the first instance wrote are there"
    world.settle()
    modes = {name: world.pod(name)["metadata"]["annotations"]["snapshot_mode"] for name in world.pods()}
    assert modes == {
        "llm-0-prefill-0-0": "save", "llm-0-prefill-0-1": "save",
        "llm-0-prefill-1-0": "load", "llm-0-prefill-1-1": "load",
    }  # fmt: skip
    nodes.agents()
    assert sorted(p.name for p in saved.iterdir()) == ["0", "1"], "what loads is not saved again"
