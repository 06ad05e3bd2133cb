"""kube-scheduler's verdicts beside Belay's: the nodes of a cluster that each of them holds fit for a waiting pod.

kube-scheduler asks an extender about every node that its own filters passed. The extender here notes them and refuses
all, so nothing is bound and each waiting pod of a world is judged alone. Belay's planner judges the same objects, as
the API server answers them, one waiting pod at a time.

    python -m tests.scheduler_verdicts SEED WORLDS
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from belay.engine.kube import NODE, POD, Kube, NotFound, Resource, resource_for
from belay.engine.load import load
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.observe.observed import Observer
from belay.engine.observe.resources import fetch
from belay.engine.plan import plan
from tests import listing, scheduler_cases
from tests.control_planes import closed_ports
from tests.kube_server import real_cluster
from tests.needs import assets
from tests.scheduler_cases import Object, World

PATIENCE = 60.0
#: After verdicts that differ: long enough for caches of the scheduler to have what a pod was judged without.
SETTLED = (0.5, 2.0, 5.0)
#: Worlds that one control plane is started for (``tests.soak``).
CHUNK = 20
KINDS = {
    one["kind"]: resource_for(one["apiVersion"], one["kind"]) for one in scheduler_cases.shared()
    if one["kind"] not in ("RuntimeClass", "DeviceClass")
}  # fmt: skip
SLICE = Resource(scheduler_cases.DEVICES, "ResourceSlice", "resourceslices", False)
CLAIM = Resource(scheduler_cases.DEVICES, "ResourceClaim", "resourceclaims", True)
CSI_NODE = resource_for("storage.k8s.io/v1", "CSINode")


@dataclass(frozen=True)
class Difference:
    """A node that only one of the two holds fit for a pod."""

    pod: str
    node: str
    features: tuple[str, ...]
    false_fit: bool
    why: str

    def __str__(self) -> str:
        verdict = "fits only for Belay" if self.false_fit else "fits only for kube-scheduler"
        return f"{self.pod} {verdict} on {self.node} ({', '.join(self.features)}): {self.why}"


class Extender:
    """The nodes that kube-scheduler's own filters passed, by pod, as it asked last."""

    def __init__(self) -> None:
        self.passed: dict[str, frozenset[str]] = {}
        seen = self.passed

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = asked.get("NodeNames") or asked.get("nodenames") or []
                seen[(asked.get("Pod") or asked["pod"])["metadata"]["name"]] = frozenset(names)
                answer = json.dumps({"NodeNames": [], "FailedNodes": dict.fromkeys(names, "noted")}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing: the scheduler asks hundreds of times."""

        class Server(http.server.ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A scheduler that ends breaks its connections off."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def scheduler(program: Path, kubeconfig: Path, folder: Path) -> Iterator[Extender]:
    """kube-scheduler, which binds nothing and preempts nothing."""
    extender = Extender()
    (folder / "scheduler.json").write_text(json.dumps({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False}, "percentageOfNodesToScore": 100,
        "profiles": [{
            "schedulerName": "default-scheduler", "plugins": {"postFilter": {"disabled": [{"name": "*"}]}},
        }],
        "extenders": [{
            "urlPrefix": f"http://127.0.0.1:{extender.port}", "filterVerb": "filter", "nodeCacheCapable": True,
            "httpTimeout": "30s",
        }],
    }))  # fmt: skip
    command = [
        str(program), f"--config={folder / 'scheduler.json'}", *closed_ports(program),
        f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}",
    ]  # fmt: skip
    with (folder / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield extender
        finally:
            process.terminate()
            process.wait(30)
            extender.close()


async def prepare(kube: Kube) -> None:
    """Create what all worlds share; what a controller does with volumes is done once, by hand."""
    for body in scheduler_cases.shared():
        kind = KINDS.get(body["kind"]) or await kube.resource(body["apiVersion"], body["kind"])
        name, space = body["metadata"]["name"], body["metadata"].get("namespace")
        with contextlib.suppress(Exception):
            await kube.delete(kind, name, space)
        await kube.create(kind, body)
        if body["kind"] in ("PersistentVolume", "PersistentVolumeClaim"):
            bound = "claimRef" in body["spec"] or "volumeName" in body["spec"]
            free = "Available" if body["kind"] == "PersistentVolume" else "Pending"
            await kube.patch_status(kind, name, {"status": {"phase": "Bound" if bound else free}}, space)
        if name == "going":
            await kube.delete(kind, name, space)  # the finalizer of claims keeps it


async def judge(kube: Kube, extender: Extender, seed: int) -> tuple[int, list[Difference]]:
    """Both verdicts on every waiting pod of a world: how many there were, and the nodes on which they differ.

    A difference counts once kube-scheduler has judged equal pods later: its caches fill kind by kind.
    """
    world = scheduler_cases.world(seed)
    await _create(kube, world)
    try:
        pods = await _verdicts(kube, world.waiting)
        differences = await _differences(kube, extender, world, pods)
        for settled in SETTLED:
            if not differences:
                break
            again = [pod for pod in world.waiting if pod["metadata"]["name"] in {one.pod for one in differences}]
            await _delete(kube, POD, again)
            await asyncio.sleep(settled)
            for pod in again:
                extender.passed.pop(pod["metadata"]["name"], None)
            pods = await _verdicts(kube, again)
            differences = await _differences(kube, extender, world, pods)
        return len(world.waiting), differences
    finally:
        await _remove(kube, world)


async def _differences(kube: Kube, extender: Extender, world: World, pods: list[Object]) -> list[Difference]:
    found = []
    objects = await fetch(kube)
    waiting = {pod["metadata"]["name"] for pod in world.waiting}
    cluster = [one for one in objects if one["kind"] != "Pod" or one["metadata"]["name"] not in waiting]
    observer, now = Observer(), time.time()
    for one in cluster:
        observer.put(one)
    for node in world.nodes:
        observer.put(listing.report(node["metadata"]["name"], at=now))
    nodes = {one["metadata"]["name"]: one for one in cluster if one["kind"] == "Node"}
    for pod in pods:
        name = pod["metadata"]["name"]
        theirs = extender.passed.get(name, frozenset())
        ours, why = _belays(observer, pod, now)
        for node in sorted(theirs ^ ours):
            false_fit = node in ours
            if false_fit or not documented(nodes[node], several=_asks_for_several(pod, cluster)):
                message = next((one.get("message", "") for one in pod["status"].get("conditions", [])), "")
                reason = message if false_fit else why
                found.append(Difference(name, node, world.features[name], false_fit, reason))
    return found


DESIRED = load({}, has_git=False).desired


def _belays(observer: Observer, pod: Object, now: float) -> tuple[frozenset[str], str]:
    """The nodes that fit the pod, as the plan's scores name them; why none does."""
    mine = {**pod, "spec": {**pod["spec"], "schedulerName": "belay"}}
    observer.put(mine)
    space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    made = plan(DESIRED, observer.observed(), now)
    observer.delete(ObjectKey("v1", "Pod", space, name))
    assert not any(one.severity == "error" for one in made.diagnostics), made.diagnostics
    entries = [f"{one.reason}: {one.message} {one.nodes}" for one in made.pending if one.name == name]
    return frozenset(made.scores.get(f"{space}/{name}", ())), "; ".join(entries)


def documented(node: Object, *, several: bool) -> str:
    """Why Belay places a pod not on a node that kube-scheduler would use; empty without a reason (docs/kubernetes.md).

    ``several``: the pod asks for more than one chip.
    """
    if several:
        return "the chips of a pod are of one ring"
    ready = next((one for one in node["status"]["conditions"] if one["type"] == "Ready"), {})
    return "" if ready.get("status") == "True" else "the node is not ready"


def _asks_for_several(pod: Object, objects: Iterable[Object]) -> bool:
    """Whether a pod's claim is for more than one device."""
    names = {row["resourceClaimName"] for row in pod["spec"].get("resourceClaims", ())}
    claims = (one for one in objects if one["kind"] == "ResourceClaim" and one["metadata"]["name"] in names)
    requests = [request["exactly"] for claim in claims for request in claim["spec"]["devices"]["requests"]]
    return any(one.get("allocationMode") == "All" or one.get("count", 1) > 1 for one in requests)


async def _verdicts(kube: Kube, wanted: list[Object]) -> list[Object]:
    """Create waiting pods; they as the API server has them, once kube-scheduler has judged each."""
    await _all(lambda one=one: kube.create(POD, one) for one in wanted)
    names, ends = {pod["metadata"]["name"] for pod in wanted}, time.monotonic() + PATIENCE
    while True:
        pods = [pod for pod in (await kube.list(POD)).items if pod["metadata"]["name"] in names]
        judged = [
            pod for pod in pods
            if any(one["type"] == "PodScheduled" for one in (pod.get("status") or {}).get("conditions") or ())
        ]  # fmt: skip
        if len(judged) == len(names):
            return sorted(judged, key=lambda pod: str(pod["metadata"]["name"]))
        assert time.monotonic() < ends, (
            f"no verdict after {PATIENCE} s: {names - {p['metadata']['name'] for p in judged}}"
        )
        await asyncio.sleep(0.1)


async def _create(kube: Kube, world: World) -> None:
    async def node(body: Object) -> None:
        await kube.create(NODE, body)
        # admission gives every new node a taint
        await kube.patch(NODE, body["metadata"]["name"], {"spec": {"taints": body["spec"].get("taints")}})

    async def running(body: Object) -> None:
        name, space = body["metadata"]["name"], body["metadata"]["namespace"]
        await kube.create(POD, body)
        if name in world.statuses:
            await kube.patch_status(POD, name, {"status": world.statuses[name]}, space)
        if name in world.ending:
            await kube.delete(POD, name, space)

    async def claim(body: Object) -> None:
        name, space = body["metadata"]["name"], body["metadata"]["namespace"]
        await kube.create(CLAIM, body)
        if name in world.allocations:
            await kube.patch_status(CLAIM, name, {"status": world.allocations[name]}, space)

    await _all(lambda one=one: node(one) for one in world.nodes)
    await _all(lambda one=one: kube.create(CSI_NODE, one) for one in world.csi_nodes)
    await _all(lambda one=one: kube.create(SLICE, one) for one in world.slices)
    await _all(lambda one=one: claim(one) for one in world.claims)
    await _all(lambda one=one: running(one) for one in world.running)


async def _remove(kube: Kube, world: World) -> None:
    async def free(claim: Object) -> None:
        metadata = claim["metadata"]
        await kube.patch(CLAIM, metadata["name"], {"metadata": {"finalizers": None}}, metadata["namespace"])

    await _delete(kube, POD, [*world.waiting, *world.running])
    await _all(lambda one=one: free(one) for one in world.claims)
    await _delete(kube, CLAIM, world.claims)
    await _delete(kube, SLICE, world.slices)
    await _delete(kube, CSI_NODE, world.csi_nodes)
    await _delete(kube, NODE, world.nodes)


async def _delete(kube: Kube, kind: Any, bodies: Iterable[Object]) -> None:
    async def one(body: Object) -> None:
        with contextlib.suppress(NotFound):
            await kube.delete(kind, body["metadata"]["name"], body["metadata"].get("namespace"), grace=0)

    await _all(lambda body=body: one(body) for body in bodies)


async def _all(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    gate = asyncio.Semaphore(32)

    async def call(one: Callable[[], Awaitable[Any]]) -> None:
        async with gate:
            await one()

    await asyncio.gather(*(call(one) for one in calls))


@contextlib.asynccontextmanager
async def both(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[Kube, Extender]]:
    """A client of a control plane that is prepared, and what its kube-scheduler says."""
    program = assets("kube-scheduler") / "kube-scheduler"
    async with Kube.from_config(str(kubeconfig)) as kube:
        await prepare(kube)
        with scheduler(program, kubeconfig, folder) as extender:
            yield kube, extender


async def _worlds(kubeconfig: Path, folder: Path, first: int, count: int) -> tuple[int, list[str]]:
    cases, failures = 0, []
    async with both(kubeconfig, folder) as (kube, extender):
        for seed in range(first, first + count):
            judged, differences = await judge(kube, extender, seed)
            cases += judged
            failures += [f"verdicts seed {seed}: {one}" for one in differences]
    return cases, failures


def chunk(first: int, count: int) -> tuple[int, list[str]]:
    """Judge ``count`` worlds on a control plane of their own: cases, differences."""
    with tempfile.TemporaryDirectory(prefix="belay-verdicts-") as folder:
        path = Path(folder)
        with real_cluster(assets("etcd", "kube-apiserver"), path) as kubeconfig:
            return asyncio.run(_worlds(kubeconfig, path, first, count))


if __name__ == "__main__":
    started = time.monotonic()
    number, said = chunk(int(sys.argv[1]), int(sys.argv[2]))
    summary = f"{number} cases, {len(said)} differences, {time.monotonic() - started:.0f} s"
    sys.stdout.write("\n".join([*said, summary, ""]))
