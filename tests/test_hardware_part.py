"""The hardware part of a real node's agent: BMC to ConfigMap, serial number to annotation, flags."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.agents.common.client import ApiError
from belay.agents.common.clock import Clock
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.node.hardware import settings as flags
from belay.agents.node.hardware.bmc import Bmc
from belay.agents.node.hardware.part import Hardware, NodeSurroundings
from belay.agents.node.hardware.settings import HardwareSettings
from belay.agents.node.hardware.storage import Clients
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy
from belay.engine.wire import nodeinfo
from tests import bmc as simulator
from tests.api_client import Sandbox
from tests.test_ipmi import module, reach
from tests.test_storage_clients import stanza
from tests.test_surveyor import Api

__all__ = ["module"]


@pytest.fixture
def bmc(module: Path, tmp_path: Path) -> Iterator[simulator.Bmc]:
    found = simulator.Bmc(module, tmp_path)
    yield found
    found.close()


class Cluster(Api):
    """ConfigMaps and one node."""

    def __init__(self) -> None:
        super().__init__()
        self.node: dict[str, Any] = {"metadata": {"annotations": {}}}

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        if self.down:
            raise ApiError(503, "down")
        return self.node

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        self.node["metadata"]["annotations"].update(annotations)


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


def test_from_the_controller_and_the_state_files_to_the_api_server(bmc: simulator.Bmc, tmp_path: Path) -> None:
    policy = shipped_policy()
    chips: Any = SimpleNamespace(chips=range(8), resetting=set(), judge=SimpleNamespace(policy=policy))
    dpc = tmp_path / "dpc"
    dpc.write_text(stanza(0, process=-1))
    bmc.says([(0x2C000031, 2, 0, 1), (0x0100000D, 1, 4, 3)], serial="2102312YXL10N5000001")

    async def main() -> None:
        cluster, settings = Cluster(), HardwareSettings(bmc=reach(bmc))
        assert settings.bmc is not None
        around = NodeSurroundings(Bmc(settings.bmc), Clients(dpc, tmp_path / "none", owner=os.getuid()))
        part = Hardware(
            "n0", cluster, Settings(scale=0.01), settings, policy, Clock(), lambda: chips, surroundings=around
        )
        task = asyncio.create_task(part.run())
        name = "mindx-dl/mindx-dl-nodeinfo-n0"
        try:
            await eventually(lambda: {name, "cluster-system/dpcstorage-fault-n0"} <= set(cluster.maps))
            report = nodeinfo.parse(cluster.maps[name])
            assert report.status == "UnHealthy"
            assert [(d.device_type, d.device_id, d.codes, d.level) for d in report.devices] == [
                ("CPU", 1, ("2C000031",), "SeparateFault"), ("Fan", 3, ("0100000D",), "NotHandleFault"),
            ]  # fmt: skip
            await eventually(lambda: bool(cluster.node["metadata"]["annotations"]))
            assert cluster.node["metadata"]["annotations"] == {"product-serial-number": "2102312YXL10N5000001"}
            # a controller that cannot be read is no recovery
            bmc.says([], truncate=5)
            await asyncio.sleep(1.2)
            assert name in cluster.maps
            bmc.says([])
            await eventually(lambda: name not in cluster.maps)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_node_without_controller_and_storage_clients_reports_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        around = NodeSurroundings(None, Clients(tmp_path / "a", tmp_path / "b"))
        assert [await around.alarms(), await around.switch(), await around.storage(), await around.pings(),
                await around.use()] == [None] * 5  # fmt: skip

    asyncio.run(main())


def parsed(*arguments: str) -> HardwareSettings | None:
    parser = argparse.ArgumentParser()
    flags.add(parser)
    return flags.chosen(parser.parse_args(arguments))


def test_flags_of_noded_by_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAS_NET_ROOT_PATH", raising=False)
    assert parsed() is None
    plain = parsed("--hardware")
    assert plain is not None and plain.bmc is not None
    assert (plain.monitor_period, plain.report_interval, plain.result_days, plain.bmc.interface) == (60, 5, 7, "open")
    given = parsed(
        "--hardware", "-monitorPeriod=600", "-reportInterval=300", "-resultMaxAge=700", "--ipmi=lanplus",
        "--ipmi-host=bmc-7", "--ipmi-user=admin", "--ipmi-password-file=/etc/belay/bmc", "--ipmi-tool=freeipmi",
        "--public-faults",
    )  # fmt: skip
    assert given is not None and given.bmc is not None
    assert (given.monitor_period, given.report_interval, given.result_days) == (600, 300, 700)
    assert (given.bmc.tool, given.bmc.host, given.public_faults) == (
        "freeipmi", "bmc-7", "clusterd-grpc-svc.mindx-dl.svc.cluster.local:8899",
    )  # fmt: skip
    off = parsed("--hardware", "--ipmi=off")
    assert off is not None and off.bmc is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-monitorPeriod=59"], "-monitorPeriod 59 is out of range; use 60 to 600"),
        (["-monitorPeriod=601"], "60 to 600"),
        (["-reportInterval=0"], "-reportInterval 0 is out of range; use 1 to 300"),
        (["-resultMaxAge=6"], "-resultMaxAge 6 is out of range; use 7 to 700"),
        (["--ipmi=lanplus"], "needs the controller's host"),
        (["--ipmi-timeout=0"], "0.1 to 60 s"),
    ],
)
def test_flags_out_of_range_end_the_process(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parsed("--hardware", *arguments)


def test_a_report_that_could_not_be_written_is_made_again_soon() -> None:
    from tests.test_surveyor import Survey

    async def story(s: Survey) -> None:
        s.surveyor._retry = 5.0
        s.api.down = True
        s.around.apply({"hardware": [{"device_type": "CPU", "device_id": 1, "code": "2C000031"}]})
        await s.clock.advance(62)
        s.api.down = False
        await s.clock.advance(6)
        assert "mindx-dl/mindx-dl-nodeinfo-n0" in s.api.maps

    Survey(super_pod=False).lives(story)


@pytest.mark.e2e
def test_the_agents_process_from_flags_to_the_api_server(bmc: simulator.Bmc, tmp_path: Path) -> None:
    """`belay agent --hardware` with the driver's C interface, ipmitool and a controller: only silicon is missing."""
    library, sandbox = build(tmp_path / "lib"), Sandbox()
    standin = Standin.create(tmp_path / "chips")
    kubeconfig, said = tmp_path / "kubeconfig", tmp_path / "log"
    sandbox.server.write_kubeconfig(kubeconfig)
    client = sandbox.client()
    for name in ("mindx-dl", "belay-nodes", "belay-system", "cluster-system"):
        client.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    client.send("POST", "/api/v1/nodes", {"metadata": {"name": "n0"}})
    bmc.says([(0x2C000031, 2, 0, 1)], serial="2102312YXL10N5000001")
    command = [
        sys.executable, "-m", "belay.engine.cli", "agent", "--node=n0", f"--driver=dcmi:{library}", "--rank-tables=",
        f"--journal={tmp_path / 'journal'}", f"--kubeconfig={kubeconfig}", "--scale=0.01", "--hardware",
        "--ipmi=lanplus", "--ipmi-host=127.0.0.1", f"--ipmi-port={bmc.port}", f"--ipmi-user={simulator.USER}",
        f"--ipmi-password-file={bmc.password_file}", "--ipmi-cipher=3",
    ]  # fmt: skip
    report = "/api/v1/namespaces/mindx-dl/configmaps/mindx-dl-nodeinfo-n0"
    with said.open("w") as log:
        process = subprocess.Popen(
            command, stderr=log, stdout=log, env={**os.environ, "BELAY_SIM_DCMI_STATE": str(standin.file)}
        )
    try:
        assert client.until(report, lambda status, _: status == 200), said.read_text()[-2000:]
        found = nodeinfo.parse(client.send("GET", report)[1])
        assert (found.status, found.devices[0].codes) == ("UnHealthy", ("2C000031",))
        assert client.until(
            "/api/v1/nodes/n0",
            lambda _, node: (node["metadata"].get("annotations") or {}).get("product-serial-number") is not None,
        )
        bmc.says([])
        assert client.until(report, lambda status, _: status == 404)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        sandbox.close()
