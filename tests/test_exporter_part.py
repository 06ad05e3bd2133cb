"""The exporter beside the agent: one driver process for both, switched by one option, and its failures are its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from belay.agents.daemon.__main__ import _parser
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.exporter import part
from belay.agents.exporter.part import exporter_part
from belay.agents.exporter.settings import ExporterSettings, parse
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import NODE, RULES, FakeCluster, VirtualClock
from tests.test_exporter_http import ask
from tests.test_exporter_prometheus import free_port, until


def options(*more: str) -> Any:
    from belay.agents.exporter import option

    return option.chosen(_parser().parse_args(["--driver", "dcmi", *more]))


def test_the_option() -> None:
    assert options() is None
    assert options("--exporter=-ip=0.0.0.0 -port=9100 -containerMode=containerd").port == 9100
    with pytest.raises(ValueError, match="-port: 1 is out of range"):
        options("--exporter=-ip=0.0.0.0 -port=1")
    with pytest.raises(ValueError, match="on its own"):
        options("--exporter=-platform=Telegraf")


def test_a_driver_without_readings_is_refused_at_once() -> None:
    clock = VirtualClock()
    driver = SimulatedDriver(NODE, now_ms=clock.now_ms, sleep=clock.sleep)
    with pytest.raises(ValueError, match="use --driver dcmi"):
        exporter_part(parse(["-ip=127.0.0.1"]), driver)


def settings(tmp_path: Path, port: int) -> ExporterSettings:
    return parse([
        "-ip=127.0.0.1", f"-port={port}", f"-configDir={tmp_path}", f"-hccnTool={tmp_path}/none", "-limitIPReq=500/1",
        "-containerMode=containerd", f"-containerd={tmp_path}/n.sock", f"-endpoint={tmp_path}/n.sock",
        "-updateTime=1",
    ])  # fmt: skip


def test_agent_and_exporter_share_one_driver_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, "RETRY_SECONDS", (0.05,) * 4)
    standin = Standin.create(tmp_path / "state", chips=2)
    driver = DcmiDriver(
        build(tmp_path / "lib"), sleep=asyncio.sleep, owners=frozenset({0, os.getuid()}),
        env={"BELAY_SIM_DCMI_STATE": str(standin.file)},
    )  # fmt: skip
    port = free_port(20_000, 30_000)

    async def go() -> None:
        cluster = FakeCluster(VirtualClock())
        agent = NodeAgent(
            NODE, driver, cluster, tmp_path / "journal", Settings(poll=0.1), policy=NodePolicy("default", RULES)
        )
        # another process has the port: the agent works, and the exporter comes when the port is free
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen(1)
            running = [
                asyncio.create_task(agent.run()),
                asyncio.create_task(exporter_part(settings(tmp_path, port), driver)()),
            ]
            async with asyncio.timeout(20):
                while not any("deviceinfo" in str(key) for key in cluster.maps):
                    assert not any(task.done() for task in running)
                    await asyncio.sleep(0.02)
        async with asyncio.timeout(20):
            while True:
                try:
                    page = await ask(port)
                    if b"npu_chip_info_temperature" in page:
                        break
                except OSError:
                    pass
                await asyncio.sleep(0.05)
            standin.raise_code(1, "80E01801")
            while b"npu_chip_info_error_code{" not in await ask(port):
                await asyncio.sleep(0.05)
            while "80E01801" not in str(cluster.maps):
                await asyncio.sleep(0.05)
        assert driver.calls.starts == 1
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await driver.close()
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0

    asyncio.run(asyncio.wait_for(go(), 60))


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["telegraf", "prometheus"])
def test_a_standalone_exporter_starts_answers_and_ends_at_once(tmp_path: Path, form: str) -> None:
    standin = Standin.create(tmp_path / "state", chips=2)
    own = [f"-driver=dcmi:{build(tmp_path / 'lib')}", f"-configDir={tmp_path}", f"-hccnTool={tmp_path}/none"]
    port, health = free_port(20_000, 30_000), free_port(31_000, 39_000)
    flags = {
        "telegraf": ["platform=Telegraf", "poll_interval=100ms"],
        "prometheus": [
            "-ip=127.0.0.1", f"-port={port}", "-limitIPReq=500/1", "--enable-healthz", f"--healthz-address={health}",
        ],
    }  # fmt: skip
    running = subprocess.Popen(
        [sys.executable, "-m", "belay.engine.cli", "exporter", *flags[form], *own], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "BELAY_SIM_DCMI_STATE": str(standin.file)},
    )  # fmt: skip
    assert running.stdout is not None
    try:
        if form == "telegraf":
            lines: list[str] = []
            for line in running.stdout:
                lines.append(line)
                if line.startswith("ascend,device=ascend910-1 ") and "npu_chip_info_temperature=41" in line:
                    break
            assert any(line.startswith("ascend,device=ascend910 ") for line in lines)
        else:
            until(lambda: b"npu_chip_info_temperature" in asyncio.run(ask(port)), "metrics", Path(os.devnull))
            held = socket.create_connection(("127.0.0.1", port))
            assert asyncio.run(ask(health, "GET / HTTP/1.1\r\n\r\n")).endswith(b"ok")
        begin = time.monotonic()
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=20)
        assert running.returncode == 0, errors
        assert time.monotonic() - begin < 5 and "Traceback" not in errors
        if form == "prometheus":
            held.close()
    finally:
        running.kill()
        running.wait()
