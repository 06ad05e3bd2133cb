"""The exporter and the agent that carries it, over the compiled stand-in of the driver.

Scrapes are whole answers over a kept connection on loopback, at the default intervals, of which the shortest is 1 s:
what a scrape waits for the page to be rendered and packed is in it. hccn_tool is a script that prints recorded output.
The agent runs alone with its driver process, against a sandbox API server in this process; its CPU is that of agent
and driver process together over a minute, after half a minute of rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from belay.agents.drivers.standin.build import build, place_hccn_tool
from belay.agents.drivers.standin.state import Standin
from belay.engine.kube import NODE
from tests.bench.agentcost import cost, program
from tests.bench.measure import Result
from tests.loop_world import Cluster
from tests.test_exporter_prometheus import free_port

SCRAPES = 400
CROWD = 200


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as folder:
        return [*_scrapes(Path(folder)), *asyncio.run(_agent(Path(folder)))]


def _scrapes(folder: Path) -> list[Result]:
    samples = 0
    plain = Result("scrape of 16 chips, plain, p99", "ms", 15, percentile=99)
    packed = Result("the same, gzip, p99", "ms", 15, percentile=99)
    with _exporter(folder, "-limitIPReq=999/1", "-trustedScrapers=127.0.0.0/8", "-concurrency=512",
                   "-limitTotalConn=512") as port:  # fmt: skip
        text = asyncio.run(_repeat(port, "identity", plain.runs))
        asyncio.run(_repeat(port, "gzip", packed.runs))
        samples = sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))
        plain.remark = f"{samples:,} samples, {len(text) / 1024:,.0f} KiB, {SCRAPES} scrapes"
        codes = asyncio.run(_crowd(port))
    crowd = Result(f"{CROWD} scrapers at once, limits raised: answers that are not 200", "", 0,
                   runs=[float(sum(code != 200 for code in codes))])  # fmt: skip
    with _exporter(folder) as port:
        codes = asyncio.run(_crowd(port))
    default = Result(f"{CROWD} scrapers at once, default limits: 503", "", runs=[float(codes.count(503))])
    default.remark = f"{codes.count(200)} × 200, {CROWD - codes.count(200) - codes.count(503)} cut off"
    return [plain, packed, crowd, default]


@contextlib.contextmanager
def _exporter(folder: Path, *flags: str) -> Iterator[int]:
    """An exporter of an A2 server with 16 chips; waits until every group has been read."""
    standin, library, tool = machine(folder, 16)
    port = free_port(20_000, 30_000)
    arguments = [
        "-ip=127.0.0.1", f"-port={port}", f"-driver=dcmi:{library}", f"-hccnTool={tool}", f"-configDir={folder}",
        "-containerMode=containerd", f"-endpoint={folder}/n.sock", f"-containerd={folder}/n.sock",
    ]  # fmt: skip
    with program(["-m", "belay.agents.exporter", *arguments, *flags], standin):
        asyncio.run(ready(port, 16))
        yield port


def machine(folder: Path, chips: int) -> tuple[Standin, Path, Path]:
    return Standin.create(folder / "state", chips=chips), build(folder / "lib"), place_hccn_tool(folder)


async def ready(port: int, chips: int) -> None:
    end = time.monotonic() + 60
    wanted = ("npu_chip_info_utilization", "npu_chip_optical_vcc", "npu_chip_info_pcie_tx_p_bw", "npu_chip_link_speed")
    while time.monotonic() < end:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            text = (await _once(port))[1].decode()
            if all(f'{name}{{container_name="",id="{chips - 1}"' in text for name in wanted):
                return
        await asyncio.sleep(0.2)
    raise RuntimeError("the exporter did not show every group within a minute")


async def _repeat(port: int, encoding: str, into: list[float]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    request = f"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: {encoding}\r\n\r\n".encode()
    body = b""
    for _ in range(SCRAPES):
        begin = time.perf_counter()
        writer.write(request)
        status, body = await _answer(reader)
        into.append((time.perf_counter() - begin) * 1000)
        if status != 200:
            raise RuntimeError(f"a scrape was answered {status}")
        await asyncio.sleep(0.02)
    writer.close()
    return body


async def _crowd(port: int) -> list[int]:
    async def one() -> int:
        try:
            return (await _once(port))[0]
        except (OSError, asyncio.IncompleteReadError):
            return 0

    return list(await asyncio.gather(*(one() for _ in range(CROWD))))


async def _once(port: int) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        return await _answer(reader)
    finally:
        writer.close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:"))
    return int(head.split()[1]), await reader.readexactly(length)


async def _agent(folder: Path) -> list[Result]:
    """Memory and CPU of an agent with 8 chips, a poll of 5 s and the exporter, scraped every 15 s."""
    with contextlib.closing(Cluster(folder)) as cluster:
        await asyncio.to_thread(
            cluster.ensure, NODE, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench"}}
        )
        standin, library, tool = machine(folder, 8)
        port = free_port(20_000, 30_000)
        flags = (
            f"-ip=127.0.0.1 -port={port} -hccnTool={tool} -configDir={folder} -containerMode=containerd "
            f"-endpoint={folder}/n.sock -containerd={folder}/n.sock"
        )
        arguments = [
            "-m", "belay.agents.daemon", "--node", "bench", "--driver", f"dcmi:{library}",
            "--state-dir", str(folder / "agent"),
            "--kubeconfig", cluster.kubeconfig, "--rank-tables", "", f"--exporter={flags}",
        ]  # fmt: skip
        with program(arguments, standin) as running:
            await ready(port, 8)
            scraping = asyncio.create_task(scrape_on(port))
            found = await cost(running.pid, "exporter")
            scraping.cancel()
    return found


async def scrape_on(port: int) -> None:
    while True:
        await asyncio.sleep(15)
        await _once(port)
