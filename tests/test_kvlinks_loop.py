"""KVLinks from `git push` to linked processes: the engine's loop, real node agents, real processes over loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.cli.explanation import explain
from belay.engine.kube import CONFIGMAP
from belay.engine.load import load
from belay.engine.observe.observed import observe
from belay.engine.observe.resources import fetch
from belay.engine.plan import plan
from belay.engine.sandbox import definitions
from tests.gitrepo import Repo
from tests.kube_server import real_cluster
from tests.loop_world import Cluster, Loop, until
from tests.ports import free_port
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = pytest.mark.real_time

PATIENCE = 150.0
OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other, namespace: default}\ndata: {a: b}\n"


class Programs:
    """Node agents and link processes as programs of their own, each with its log."""

    def __init__(self, folder: Path, kubeconfig: str) -> None:
        self.folder, self.kubeconfig = folder, kubeconfig
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def agent(self, node: str) -> None:
        self._start(
            node, "belay.agents.daemon", "--node", node, "--driver", "simulated", "--kubeconfig", self.kubeconfig,
            "--state-dir", str(self.folder / f"state-{node}"), "--links", str(self.folder / f"links-{node}"),
            "--scale", "0.05",
        )  # fmt: skip

    def process(self, name: str, node: str, cluster: int, port: int | None = None, *options: str) -> None:
        listen = ("--listen", f"127.0.0.1:{port}") if port is not None else ()
        folder = self.folder / f"links-{node}" / f"cluster-{cluster}"
        self._start(name, "belay.agents.datadist", "--folder", str(folder), *listen, *options)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def log(self) -> str:
        return "\n".join(f"{f.name}: {f.read_text()[-1500:]}" for f in sorted(self.folder.glob("*.log")))

    def _start(self, name: str, module: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", module, *arguments], stdout=log, stderr=log, env={**os.environ, "POD_NAME": name}
            )


@pytest.fixture
def kind() -> str:
    return "sandbox"


@pytest.fixture
def cluster(kind: str, tmp_path: Path) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        if kind == "real":
            kubeconfig = stack.enter_context(real_cluster(Path(os.environ["KUBEBUILDER_ASSETS"]), tmp_path))
            made = Cluster(tmp_path, kubeconfig)
            stack.callback(made.close)
        else:
            made = Cluster(tmp_path)
            stack.callback(made.close)
        made.run(definitions.ensure(made.kube))
        for name in ("node-1", "node-2"):
            made.add_node(name)
        yield made


@pytest.fixture
def programs(cluster: Cluster, tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path, cluster.kubeconfig)
    yield made
    made.end()


@pytest.fixture
def loops() -> Iterator[list[Loop]]:
    running: list[Loop] = []
    yield running
    for loop in running:
        loop.close()


def kv_link(prefill: dict[int, int], timeout: str = "10s") -> str:
    """Clusters 1… on node-1 at ports of this machine, cluster 9 on node-2.

    A process that is killed is noticed by its socket; the time is for one that hangs, as every process of a machine
    with too much to do does for a second now and then, and its link would break in the middle of a look at it.
    """
    listed = ", ".join(f'{{id: {n}, addresses: ["127.0.0.1:{p}"], node: node-1}}' for n, p in prefill.items())
    return (
        "apiVersion: belay.dev/v1alpha1\nkind: KVLink\nmetadata: {name: chat}\nspec:\n"
        f"  timeout: {timeout}\n  prefill: {{clusters: [{listed}]}}\n"
        '  decode: {clusters: [{id: 9, addresses: ["127.0.0.1:1"], node: node-2}]}\n'
    )


def status(cluster: Cluster) -> dict[str, str]:
    found = cluster.get(CONFIGMAP, "belay-link-chat", "belay-system")
    return dict(found["data"]) if found else {}


def states(cluster: Cluster) -> dict[int, str]:
    return {row["prefill"]: row["state"] for row in rows(cluster)}


def rows(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(status(cluster).get("links.json", "[]"))
    return found


REAL = pytest.param(
    "real", marks=pytest.mark.skipif("KUBEBUILDER_ASSETS" not in os.environ, reason="no real kube-apiserver")
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sandbox", REAL])
def test_a_push_links_a_dead_process_is_linked_again_and_a_deletion_unlinks(
    cluster: Cluster,
    programs: Programs,
    loops: list[Loop],
    redis_url: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    repo, ports = Repo(tmp_path / "git"), {1: free_port(), 2: free_port()}
    for node in ("node-1", "node-2"):
        programs.agent(node)
    repo.commit({"desired/link.yaml": kv_link(ports), "desired/other.yaml": OTHER})
    loop = Loop(cluster, redis_url, tmp_path / "data", source_url=str(repo.bare), source_interval=1.0)
    loops.append(loop)

    def reach(what: str, condition: Callable[[], object]) -> None:
        try:
            until(condition, PATIENCE, what)
        except AssertionError as error:
            ordered = cluster.get(CONFIGMAP, "belay-links-node-2", "belay-system")
            text = f"{error}; status: {status(cluster)}; ordered: {(ordered or {}).get('data')}"
            text += f"; failures: {loop.failures}"
            text += f"; sync: {cluster.get(CONFIGMAP, 'belay-sync', 'belay-system')['data']}"
            raise AssertionError(f"{text}\n{programs.log()}") from None

    reach("the report that no process takes the orders", lambda: states(cluster) == {1: "no-process", 2: "no-process"})
    for number in ports:
        programs.process(f"prefill-{number}", "node-1", number, ports[number])
    programs.process("decode", "node-2", 9)
    reach("both links", lambda: states(cluster) == {1: "linked", 2: "linked"})
    assert status(cluster)["summary"] == "2 of 2 links hold"
    first = rows(cluster)[0]
    assert first["latencyMs"] > 0 and first["client"] == "decode" and first["since"].endswith("Z")

    # explain and get stand on the same plan
    observed = observe(cluster.run(fetch(cluster.kube)))
    desired = load({"desired/link.yaml": kv_link(ports).encode()}, revision="r").desired
    body = explain("link", "chat", plan(desired, observed, observed.newest_report), observed)
    assert body["links"] == {"linked": 2} and body["slowestMs"] > 0 and body["notLinked"] == []

    programs.kill("prefill-1")
    reach("the broken link", lambda: states(cluster) == {1: "broken", 2: "linked"})
    assert status(cluster)["summary"] == "1 of 2 links hold; broken 1"
    programs.process("prefill-1", "node-1", 1, ports[1])
    reach("the mended link", lambda: states(cluster) == {1: "linked", 2: "linked"})

    # the agent dies: the process keeps its links by the orders it has
    programs.kill("node-2")
    ports[2] = free_port()
    programs.kill("prefill-2")
    programs.process("prefill-2", "node-1", 2, ports[2])
    repo.commit({"desired/link.yaml": kv_link(ports)})
    loop.controller.fetch_soon()
    programs.agent("node-2")
    reach("the link to the new place", lambda: states(cluster) == {1: "linked", 2: "linked"} and linked_at(ports[2]))

    (repo.work / "desired/link.yaml").unlink()
    repo.commit()
    loop.controller.fetch_soon()
    reach("the end of the state", lambda: status(cluster) == {})
    folder = tmp_path / "links-node-2" / "cluster-9"
    reach("the end of the orders", lambda: not (folder / "links.json").exists())
    reach("the end of the links", lambda: not linked_at(ports[1]) and not linked_at(ports[2]))
    reach("the word of it", lambda: reported(cluster, "node-2") == {"node": "node-2", "clusters": []})
    assert not loop.failures


def reported(cluster: Cluster, node: str) -> Any:
    found = cluster.get(CONFIGMAP, f"belay-links-{node}", "belay-nodes")
    return json.loads(found["data"]["links.json"]) if found else None


def linked_at(port: int) -> bool:
    """Whether a connection to that port of this machine is established (Linux, proc(5))."""
    wanted = f":{port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        fields = [line.split() for line in table.readlines()[1:]]
    return any(row[2].endswith(wanted) and row[3] == "01" for row in fields)


def test_shared_memory_is_served_and_bad_starts_are_refused(programs: Programs, tmp_path: Path) -> None:
    memory, port = tmp_path / "blocks", free_port()
    sizes = ("--tensors", "1", "--blocks", "4", "--block-bytes", "8", "--memory", str(memory))
    folder = tmp_path / "links-x" / "cluster-5"
    folder.mkdir(parents=True)
    programs.process("far", "x", 5, port, "--cluster", "5", *sizes)
    until(lambda: (memory / "tensor-0").exists() and (memory / "tensor-0").stat().st_size == 32, PATIENCE)
    with (memory / "tensor-0").open("r+b") as stream:  # what the inference process computes
        stream.write(b"01234567" * 4)

    from belay.agents.datadist import (
        BlocksCacheKey,
        CacheDesc,
        DataType,
        LLMClusterInfo,
        LLMDataDist,
        LLMRole,
        Placement,
    )

    near = LLMDataDist(LLMRole.DECODER, 6)
    near.init({"llm.LinkRetryCount": "100"})
    try:
        mine = bytearray(32)
        desc = CacheDesc(1, [4, 8], DataType.DT_UINT8, Placement.HOST)
        cache = near.cache_manager.register_blocks_cache(desc, [mine])
        info = LLMClusterInfo()
        info.remote_cluster_id = 5
        info.append_local_ip_info("127.0.0.1", 1)
        info.append_remote_ip_info("127.0.0.1", port)
        assert near.link_clusters([info], 20_000)[0] == 0, programs.log()
        near.cache_manager.pull_blocks(BlocksCacheKey(5), cache, [1, 2], [0, 3])
        assert bytes(mine) == b"01234567" + b"\0" * 16 + b"01234567"
    finally:
        near.finalize()
    for bad in (["--pod", "nameless"], ["--cluster", "5", "--listen", "here"], ["--cluster", "-1"]):
        done = subprocess.run(
            [sys.executable, "-m", "belay.agents.datadist", "--folder", str(folder), *bad],
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 2 and b"links cannot be kept" in done.stderr, done.stderr
