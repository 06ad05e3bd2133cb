"""A real API server is killed under an agent and brought back: the agent goes on alone, and does nothing twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from belay.agents.common.client import ApiError, KubeClient
from belay.agents.common.credentials import load
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings
from belay.engine.model.cluster import Orders, ResetOrder
from belay.engine.model.faults import CodeRules
from belay.engine.wire import deviceinfo
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX, NODES, REPORT_PREFIX, SYSTEM
from belay.engine.wire.orders import build_orders, parse_report
from belay.engine.wire.policy import NodePolicy, build_policy
from tests.agent_world import FAULT, NODE, RULES
from tests.ports import free_port

pytestmark = pytest.mark.real_time

FAST = Settings(scale=0.02, spacing=0.05, poll=0.2, tick=0.05, recover_delay=0.05)
MILD = "80E18000"
"""PreSeparateNPU in the agent's own rules; SeparateNPU by the policy that the cluster hands out."""
PATIENCE = 150.0


class Server:
    """The sandbox's API server as a process of its own, on one port and one folder for all its lives."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder, self.kubeconfig = folder, folder / "kubeconfig"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.kubeconfig.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "belay.engine.sandbox.api", "--port", str(self.port),
             "--data", str(self.folder / "api"),
             "--kubeconfig", str(self.kubeconfig), "--no-auth"],
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not self.kubeconfig.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, "the API server did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


class Node:
    """One agent on hardware that outlives it."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.driver = SimulatedDriver(
            NODE, seed=1, now_ms=lambda: int(time.time() * 1000), sleep=asyncio.sleep, scale=0.001
        )
        self._folder, self._kubeconfig = folder, kubeconfig

    async def start(self) -> None:
        self.client = KubeClient(load(str(self._kubeconfig)))
        rules = NodePolicy("default", RULES)
        self.agent = NodeAgent(NODE, self.driver, self.client, self._folder / "agent", FAST, policy=rules)
        self.task = asyncio.create_task(self.agent.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()

    def reset_order(self, epoch: int, generation: int) -> dict[str, Any]:
        now = int(time.time() * 1000)
        order = ResetOrder(epoch, tuple(range(8)), "RestartNPU", 0)
        orders = Orders(NODE, "", generation, "r", "", now, now + 600_000, {}, dict.fromkeys(range(8), order), 0, {})
        return build_orders(orders, "Ascend910-")


async def until(what: str, check: Callable[[], Awaitable[Any]]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            value = await check()
        except ApiError:
            value = None
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        await asyncio.sleep(0.02)


def test_an_agent_outlives_its_api_server_and_catches_up_without_doing_anything_twice(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()

    async def story() -> None:
        person = KubeClient(load(str(server.kubeconfig)))
        for namespace in (SYSTEM, NODES, DEVICE_NAMESPACE):
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            try:
                await person._send("POST", "/api/v1/namespaces", body, "application/json")
            except ApiError as error:
                assert error.status == 409
        stricter = CodeRules(overrides={MILD: ("SeparateNPU", "strict")}, table=RULES.table)
        await person.put_config_map(build_policy(NodePolicy("default", stricter)))

        async def told(epoch: int) -> bool:
            body = await person.get_config_map(NODES, REPORT_PREFIX + NODE)
            return body is not None and parse_report(body).chips[0].reset_epoch_done == epoch

        async def out(chips: int) -> bool:
            body = await person.get_config_map(DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)
            return body is not None and deviceinfo.parse(body).unhealthy == chips

        async def withheld() -> bool:
            return "SeparateNPU" in (node.agent.withheld(2) or "").replace("PreSeparateNPU", "")

        node = Node(tmp_path, server.kubeconfig)
        await node.start()
        node.driver.inject(3, FAULT)
        await until("the fault is reported", lambda: out(1 << 3))
        await person.put_config_map(node.reset_order(epoch=1, generation=1))
        await until("the reset is reported", lambda: told(1))
        await until("the clean chip is reported", lambda: out(0))
        assert len(node.driver.resets) == 1

        server.kill()
        node.driver.inject(2, MILD)
        await until("it isolates alone, by the policy it was given", withheld)
        await node.stop()  # the agent itself restarts meanwhile, without an API server to ask
        await node.start()
        await until("it isolates alone after a restart", withheld)
        assert len(node.driver.resets) == 1

        server.start()
        await until("it catches up", lambda: out(1 << 2))
        node.driver.inject(4, FAULT)
        await until("it goes on", lambda: out(1 << 2 | 1 << 4))
        assert len(node.driver.resets) == 1, "the order that still stands was carried out before"
        await person.put_config_map(node.reset_order(epoch=2, generation=2))
        await until("a new order is carried out", lambda: told(2))
        assert len(node.driver.resets) == 2
        await node.stop()
        await person.close()

    try:
        asyncio.run(story())
    finally:
        server.kill()
