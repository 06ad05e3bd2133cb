"""From a chip's fault to the moment a person with `kubectl get configmap -w` sees it isolated, with 100 nodes.

A real kubectl watches the pools' status (``belay-pool-*``). The clock starts before the fault is written to the
simulated node and stops when kubectl's line arrives that shows the chip isolated: in between lie driver event, report,
watch, trigger, Celery task, plan, status write and watch. Faults come one by one at random distances of 1 s to 2 s, on
chips of different nodes, and stay; faults in bursts are not measured. The 99th percentile of 60 samples is the largest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from belay.engine.kube import CONFIGMAP, Conflict, Kube
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.sandbox.inject import FAULTS_KEY
from belay.engine.sandbox.up import Sandbox, SandboxOptions
from belay.engine.wire import names
from tests.bench.measure import ROOT, RUNS, Result, Skipped
from tests.bench.running import environment, kubectl, memory, up
from tests.kube_server import real_cluster, stores_custom_objects

NODES = 100
SAMPLES = 12
"""Per run."""
CODE = "80DF8402"
"""Level SeparateNPU in the shipped table, so that the chip stays out and nothing resets it."""
LATEST = 20.0
"""Seconds after which a fault that is not seen isolated fails the benchmark."""
TEMPLATE = r'jsonpath={.data.chips\.json}{"\n"}'


def run() -> list[Result]:
    """In the sandbox."""
    program = kubectl()
    with up(NODES) as running:
        return _measure(program, running.kubeconfig, running.process.pid)


def run_real() -> list[Result]:
    """The same engine and world on a real kube-apiserver.

    Where that dies on custom resources, there are none: neither definitions nor the sample's AscendJob.

    Raises:
        Skipped: KUBEBUILDER_ASSETS does not name its binaries.
    """
    program = kubectl()
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        raise Skipped("KUBEBUILDER_ASSETS is not set: no real kube-apiserver")
    folder = Path(tempfile.mkdtemp(prefix="belay-bench-"))
    (folder / "kube").mkdir()
    try:
        with real_cluster(Path(assets), folder / "kube") as kubeconfig:
            custom = stores_custom_objects(kubeconfig)
            left_out = shutil.ignore_patterns() if custom else shutil.ignore_patterns("jobs")
            shutil.copytree(ROOT / "desired", folder / "state" / "desired", ignore=left_out)
            options = SandboxOptions(
                nodes=NODES,
                data=str(folder / "data"),
                state=str(folder / "state"),
                server=False,
                cluster=str(kubeconfig),
                definitions=custom,
            )
            sandbox = Sandbox(options, lambda _: None)
            try:
                sandbox.start()
                results = _measure(program, kubeconfig, 0)
                results[-1].remark += (
                    "" if custom else "; this kube-apiserver bears no custom resources, so there are none"
                )
                return results
            finally:
                sandbox.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(program: str, kubeconfig: Path, pid: int) -> list[Result]:
    used = Result(
        "memory of all processes with 100 nodes (PSS)", "MiB", 600, remark="after each run; kubectl not counted"
    )
    medians = Result("injected fault → isolation visible to kubectl, p50", "ms", None)
    every = Result("the same, p99 of all samples", "ms", 1000, percentile=99)
    chance = random.Random(11)
    with _Watch(program, kubeconfig) as watch:
        asyncio.run(_first(kubeconfig, watch))
        for turn in range(RUNS):
            samples = asyncio.run(_samples(kubeconfig, watch, turn, chance))
            run = Result("", "ms", runs=samples)
            medians.runs.append(run.value)
            every.runs += samples
            if pid:
                used.runs.append(memory(pid))
        version = subprocess.run([program, "version", "--client"], capture_output=True, text=True, check=False).stdout
    medians.remark = f"{RUNS} runs of {SAMPLES} faults; median of the runs' medians"
    every.remark = f"{len(every.runs)} samples, {_version(version)}"
    return [medians, every, *([used] if pid else [])]


async def _first(kubeconfig: Path, watch: _Watch) -> None:
    """One fault that is not counted: until it is seen, everything has started."""
    async with Kube.from_config(str(kubeconfig)) as kube:
        await _break(kube, "node-100", 7)
        await asyncio.to_thread(watch.seen, "node-100", "Ascend910-7", 60.0)


async def _samples(kubeconfig: Path, watch: _Watch, chip: int, chance: random.Random) -> list[float]:
    """Break one chip after the other; milliseconds until each was seen isolated."""
    found = []
    async with Kube.from_config(str(kubeconfig)) as kube:
        for number in range(SAMPLES):
            node = f"node-{number * 8 + chip + 1}"
            await asyncio.sleep(chance.uniform(1.0, 2.0))
            begin = time.monotonic()
            await _break(kube, node, chip)
            found.append((await asyncio.to_thread(watch.seen, node, f"Ascend910-{chip}", LATEST) - begin) * 1000)
    return found


async def _break(kube: Kube, node: str, chip: int) -> None:
    """What `belay inject fault` does, over a connection that stays open."""
    name = names.SIM_PREFIX + node
    data = {FAULTS_KEY: json.dumps({f"Ascend910-{chip}": {"codes": [CODE]}})}
    metadata = {"name": name, "namespace": names.NODES}
    try:
        await kube.create(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    except Conflict:
        await kube.patch(CONFIGMAP, name, {"data": data}, names.NODES)


class _Watch:
    """A kubectl that watches the pools; knows when each chip was first shown isolated."""

    def __init__(self, program: str, kubeconfig: Path) -> None:
        selector = f"{ABOUT_LABEL}=pool"
        command = [program, "get", "configmap", "-n", names.SYSTEM, "-l", selector, "-w", "-o", TEMPLATE]
        self._command, self._environment = command, environment(kubeconfig)
        self._isolated: dict[tuple[str, str], float] = {}
        self._news = threading.Condition()

    def __enter__(self) -> _Watch:
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        self._reader.join(5)

    def seen(self, node: str, chip: str, seconds: float) -> float:
        """When the chip was shown isolated, by the monotonic clock; waits for it.

        Raises:
            AssertionError: not within ``seconds``, or kubectl ended.
        """
        with self._news:
            self._news.wait_for(lambda: (node, chip) in self._isolated, seconds)
            assert (node, chip) in self._isolated, f"{node}/{chip} is not seen isolated within {seconds:.0f} s"
            return self._isolated[node, chip]

    def _read(self) -> None:
        for moment, line in self._lines():
            chips: list[dict[str, Any]] = json.loads(line or "[]")
            with self._news:
                for chip in chips:
                    if chip["state"] == "isolated":
                        self._isolated.setdefault((chip["node"], chip["chip"]), moment)
                self._news.notify_all()

    def _lines(self) -> Iterator[tuple[float, str]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield time.monotonic(), line.rstrip("\n")


def _version(text: str) -> str:
    found = text.partition('GitVersion:"')[2].partition('"')[0] or text.partition("Client Version: ")[2].split("\n")[0]
    return f"kubectl {found}" if found else "kubectl"
