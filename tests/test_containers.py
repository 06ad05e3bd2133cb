"""The manager for hosts without Kubernetes: stories on a virtual clock; Docker's API with the driver's C library."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from belay.agents.common.clock import Clock
from belay.agents.containers import status
from belay.agents.containers.codes import shipped
from belay.agents.containers.docker import Docker
from belay.agents.containers.manager import Manager
from belay.agents.containers.runtime import Container, RuntimeFailure
from belay.agents.containers.states import Strategy
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.simulated import ServerModel, SimulatedDriver
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from tests.agent_world import NOW, VirtualClock
from tests.test_dcmi import ME

pytestmark = pytest.mark.real_time

CODES = shipped()
FREE = next(c for c in ("80C98001", "80A18008", "80E18402") if CODES.level(c) in ("FreeRestartNPU", "RestartNPU"))
BUSINESS = next(
    c for c in ("80E01801", "80E21008", "80C98002") if CODES.level(c) in ("RestartBusiness", "RestartRequest")
)
SEPARATE = "A2301001"


class Memory:
    """A runtime in a dict: container → (chips, running); names in ``stuck`` do not obey."""

    def __init__(self, **containers: Sequence[int]) -> None:
        self.chips = {name: tuple(chips) for name, chips in containers.items()}
        self.running = set(containers)
        self.stuck: set[str] = set()
        self.down = False
        self.story: list[str] = []

    async def containers(self) -> Sequence[Container]:
        if self.down:
            raise RuntimeFailure("down")
        return [Container(name, "default", chips, name in self.running) for name, chips in self.chips.items()]

    async def stop(self, namespace: str, container: str) -> None:
        if container in self.stuck:
            raise RuntimeFailure("stuck")
        self.story.append(f"stop {container}")
        self.running.discard(container)

    async def start(self, namespace: str, container: str) -> None:
        if container in self.stuck:
            raise RuntimeFailure("stuck")
        self.story.append(f"start {container}")
        self.running.add(container)

    async def close(self) -> None:
        pass


class Host:
    """A manager on a virtual clock."""

    def __init__(self, folder: Path, strategy: Strategy, runtime: Memory, **row: Any) -> None:
        self.clock, self.runtime, self.file = VirtualClock(), runtime, folder / "status.json"
        self.driver = SimulatedDriver("host", ServerModel(**row), now_ms=self.clock.now_ms, sleep=self.clock.sleep)
        self.manager = Manager(self.driver, runtime, CODES, strategy, self.clock, file=self.file)

    def lives(self, story: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.manager.prepare()
            task = asyncio.create_task(self.manager.run())
            try:
                await story(self)
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(asyncio.wait_for(main(), 60))

    @property
    def states(self) -> dict[str, str]:
        return {row["CtrId"]: row["Status"] for row in status.read(self.file)}


def test_a_fault_stops_the_container_resets_the_ring_and_starts_it_again(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        await host.clock.advance(3)
        assert host.states == {"a": "running", "b": "running"}
        host.driver.inject(3, FREE)
        await host.clock.advance(0.5)
        # b has no chip of the faulty one, but is on its ring: nothing may be reset
        assert host.states == {"a": "paused", "b": "running"}
        await host.clock.advance(120)
        assert host.driver.resets == [] and host.states["a"] == "paused"
        host.runtime.running.discard("b")
        await host.clock.advance(4)
        assert host.driver.resets == [tuple(range(8))]
        await host.clock.advance(180)
        assert host.states == {"a": "running"} and host.driver.resets == [tuple(range(8))]
        assert host.runtime.story == ["stop a", "start a"]

    Host(tmp_path, "singleRecover", Memory(a=[3], b=[5])).lives(story)


def test_ring_recovery_takes_the_neighbours_along(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        await host.clock.advance(3)
        host.driver.inject(3, FREE)
        await host.clock.advance(0.5)
        assert host.states == {"a": "paused", "b": "paused"}
        await host.clock.advance(200)
        assert host.states == {"a": "running", "b": "running"}
        assert host.driver.resets == [tuple(range(8))]
        assert host.runtime.story == ["stop a", "stop b", "start a", "start b"]

    Host(tmp_path, "ringRecover", Memory(a=[3], b=[5])).lives(story)


def test_never_stops_nothing_and_resets_only_free_chips(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        host.driver.inject(0, FREE)
        await host.clock.advance(300)
        assert host.driver.resets == [] and host.runtime.story == []
        host.runtime.chips.clear()
        await host.clock.advance(4)
        assert host.driver.resets == [tuple(range(8))]

    Host(tmp_path, "never", Memory(a=[7])).lives(story)


def test_faults_of_requests_wait_a_minute_and_may_go_by_themselves(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        await host.clock.advance(3)
        host.driver.inject(1, BUSINESS)
        await host.clock.advance(30)
        assert host.states == {"a": "paused"} and host.driver.resets == []
        host.driver.clear(1, BUSINESS)
        await host.clock.advance(5)
        assert host.states == {"a": "running"} and host.driver.resets == []
        host.driver.inject(1, BUSINESS)
        await host.clock.advance(60)
        assert host.driver.resets == []
        await host.clock.advance(4)
        assert host.driver.resets == [tuple(range(8))]

    Host(tmp_path, "singleRecover", Memory(a=[1])).lives(story)


@pytest.mark.parametrize("code", [SEPARATE, "4C1F8608", "FFFFFFFF"])
def test_other_levels_do_nothing(tmp_path: Path, code: str) -> None:
    async def story(host: Host) -> None:
        host.driver.inject(1, code)
        await host.clock.advance(400)
        assert host.states == {"a": "running"} and host.driver.resets == [] and host.runtime.story == []

    Host(tmp_path, "ringRecover", Memory(a=[1])).lives(story)


def test_processes_on_the_ring_hold_a_reset_back(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        host.driver.occupy(6, 1)
        host.driver.inject(1, FREE)
        await host.clock.advance(60)
        assert host.driver.resets == []
        host.driver.occupy(6, 0)
        await host.clock.advance(3)
        assert host.driver.resets == [tuple(range(8))]

    Host(tmp_path, "singleRecover", Memory()).lives(story)


def test_three_failures_in_a_row_and_a_chip_is_left_alone_until_it_is_well(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        host.driver.fail_resets(1000)
        host.driver.inject(1, FREE)
        await host.clock.advance(300)
        # three attempts of four calls each
        assert len(host.driver.resets) == 12
        assert host.states == {"a": "paused"}
        await host.clock.advance(400)
        assert len(host.driver.resets) == 12
        (row,) = status.read(host.file)
        assert "hot reset may fail" in status.description(row["Status"], row["StatusStartTime"], host.clock.now())
        host.driver.fail_resets(0)
        host.driver.clear(1, FREE)
        await host.clock.advance(5)
        assert host.states == {"a": "running"}
        host.driver.inject(1, FREE)
        await host.clock.advance(5)
        assert len(host.driver.resets) == 13

    Host(tmp_path, "singleRecover", Memory(a=[1])).lives(story)


def test_after_a_reset_the_next_waits_half_a_minute(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        host.driver.inject(1, FREE)
        at: list[float] = []
        for _ in range(400):
            await host.clock.advance(1)
            if len(host.driver.resets) > len(at):
                at.append(host.clock.monotonic())
            if not host.driver.faults_present():
                host.driver.inject(1, FREE)
            if len(at) == 3:
                break
        assert len(at) == 3
        assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(at))

    host = Host(tmp_path, "never", Memory())
    host.driver.faults_present = lambda: bool(host.driver._codes[1])  # type: ignore[attr-defined]
    host.lives(story)


def test_stops_and_starts_that_fail_are_tried_again(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        await host.clock.advance(3)
        host.runtime.stuck.add("a")
        host.driver.inject(1, BUSINESS)
        await host.clock.advance(40)
        assert host.states == {"a": "pausing"}
        (row,) = status.read(host.file)
        assert "pause may fail" in status.description(row["Status"], row["StatusStartTime"], host.clock.now())
        host.runtime.stuck.clear()
        await host.clock.advance(3)
        assert host.states == {"a": "paused"}
        host.runtime.stuck.add("a")
        host.driver.clear(1, BUSINESS)
        await host.clock.advance(5)
        assert host.states == {"a": "resuming"}
        host.runtime.stuck.clear()
        await host.clock.advance(3)
        assert host.states == {"a": "running"}

    Host(tmp_path, "singleRecover", Memory(a=[1])).lives(story)


def test_a_lost_event_is_found_by_reading_and_a_lost_recovery_too(tmp_path: Path) -> None:
    async def story(host: Host) -> None:
        await host.clock.advance(3)
        host.driver.inject(1, BUSINESS)
        host.driver._events.clear()
        await host.clock.advance(60)
        assert host.states == {"a": "paused"}
        host.driver.clear(1, BUSINESS)
        host.driver._events.clear()
        await host.clock.advance(60)
        assert host.states == {"a": "running"}

    Host(tmp_path, "singleRecover", Memory(a=[1])).lives(story)


def test_a_manager_that_is_started_again_starts_what_it_had_stopped(tmp_path: Path) -> None:
    runtime = Memory(a=[1], by_hand=[2])
    runtime.running.discard("by_hand")

    async def before(host: Host) -> None:
        host.driver.inject(1, BUSINESS)
        await host.clock.advance(5)
        assert host.states == {"a": "paused"}

    async def after(host: Host) -> None:
        await host.clock.advance(5)
        assert host.states == {"a": "running"}
        assert runtime.story == ["stop a", "start a"]

    Host(tmp_path, "singleRecover", runtime).lives(before)
    Host(tmp_path, "singleRecover", runtime).lives(after)


def test_a_runtime_that_is_away_keeps_chips_from_being_reset(tmp_path: Path) -> None:
    runtime = Memory(a=[1])
    runtime.down = True

    async def story(host: Host) -> None:
        host.driver.inject(1, FREE)
        await host.clock.advance(100)
        assert host.driver.resets == []
        runtime.down = False
        await host.clock.advance(100)
        assert host.states == {"a": "running"} and len(host.driver.resets) == 1

    Host(tmp_path, "singleRecover", runtime).lives(story)


def test_a_driver_that_answers_late_is_waited_for_a_minute(tmp_path: Path) -> None:
    host = Host(tmp_path, "never", Memory())

    async def never() -> Any:
        raise DriverError("not ready")

    host.driver.chips = never  # type: ignore[method-assign]

    async def main() -> None:
        task = asyncio.create_task(host.manager.prepare())
        await host.clock.advance(59)
        assert not task.done()
        await host.clock.advance(3)
        with pytest.raises(DriverError, match="not ready"):
            await task

    asyncio.run(main())
    assert host.clock.now() > NOW + 59


# -- Docker


class Engine:
    """Docker's Engine API as far as it is used, over a unix socket; states and texts as Docker writes them."""

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fail = 0

    def add(self, name: str, env: Sequence[str] = (), devices: Sequence[str] = (), state: str = "running") -> None:
        self.containers[name] = {
            "Id": name, "State": state,
            "Config": {"Env": [*env, "PATH=/bin"]},
            "HostConfig": {
                "Devices": [{"PathOnHost": d, "PathInContainer": d, "CgroupPermissions": "rwm"} for d in devices],
            },
        }  # fmt: skip

    async def serve(self, socket: Path) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/containers/json", self._list)
        app.router.add_get("/containers/{id}/json", self._inspect)
        app.router.add_post("/containers/{id}/stop", self._stop)
        app.router.add_post("/containers/{id}/start", self._start)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        return runner

    async def _list(self, request: web.Request) -> web.Response:
        everything = request.query.get("all") in ("1", "true")
        rows = [
            {"Id": c["Id"], "Names": [f"/{c['Id']}"], "State": c["State"],
             "Status": "Up 2 minutes" if c["State"] == "running" else "Exited (137) 3 seconds ago"}
            for c in self.containers.values() if everything or c["State"] == "running"
        ]  # fmt: skip
        return web.json_response(rows)

    async def _inspect(self, request: web.Request) -> web.Response:
        found = self.containers.get(request.match_info["id"])
        if found is None:
            return web.json_response({"message": "No such container"}, status=404)
        self.calls.append(f"inspect {found['Id']}")
        return web.json_response(found)

    async def _stop(self, request: web.Request) -> web.Response:
        return self._set(request, "stop", "exited")

    async def _start(self, request: web.Request) -> web.Response:
        return self._set(request, "start", "running")

    def _set(self, request: web.Request, word: str, state: str) -> web.Response:
        found = self.containers.get(request.match_info["id"])
        if found is None:
            return web.json_response({"message": "No such container"}, status=404)
        if self.fail:
            self.fail -= 1
            return web.json_response({"message": "cannot " + word}, status=500)
        if found["State"] == state:
            return web.Response(status=304)
        self.calls.append(f"{word} {found['Id']}")
        found["State"] = state
        return web.Response(status=204)


def with_docker(tmp_path: Path, story: Callable[[Engine, Docker, Path], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        engine, socket = Engine(), tmp_path / "docker.sock"
        runner, docker = await engine.serve(socket), Docker(socket)
        try:
            await story(engine, docker, socket)
        finally:
            await docker.close()
            await runner.cleanup()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_docker_lists_containers_and_chips(tmp_path: Path) -> None:
    async def story(engine: Engine, docker: Docker, socket: Path) -> None:
        engine.add("env", ["ASCEND_VISIBLE_DEVICES=0-1"])
        engine.add("mapped", devices=["/dev/davinci4", "/dev/davinci_manager"])
        engine.add("both", ["ASCEND_VISIBLE_DEVICES=Ascend910-6"], devices=["/dev/davinci7"])
        engine.add("ended", ["ASCEND_VISIBLE_DEVICES=2"], state="exited")
        engine.add("plain")
        engine.add("odd", ["ASCEND_VISIBLE_DEVICES=void"])
        found = {one.id: (one.chips, one.running) for one in await docker.containers()}
        assert found == {
            "env": ((0, 1), True), "mapped": ((4,), True), "both": ((6,), True), "ended": ((2,), False),
        }  # fmt: skip
        asked = len(engine.calls)
        await docker.containers()
        assert len(engine.calls) == asked
        await docker.stop("default", "env")
        await docker.stop("default", "env")
        await docker.stop("default", "gone")
        assert engine.containers["env"]["State"] == "exited"
        with pytest.raises(RuntimeFailure, match="404 to POST /containers/gone/start: No such container"):
            await docker.start("default", "gone")
        engine.fail = 1
        with pytest.raises(RuntimeFailure, match="500 to POST /containers/env/start: cannot start"):
            await docker.start("default", "env")
        await docker.start("default", "env")
        assert engine.containers["env"]["State"] == "running"

    with_docker(tmp_path, story)
    with pytest.raises(RuntimeFailure, match="cannot be reached"):
        asyncio.run(Docker(tmp_path / "none.sock").containers())


class Faster(Clock):
    """The system's clocks, sixty times as fast where no other process waits."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@contextlib.asynccontextmanager
async def managed(manager: Manager) -> AsyncIterator[None]:
    """Runs until the end of the block."""
    await manager.prepare()
    task = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_docker_and_the_drivers_interface_together(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = build(tmp_path_factory.mktemp("dcmi"))

    async def story(engine: Engine, docker: Docker, socket: Path) -> None:
        standin = Standin.create(tmp_path / "state", reset_ms=200)
        driver = DcmiDriver(library, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(standin.file)})
        engine.add("train", ["ASCEND_VISIBLE_DEVICES=0-3"])
        engine.add("infer", ["ASCEND_VISIBLE_DEVICES=7"])
        file = tmp_path / "status.json"
        async with managed(Manager(driver, docker, CODES, "ringRecover", Faster(), file=file)):
            await eventually(lambda: len(status.read(file)) == 2)
            standin.processes(2, [4711])
            standin.raise_code(2, FREE)
            await eventually(lambda: {c["State"] for c in engine.containers.values()} == {"exited"})
            # the container's process is not gone from the driver yet
            await asyncio.sleep(0.3)
            assert standin.chip(2).resets == 0
            standin.processes(2, [])
            await eventually(lambda: [standin.chip(phy).resets for phy in range(8)] == [1] * 8)
            await eventually(lambda: {c["State"] for c in engine.containers.values()} == {"running"})
            await eventually(lambda: {row["Status"] for row in json.loads(file.read_text())} == {"running"})
            assert [standin.chip(phy).resets for phy in range(8)] == [1] * 8
        await driver.close()

    with_docker(tmp_path, story)


async def eventually(true: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            try:
                if true():
                    return
            except (status.StatusError, ValueError):
                pass
            await asyncio.sleep(0.02)
