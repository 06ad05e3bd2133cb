"""What killed leaders cost: two controllers, three workers and two servers on a real kube-apiserver, under load.

For ten minutes (``MINUTES``) every 10 s the leading controller is killed (SIGKILL), and in turn the worker that holds
the shard's Lease, and in every third turn a server. Each process stays away for 5 to 7 s, as a container that kubelet
starts again later each time, so the others must take over. Once Redis is killed and comes back empty, once
kube-apiserver is killed and started again, each together with the leader. Settings are the defaults. Meanwhile jobs
come, go and lose pods in Git and in the cluster, and chips fail that a reset heals. At the moment of each kill a chip
breaks and a pod is made: the clock runs from there until the chip's isolation stands in the orders and the pod is
bound; the first of both is the first correct action. A witness with a watch of its own sees every binding, order and
reset: a chip with two owners, an epoch that ran twice, a reset under a pod end the run, and so does anything that is
missing after the last kill. The agents' own delays are shortened twentyfold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from belay.engine.kube import LEASE, POD, Kube, KubeError, cancel_all
from tests.bench.measure import Result, Skipped, nearest
from tests.chaos.kubelets import JOBS
from tests.chaos.rounds import LASTING, RESET, Player, jobs
from tests.chaos.site import CHIPS, Site, Size, remove, site
from tests.chaos.witness import Witness

EVERY = 10.0
AWAY = 5.0
"""Seconds until a killed process may be started again; it is within two more."""
PATIENCE = 60.0
"""Longest wait for an action after a kill, in seconds."""
GOAL = 5.0
ALONE, WORKER, OUTAGE = "nothing", "worker", "Redis or kube-apiserver"
SIZE = Size(nodes=4, controllers=2, workers=3, servers=2)
_LEASES = {"controller": "belay-controller-main", "worker": "belay-shard-main"}


def run() -> list[Result]:
    """The section's results."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        raise Skipped("KUBEBUILDER_ASSETS names no etcd and kube-apiserver")
    minutes = float(os.environ.get("MINUTES", "10"))
    folder = Path(tempfile.mkdtemp(prefix="belay-ha-"))
    with site(folder, SIZE, 1, assets=Path(assets), quick=False) as made:
        found = asyncio.run(_play(made, minutes))
    remove(folder)
    return found


class Run:
    """One run: kills, what they cost, and the load beside them."""

    def __init__(self, made: Site, kube: Kube, player: Player) -> None:
        self.site, self.kube, self.player = made, kube, player
        self.chance = random.Random("availability")
        self.kills: dict[str, int] = {}
        self.bound: list[float] = []
        self.isolated: list[float] = []
        self.first: dict[str, list[float]] = {ALONE: [], WORKER: [], OUTAGE: []}
        """Seconds to the first correct action, by what was killed together with the leader."""
        self._number = 0
        self.api: subprocess.Popen[bytes] | None = None
        """kube-apiserver once it was started again."""

    async def kill(self, kind: str) -> str:
        """SIGKILL of the process that holds the Lease of its kind, or of one that runs; returns its name."""
        holder = ""
        with contextlib.suppress(KubeError):
            lease = await self.kube.get(LEASE, _LEASES[kind], "belay-system") if kind in _LEASES else None
            holder = str(((lease or {}).get("spec") or {}).get("holderIdentity") or "")
        ours = self.site.of(kind)
        running = [machine for machine in ours if machine.running] or ours
        machine = self.site.machines.get(holder) or self.chance.choice(running)
        machine.down = True
        machine.kill()
        asyncio.get_running_loop().call_later(AWAY, setattr, machine, "down", False)
        self.kills[kind] = self.kills.get(kind, 0) + 1
        return machine.name

    def restart_api(self) -> None:
        """SIGKILL of kube-apiserver, which starts again with the same arguments."""
        folder = self.site.folder / "kube"
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                pid, arguments = int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")[:-1]
                if f"--cert-dir={folder / 'certs'}".encode() in arguments:
                    os.kill(pid, signal.SIGKILL)
                    time.sleep(1.0)
                    with (folder / "apiserver-again.log").open("wb") as log:
                        self.api = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT)
                    return
        raise AssertionError("the site has no kube-apiserver")

    def close(self) -> None:
        """End what this run has started."""
        if self.api is not None:
            self.api.kill()
            self.api.wait()

    async def measure(self, beside: str) -> None:
        """Break a chip and make a pod now; note how long it takes until each is acted upon."""
        began = time.monotonic()
        node, chip = self._free_chip()
        key = f"{node}/{chip}"
        self.player.witness.moments.pop(key, None)
        with self.site.hardware[node].changed() as content:
            content[chip] = {"codes": [LASTING]}
        uid = ""
        while not uid:
            with contextlib.suppress(KubeError):
                self._number += 1
                uid = str((await self.kube.create(POD, _pod(f"probe-{self._number}")))["metadata"]["uid"])
        made = time.monotonic()
        moments = self.player.witness.moments
        await _until(lambda: key in moments and f"pod/{uid}" in moments, f"{key} isolated and a pod bound")
        isolated, bound = moments[key] - began, moments[f"pod/{uid}"] - made
        self.isolated.append(isolated)
        self.bound.append(bound)
        self.first[beside].append(min(isolated, bound))
        with self.site.hardware[node].changed() as content:
            content.pop(chip, None)
        with contextlib.suppress(KubeError):
            await self.kube.delete(POD, f"probe-{self._number}", JOBS, grace=0)

    def _free_chip(self) -> tuple[str, str]:
        """A chip that nothing is known of, of the last node, on which no job runs."""
        node = self.site.nodes[-1]
        isolated = self.player.witness.isolated
        chips = [f"Ascend910-{number}" for number in range(CHIPS)]
        fresh = [
            chip for chip in chips if f"{node}/{chip}" not in isolated and chip not in self.site.hardware[node].read()
        ]
        return node, self.chance.choice(fresh or chips)

    async def load(self) -> None:
        """Jobs come, go and lose pods, and chips of other nodes than the last one fail, until this is cancelled."""
        while True:
            await asyncio.sleep(self.chance.uniform(2.0, 6.0))
            if self.chance.random() < 0.2:
                with self.site.hardware[self.chance.choice(self.site.nodes[:-1])].changed() as content:
                    content[f"Ascend910-{self.chance.randrange(CHIPS)}"] = {"codes": [RESET]}
                continue
            if self.chance.random() < 0.7:
                fresh = jobs(self.chance, self.player.files)
                few = sum(path.startswith("desired/jobs/") for path in fresh) <= 2
                self.player.files = fresh if few else self.player.files
                self.player.push()
                continue
            with contextlib.suppress(KubeError):
                pods = [pod["metadata"] for pod in (await self.kube.list(POD, JOBS)).items]
                pods = [meta for meta in pods if not meta["name"].startswith("probe-")]
                if pods:
                    await self.kube.delete(POD, self.chance.choice(pods)["name"], JOBS)


async def _play(made: Site, minutes: float) -> list[Result]:
    made.start()
    keeper = asyncio.create_task(made.keep())
    try:
        async with (
            Kube.from_config(str(made.kubeconfig)) as kube,
            Witness(kube, made.hardware).watching() as witness,
        ):
            player = Player(made, kube, witness)
            await player.begin()
            one = Run(made, kube, player)
            load = asyncio.create_task(one.load())
            try:
                await _kills(one, time.monotonic() + 60 * minutes)
                await cancel_all(load)
                healed = await player.heal()
                witness.check()
                assert witness.resets, "no chip was reset, so this run says nothing of resets"
                return _results(one, witness, made, minutes, healed)
            finally:
                await cancel_all(load)
                one.close()
    finally:
        await cancel_all(keeper)


async def _kills(one: Run, ends: float) -> None:
    whole = ends - time.monotonic()
    once: dict[float, Callable[[], Any]] = {0.35: one.site.redis.kill, 0.65: one.restart_api}
    turn = 0
    while time.monotonic() < ends:
        began = time.monotonic()
        await one.kill("controller")
        if turn % 2:
            await one.kill("worker")
        if turn % 3 == 2:
            await one.kill("server")
        beside = WORKER if turn % 2 else ALONE
        for share in [share for share in once if ends - began <= (1 - share) * whole]:
            await asyncio.to_thread(once.pop(share))
            beside = OUTAGE
        await one.measure(beside)
        one.player.witness.check()
        turn += 1
        await asyncio.sleep(max(0.0, EVERY - (time.monotonic() - began)))
    assert not once, "the run was too short for Redis and kube-apiserver"


def _pod(name: str) -> dict[str, Any]:
    resources = {"huawei.com/Ascend910": "1"}
    container = {"name": "main", "image": "probe:1", "resources": {"requests": resources, "limits": resources}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": JOBS},
        "spec": {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]},
    }


async def _until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, f"not within {PATIENCE:.0f} s: {what}"
        await asyncio.sleep(0.01)


def _results(one: Run, witness: Witness, made: Site, minutes: float, healed: float) -> list[Result]:
    leader, both, outage = one.first[ALONE], one.first[WORKER], one.first[OUTAGE]
    count = len(leader) + len(both) + len(outage)
    killed = {kind: one.kills.get(kind, 0) for kind in ("controller", "worker", "server")}
    said = (
        f"{killed['controller']} controllers, {killed['worker']} workers and {killed['server']} servers killed in "
        f"{minutes:g} min"
    )
    seen = f"{witness.bound} bindings and {witness.resets} resets seen, {made.deaths} processes died"

    def of(work: str, runs: list[float], percentile: float, limit: float | None = None, remark: str = "") -> Result:
        return Result(work, "s", limit, runs, remark or f"{count} kills", percentile)

    return [
        of("leader killed → first correct action, p50", leader, 50, remark=said),
        of("the same, p99", leader, 99, GOAL, "the largest" if nearest(leader, 99) == max(leader) else ""),
        of("leader and the shard's worker killed → first correct action, p50", both, 50, remark=f"{len(both)} kills"),
        of("the same, p99", both, 99, GOAL, "the largest" if nearest(both, 99) == max(both) else ""),
        of(
            "leader and Redis, or kube-apiserver, killed at once → first correct action, the largest",
            outage,
            99,
            GOAL,
            "one of each; counted from the start of kube-apiserver",
        ),
        of("after any of these kills → the broken chip isolated in the orders, p50", one.isolated, 50),
        of("the same, p99", one.isolated, 99),
        of("after any of these kills → the new pod bound, p50", one.bound, 50),
        of("the same, p99", one.bound, 99),
        Result("chips bound twice, epochs run twice, resets under a pod", "", 0, [float(len(witness.broken))], seen),
        Result("last kill → nothing is missing", "s", None, [healed], "every job runs, every chip is back, no hand"),
    ]
