"""Which container holds which chip: the environment's grammar, CRI and OCI answers over a socket, bad runtimes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.agents.exporter import runtimes, visible
from belay.agents.exporter.api import runtimes_pb2 as pb
from belay.agents.exporter.entries import Containers
from belay.agents.exporter.runtimes import LABELS, MODES, Runtimes, driver_majors
from tests.exporter_world import Now

ME = frozenset({0, os.getuid()})


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ("0", (0,)), ("0,1,2", (0, 1, 2)), ("2,1,1", (2, 1, 1)), ("0-3", (0, 1, 2, 3)), ("0-1,5", (0, 1, 5)),
        ("Ascend910-0,Ascend910-7", (0, 7)), ("npu-3,npu-1", (3, 1)), ("Ascend310P-2", (2,)), ("100", (100,)),
        ("", ()), ("void", ()), ("0,x,2", (0, 2)), ("4-3", ()), ("0-3-4,7", (7,)), ("1,,2", (1, 2)), (" 1,2", (2,)),
        ("0-32767", tuple(range(32_768))), ("0-32768", ()), ("Ascend910B-0-1,Ascend910-4", (4,)), ("0,npu-1", (1,)),
        ("Ascend910", ()), ("0l-3,2", (2,)), ("1" * 1025, ()), ("9" * 30, ()),
    ],
)  # fmt: skip
def test_the_exporters_grammar_passes_over_what_it_does_not_understand(value: str, ids: tuple[int, ...]) -> None:
    assert visible.parse(value) == ids


def spec(env: list[str] | None = None, rules: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"process": {"env": env or []}, "linux": {"resources": {"devices": rules or []}}}


def test_the_last_entry_counts_and_then_device_rules() -> None:
    majors = frozenset({236, 237})
    both = ["A=1", "ASCEND_VISIBLE_DEVICES=0", "ASCEND_VISIBLE_DEVICES=1-2", "B=2"]
    assert visible.of_spec(spec(both), majors) == (1, 2)
    assert visible.of_spec(spec(["ASCEND_VISIBLE_DEVICES=1=2"]), majors) == ()
    rules = [
        {"type": "c", "major": 236, "minor": 3, "access": "rwm"}, {"type": "c", "major": 237, "minor": 100},
        {"type": "c", "major": 1, "minor": 5}, {"type": "b", "major": 236, "minor": 6}, {"type": "c", "major": 236},
        {"type": "c", "major": 236, "minor": 99_999}, "odd",
    ]  # fmt: skip
    assert visible.of_spec(spec(rules=rules), majors) == (3, 100)
    assert visible.of_spec(spec(["ASCEND_VISIBLE_DEVICES="], rules), majors) == ()
    for odd in ({}, {"process": 1, "linux": []}, {"process": {"env": "x"}}, spec(["A=1"] * 10_001)):
        assert visible.of_spec(odd, majors) == ()


def test_isulad_names_devices_by_path() -> None:
    host = {"Devices": [{"PathInContainer": "/dev/davinci3"}, {"PathInContainer": "/dev/davinci_manager"}, 7]}
    assert visible.of_inspection({"Config": {"Env": []}, "HostConfig": host}) == (3,)
    assert visible.of_inspection({"Config": {"Env": []}, "HostConfig": {**host, "Privileged": True}}) == ()
    named = {"Config": {"Env": ["ASCEND_VISIBLE_DEVICES=npu-5"]}, "HostConfig": {"Privileged": True}}
    assert visible.of_inspection(named) == (5,)
    assert visible.of_inspection({}) == ()


def test_majors_of_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "devices"
    file.write_text(
        "Character devices:\n  1 mem\n236 devdrv-cdev\n237 vdevdrv-cdev\n238 xdevdrv-cdev\n1000 devdrv-cdev\n"
    )
    assert driver_majors(file) == {236, 237}
    assert driver_majors(tmp_path / "none") == frozenset()


class Runtime:
    """A container runtime on a socket: CRI in one version, containerd's or iSulad's services."""

    def __init__(self, path: Path, version: str = "v1") -> None:
        self.path, self.version = path, version
        self.containers: dict[str, tuple[dict[str, str], dict[str, Any], list[int]]] = {}
        self.asked: list[str] = []
        self.namespaces: set[str] = set()
        self.delay = 0.0
        self._server: grpc.aio.Server | None = None

    def add(self, id_: str, name: str, given: dict[str, Any], pids: list[int] | None = None) -> None:
        self.containers[id_] = (dict(zip(LABELS, name.split("/"), strict=False)), given, pids or [])

    async def start(self) -> None:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handler(self),))
        self._server.add_insecure_port(f"unix:{self.path}")
        await self._server.start()
        self.path.chmod(0o660)

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(0)

    async def list(self, request: Any, context: Any) -> Any:
        await asyncio.sleep(self.delay)
        assert request.filter.state.state == pb.CONTAINER_RUNNING
        return pb.ListContainersResponse(containers=[
            pb.CriContainer(id=id_, state=pb.CONTAINER_RUNNING, labels=labels)
            for id_, (labels, _, _) in self.containers.items()
        ])  # fmt: skip

    async def get(self, request: Any, context: Any) -> Any:
        self.namespaces |= {value for key, value in context.invocation_metadata() if key == "containerd-namespace"}
        blob = pb.Blob(type_url="types.containerd.io/opencontainers/runtime-spec/1/Spec",
                       value=json.dumps(self.containers[request.id][1]).encode())  # fmt: skip
        return pb.GetContainerResponse(container=pb.OciContainer(id=request.id, spec=blob))

    async def pids(self, request: Any, context: Any) -> Any:
        found = self.containers[request.container_id][2]
        return pb.ListPidsResponse(processes=[pb.ProcessInfo(pid=pid) for pid in found])

    async def inspect(self, request: Any, context: Any) -> Any:
        return pb.InspectResponse(container_json=json.dumps(self.containers[request.id][1]))


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def service(self, call: Any) -> Any:
        runtime = self._runtime
        runtime.asked.append(call.method)
        methods: dict[str, tuple[Callable[..., Any], Any]] = {
            f"/runtime.{runtime.version}.RuntimeService/ListContainers": (runtime.list, pb.ListContainersRequest),
            "/containerd.services.containers.v1.Containers/Get": (runtime.get, pb.GetContainerRequest),
            "/containerd.services.tasks.v1.Tasks/ListPids": (runtime.pids, pb.ListPidsRequest),
            "/containers.ContainerService/Inspect": (runtime.inspect, pb.InspectRequest),
        }
        if call.method not in methods:
            return None
        work, request = methods[call.method]
        return grpc.unary_unary_rpc_method_handler(
            work, request_deserializer=request.FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )  # fmt: skip


def play(tmp_path: Path, story: Callable[[Runtime, Runtimes, Now], Any], *, mode: str = "containerd",
         version: str = "v1") -> None:  # fmt: skip
    async def go() -> None:
        runtime, now = Runtime(tmp_path / "c.sock", version), Now()
        await runtime.start()
        asking = Runtimes(mode, now, cri=f"unix://{runtime.path}", oci=str(runtime.path), owners=ME,
                          majors=frozenset({236}))  # fmt: skip
        try:
            await story(runtime, asking, now)
        finally:
            await asking.close()
            await runtime.stop()

    asyncio.run(asyncio.wait_for(go(), 60))


def names(found: Containers) -> dict[int, list[str]]:
    return {device: [container.name for container in held] for device, held in sorted(found.items())}


@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
def test_containers_are_found_by_their_devices(tmp_path: Path, version: str) -> None:
    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        runtime.add("a", "ns/pod-1/main", spec(["ASCEND_VISIBLE_DEVICES=0,1"]), [41, 42])
        runtime.add("b", "ns/pod-2/main", spec(["ASCEND_VISIBLE_DEVICES=1"]))
        runtime.add("c", "ns/pod-3/main", spec(rules=[{"type": "c", "major": 236, "minor": 7}]))
        runtime.add("d", "ns/pod-4/main", spec(["PATH=/bin"]))
        runtime.add("e", "ns//main", spec(["ASCEND_VISIBLE_DEVICES=3"]))
        runtime.add("f" * 2049, "ns/pod-6/main", spec(["ASCEND_VISIBLE_DEVICES=4"]))
        found = await asking.read()
        assert names(found) == {0: ["ns_pod-1_main"], 1: ["ns_pod-1_main", "ns_pod-2_main"], 7: ["ns_pod-3_main"]}
        assert found[0][0].pids == {41, 42} and found[0][0].id == "a"
        assert runtime.namespaces == {"k8s.io"}
        # devices are asked about once, processes each time, and the version is remembered
        runtime.asked.clear()
        runtime.containers["a"][2].append(43)
        assert (await asking.read())[0][0].pids == {41, 42, 43}
        assert not [call for call in runtime.asked if call.endswith("/Get")]
        assert [call for call in runtime.asked if "ListContainers" in call] == [
            f"/runtime.{version}.RuntimeService/ListContainers"
        ]
        del runtime.containers["a"]
        assert names(await asking.read()) == {1: ["ns_pod-2_main"], 7: ["ns_pod-3_main"]}

    play(tmp_path, story, version=version)


def test_docker_asks_containerd_in_its_own_namespace(tmp_path: Path) -> None:
    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        runtime.add("a", "ns/pod/main", spec(["ASCEND_VISIBLE_DEVICES=0"]))
        await asking.read()
        assert runtime.namespaces == {"moby"}

    play(tmp_path, story, mode="docker")


def test_isulad_is_inspected(tmp_path: Path) -> None:
    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        given = {"Config": {"Env": ["ASCEND_VISIBLE_DEVICES=2"]}, "HostConfig": {}}
        runtime.add("a", "ns/pod/main", given)
        assert names(await asking.read()) == {2: ["ns_pod_main"]}

    play(tmp_path, story, mode="isula")


def test_too_many_containers_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "ROUND_SECONDS", 50.0)  # a busy machine needs longer for a thousand answers

    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        for number in range(1025):
            runtime.add(str(number), f"ns/pod-{number}/main", spec())
        runtime.add("a", "ns/pod/main", spec(["ASCEND_VISIBLE_DEVICES=0"]))
        assert await asking.read() == {}
        for number in range(2):
            del runtime.containers[str(number)]
        assert names(await asking.read()) == {0: ["ns_pod_main"]}

    play(tmp_path, story)


def test_a_runtime_that_goes_away_is_remembered_for_a_while_and_comes_back(tmp_path: Path) -> None:
    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        runtime.add("a", "ns/pod/main", spec(["ASCEND_VISIBLE_DEVICES=0"]))
        assert names(await asking.read()) == {0: ["ns_pod_main"]}
        await runtime.stop()
        now.seconds += 99
        assert names(await asking.read()) == {0: ["ns_pod_main"]}
        now.seconds += 2
        assert await asking.read() == {}
        runtime.path.unlink(missing_ok=True)
        assert await asking.read() == {}
        await runtime.start()
        for _ in range(100):
            if await asking.read():
                break
            await asyncio.sleep(0.1)
        assert names(await asking.read()) == {0: ["ns_pod_main"]}

    play(tmp_path, story)


def test_a_round_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.agents.exporter.runtimes.ROUND_SECONDS", 0.2)

    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        runtime.delay = 5
        assert await asking.read() == {}

    play(tmp_path, story)


def test_sockets_that_others_may_write_are_not_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(runtime: Runtime, asking: Runtimes, now: Now) -> None:
        runtime.add("a", "ns/pod/main", spec(["ASCEND_VISIBLE_DEVICES=0"]))
        runtime.path.chmod(0o666)
        assert await asking.read() == {} and runtime.asked == []
        assert "chmod o-w" in str([record.__dict__ for record in caplog.records])

    play(tmp_path, story)


def test_addresses_of_each_mode() -> None:
    assert MODES["docker"].cri == ("/run/dockershim.sock", "/run/cri-dockerd.sock")
    assert MODES["docker"].oci[1] == "/run/containerd/containerd.sock" and MODES["docker"].namespace == "moby"
    assert MODES["containerd"].cri == MODES["containerd"].oci == ("/run/containerd/containerd.sock",)
    assert MODES["isula"] == (("/run/isulad.sock",), ("/run/isulad.sock",), "k8s.io")
