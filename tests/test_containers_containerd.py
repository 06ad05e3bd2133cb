"""Container recovery with a real containerd and runc, and the driver's C interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from belay.agents.containers import status
from belay.agents.containers.containerd import Containerd
from belay.agents.containers.manager import Manager
from belay.agents.containers.runtime import RuntimeFailure
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from tests.containerd_server import IMAGE, containerd_socket, ctr, own_root, tasks
from tests.test_containers import CODES, FREE, Faster, eventually
from tests.test_dcmi import ME

__all__ = ["containerd_socket"]
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("real-node")]


@pytest.fixture
def socket(containerd_socket: Path) -> Iterator[Path]:
    yield containerd_socket
    for namespace in ("default", "other", "moby"):
        for name in ctr(containerd_socket, "-n", namespace, "containers", "ls", "-q", check=False).stdout.split():
            ctr(containerd_socket, "-n", namespace, "tasks", "rm", "-f", name, check=False)
            ctr(containerd_socket, "-n", namespace, "containers", "rm", name, check=False)


def start(socket: Path, name: str, *options: str, namespace: str = "default") -> None:
    if namespace != "default" and IMAGE not in ctr(socket, "-n", namespace, "images", "ls", "-q").stdout:
        ctr(socket, "-n", namespace, "images", "import", str(socket.parent / "sleeper-local.tar"))
    ctr(socket, "-n", namespace, "run", own_root(socket), "--detach", "--null-io", *options, IMAGE, name)


@asynccontextmanager
async def client(socket: Path, major: int = 1) -> AsyncIterator[Containerd]:
    found = Containerd(socket, frozenset({major}))
    try:
        yield found
    finally:
        await found.close()


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 100))


def test_containers_of_every_namespace_are_found_by_environment_or_devices(socket: Path) -> None:
    start(socket, "env", "--env", "ASCEND_VISIBLE_DEVICES=0-1")
    # memory devices stand in for the driver's: major 1, minors 3 and 5
    start(socket, "device", "--device", "/dev/null", namespace="other")
    start(socket, "docker", "--env", "ASCEND_VISIBLE_DEVICES=4", namespace="moby")
    start(socket, "odd", "--env", "ASCEND_VISIBLE_DEVICES=void")
    ctr(socket, "containers", "create", "--env", "ASCEND_VISIBLE_DEVICES=7", IMAGE, "idle")

    async def main() -> None:
        async with client(socket) as containerd:
            found = {one.id: (one.namespace, one.chips, one.running) for one in await containerd.containers()}
            assert found["env"] == ("default", (0, 1), True)
            assert found["idle"] == ("default", (7,), False)
            assert found["device"][0] == "other" and 3 in found["device"][1] and found["device"][2]
            assert not {"docker", "odd"} & set(found)

    run(main())


def test_a_container_is_killed_and_a_new_task_started_from_its_object(socket: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ctr(
        socket,
        "run",
        own_root(socket),
        "--detach",
        "--log-uri",
        f"file://{log}",
        "--env",
        "ASCEND_VISIBLE_DEVICES=0",
        IMAGE,
        "a",
    )

    async def main() -> None:
        async with client(socket) as containerd:
            await containerd.stop("default", "a")
            assert tasks(socket) == {}
            assert [(one.id, one.running) for one in await containerd.containers()] == [("a", False)]
            # again, or of one that is not there: nothing to do
            await containerd.stop("default", "a")
            await containerd.stop("default", "none")
            await containerd.start("default", "a")
            assert tasks(socket) == {"a": "RUNNING"}
            await containerd.start("default", "a")
            await eventually(lambda: log.read_text() == "up\nup\n")
            with pytest.raises(RuntimeFailure, match="NOT_FOUND"):
                await containerd.start("default", "none")

    run(main())


def test_a_task_that_ended_without_a_stop_is_replaced(socket: Path) -> None:
    start(socket, "a", "--env", "ASCEND_VISIBLE_DEVICES=0")
    ctr(socket, "tasks", "kill", "-s", "KILL", "a")

    async def main() -> None:
        await eventually(lambda: tasks(socket) == {"a": "STOPPED"})
        async with client(socket) as containerd:
            assert [one.running for one in await containerd.containers()] == [False]
            await containerd.start("default", "a")
            assert tasks(socket) == {"a": "RUNNING"}

    run(main())


def test_a_socket_without_containerd_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with client(tmp_path / "none.sock") as containerd:
            with pytest.raises(RuntimeFailure, match="UNAVAILABLE"):
                await containerd.containers()

    run(main())


def test_fault_stop_reset_start_with_real_containers(
    socket: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = build(tmp_path_factory.mktemp("dcmi"))
    start(socket, "train", "--env", "ASCEND_VISIBLE_DEVICES=0-3")
    start(socket, "plain")

    async def main() -> None:
        standin, file = Standin.create(tmp_path / "state", reset_ms=1500), tmp_path / "status.json"
        driver = DcmiDriver(library, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(standin.file)})
        async with client(socket, 999) as containerd:
            manager = Manager(driver, containerd, CODES, "singleRecover", Faster(), file=file)
            await manager.prepare()
            task = asyncio.create_task(manager.run())
            try:
                await eventually(lambda: len(status.read(file)) == 1)
                standin.script("dcmi_set_device_reset", result=-8015, times=4)
                standin.raise_code(2, FREE)
                await eventually(lambda: set(tasks(socket)) == {"plain"})
                await eventually(lambda: [row["Status"] for row in json.loads(file.read_text())] == ["paused"])
                # the four calls of the first attempt fail; the next attempt brings the chip back
                await eventually(lambda: tasks(socket) == {"plain": "RUNNING", "train": "RUNNING"}, 40)
                await eventually(lambda: [row["Status"] for row in json.loads(file.read_text())] == ["running"])
                assert {standin.chip(phy).resets for phy in range(8)} == {1}
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await driver.close()

    run(main())
