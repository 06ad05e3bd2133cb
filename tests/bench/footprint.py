"""What the node's programs cost beside MindCluster's: the exporter alone, and one agent with all of its parts.

Over the compiled stand-in of the driver, 8 chips, default intervals, scraped every 15 s; the sandbox's API server and a
kubelet of memory are in the benchmark's own process and not counted. CPU is that of the program, of its driver process
and of the runs of hccn_tool, over a minute, after half a minute of rest; on an idle machine a wake-up costs more than
on a busy one, so their number stands beside it, which does not depend on that. Memory is resident (RSS) of the program,
of its driver process beside it. There is no container runtime: where there is
one, the exporter alone takes 10 MiB more for gRPC, which an agent has for kubelet anyway.
MindCluster's figures were measured on the same machine with an older stand-in, whose listener woke 50 times a second in
the process that it reports to: exporter 31 MiB; device plugin, NodeD and exporter together 137 MiB and 0.08 to 0.22 CPU
s a minute, part of which was that listener.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from belay.agents.drivers.standin.state import Standin
from belay.engine.kube import NODE
from tests.bench.agentcost import MEASURED, REST, program
from tests.bench.exporter import machine, ready, scrape_on
from tests.bench.measure import Result
from tests.bench.running import cpu_seconds, resident, tree
from tests.kubelet_world import Kubelet
from tests.loop_world import Cluster
from tests.test_exporter_prometheus import free_port


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="bb") as folder:
        return asyncio.run(_run(Path(folder)))


async def _run(folder: Path) -> list[Result]:
    standin, library, tool = machine(folder, 8)
    port = free_port(20_000, 30_000)
    flags = [
        "-ip=127.0.0.1", f"-port={port}", f"-hccnTool={tool}", f"-configDir={folder}", "-containerMode=containerd",
        f"-endpoint={folder}/n.sock", f"-containerd={folder}/n.sock",
    ]  # fmt: skip
    alone = ["-m", "belay.agents.exporter", f"-driver=dcmi:{library}", *flags]
    results = await _cost("exporter alone", alone, standin, port, memory=31)

    kubelet = Kubelet(folder / "k")
    await kubelet.start()
    with contextlib.closing(Cluster(folder)) as cluster:
        await asyncio.to_thread(cluster.ensure, NODE, _node())
        whole = [
            "-m", "belay.agents.daemon", "--node", "bench", "--driver", f"dcmi:{library}",
            "--state-dir", str(folder / "agent"),
            "--kubeconfig", cluster.kubeconfig, "--rank-tables", "", "--device-plugin", "-volcanoType=true",
            "--kubelet-dir", str(folder / "k"), "--pod-resources", str(kubelet.pod_socket),
            f"--exporter={' '.join(flags)}", "--hardware", "--ipmi=off",
        ]  # fmt: skip
        results += await _cost("agent with device plugin, hardware and exporter", whole, standin, port, memory=80)
    await kubelet.stop()
    return results


def _node() -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench"}}


async def _cost(what: str, arguments: Sequence[str], standin: Standin, port: int, *, memory: float) -> list[Result]:
    parts = [0.0, 0.0, 0.0]
    used = Result(f"{what}: memory (RSS)", "MiB", memory)
    cpu = Result("the same: CPU in an idle minute, with its driver process", "s", 0.2)
    woken = Result("the same: wake-ups in an idle minute, with its driver process", "")
    with program(list(arguments), standin) as running:
        await ready(port, 8)
        scraping = asyncio.create_task(scrape_on(port))
        await asyncio.sleep(REST)
        for _ in range(int(MEASURED // 20) or 1):
            family = [running.pid, *_driver_processes(running.pid)]
            before, begin, switches = _spent(family), time.monotonic(), _wakeups(family)
            await asyncio.sleep(min(20.0, MEASURED))
            minutes = (time.monotonic() - begin) / 60
            spent = [(now - then) / minutes for now, then in zip(_spent(family), before, strict=True)]
            cpu.runs.append(sum(spent))
            woken.runs.append((_wakeups(family) - switches) / minutes)
            parts = [part + share for part, share in zip(parts, spent, strict=True)]
            used.runs.append(resident(running.pid))
        used.remark = f"driver process beside it: {sum(map(resident, family[1:])):.0f} MiB"
        own, tools, driver = (part / len(cpu.runs) for part in parts)
        cpu.remark = f"itself {own:.2f} s, its driver process {driver:.2f} s, hccn_tool {tools:.2f} s"
        scraping.cancel()
    return [used, cpu, woken]


def _spent(family: Sequence[int]) -> list[float]:
    """CPU seconds of the program itself, of the programs that it ran, of its driver process."""
    program, *others = family
    own = cpu_seconds(program)
    rest = sum(cpu_seconds(pid, waited=True) for pid in others)
    return [own, cpu_seconds(program, waited=True) - own, rest]


def _wakeups(family: Sequence[int]) -> int:
    """How often the threads of these programs have gone to sleep and been woken, so far."""
    count = 0
    for status in [file for pid in family for file in Path(f"/proc/{pid}/task").glob("*/status")]:
        with contextlib.suppress(OSError):  # a thread that has ended
            lines = [line for line in status.read_text().splitlines() if line.startswith("voluntary_ctxt_switches:")]
            count += sum(int(line.split()[1]) for line in lines)
    return count


def _driver_processes(pid: int) -> list[int]:
    """Those of the programs below one that stay: not the runs of a tool."""
    lines = {one: Path(f"/proc/{one}/cmdline") for one in tree(pid)[1:]}
    return [
        one for one, file in lines.items() if file.exists() and b"belay.agents.drivers.dcmi.child" in file.read_bytes()
    ]


__all__ = ["run"]
