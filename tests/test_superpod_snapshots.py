"""Marks for faulty jobs on super pods, through the driver's C interface; checkpoints of inference containers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from belay.agents.common.client import ApiError
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.standin.build import build
from belay.agents.drivers.standin.state import Standin
from belay.agents.node.hardware.snapshots import AT_ONCE, DIGEST, Snapshots, wanted
from belay.agents.node.hardware.superpod import SuperPod
from belay.agents.node.hardware.superpod import wanted as marks
from belay.engine.model.labels import SNAPSHOT_FINISHED
from tests.agent_world import VirtualClock
from tests.test_dcmi import ME


def job(nodes: Any, ids: Any, times: Any = 1) -> str:
    return json.dumps({"2": {"JobId": "j", "NodeNames": nodes, "SdIds": ids, "FaultTimes": times}})


def test_only_this_nodes_jobs_and_numbers_of_32_bits_are_marked() -> None:
    data = {
        "a": job(["n0", "n1"], ["5", "7", "-1", "4294967296", "x", 9, "4294967295"]),
        "b": job(["n1"], ["8"]), "c": "{", "d": job({"n0": {}}, {"11": {}}), "e": job(["n0"], None),
    }  # fmt: skip
    assert {name: ids for name, (_, ids) in marks(data, "n0").items()} == {
        "a": (5, 7, 4294967295), "d": (11,), "e": (),
    }  # fmt: skip


def test_marks_are_set_on_every_chip_and_taken_back(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    library = build(tmp_path_factory.mktemp("dcmi"))

    async def main() -> None:
        standin = Standin.create(tmp_path / "state", chips=2, super_pod=(2, 5))
        driver = DcmiDriver(library, sleep=asyncio.sleep, owners=ME, env={"BELAY_SIM_DCMI_STATE": str(standin.file)})
        calls: list[tuple[Any, ...]] = []

        async def ask(name: str, *arguments: Any, timeout: float) -> Any:
            calls.append((name, *arguments))
            return await driver.calls.ask(name, *arguments, timeout=timeout)

        async def status(number: int) -> list[int]:
            return [await driver.calls.ask("spod_status", chip, number, timeout=5) for chip in range(2)]

        def pod() -> SuperPod:
            return SuperPod("n0", range(2), Maps(), ask, Ticking(), tmp_path / "marks.json")

        try:
            first = pod()
            await first.follow({"a": job(["n0"], ["5", "7"]), "b": job(["n0"], ["7"])})
            assert [await status(n) for n in (5, 6, 7)] == [[1, 1], [0, 0], [1, 1]]
            calls.clear()
            await first.follow({"a": job(["n0"], ["5", "7"]), "b": job(["n0"], ["7"])})
            assert calls == []
            # another fault of the same job: looked at again, nothing to set
            await first.follow({"a": job(["n0"], ["5", "7"], 2), "b": job(["n0"], ["7"])})
            assert calls and not [c for c in calls if c[0] == "set_spod_status"]
            # the agent is restarted while job a goes: b still holds 7
            again = pod()
            await again.follow({"b": job(["n0"], ["7"])})
            assert [await status(n) for n in (5, 7)] == [[0, 0], [1, 1]]
            # a call that fails now and then
            standin.script("dcmi_set_spod_node_status", result=-8020, times=3)
            await again.follow({})
            standin.unscript()
            assert await status(7) == [0, 0]
        finally:
            await driver.close()

    asyncio.run(asyncio.wait_for(main(), 60))


class Ticking(VirtualClock):
    """A clock that advances without waiting."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class Maps:
    """An API server that is not asked."""

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        yield None


# -- snapshots


def pod(name: str = "infer-7", *, path: str = "/user/snapshot", uid: str = "u7", **change: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "metadata": {
            "name": name, "namespace": "default", "uid": uid,
            "labels": {"infer.huawei.com/ascend-infer-operator": "true"}, "annotations": {"snapshot_mode": "save"},
        },
        "spec": {"containers": [{"name": "c", "env": [{"name": "host_snapshot_path", "value": path}]}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"containerID": "containerd://abc123"}],
        },
    }  # fmt: skip
    for part, values in change.items():
        body[part].update(values)
    return body


def test_what_a_pod_asks_for() -> None:
    found = wanted(pod("a-3-b-12"))
    assert found is not None and (found.container, found.folder) == ("abc123", "/user/snapshot/12")


@pytest.mark.parametrize(
    "body",
    [
        pod(metadata={"labels": {}}),
        pod(metadata={"annotations": {"snapshot_mode": "load"}}),
        pod(metadata={"annotations": {"snapshot_mode": "save", SNAPSHOT_FINISHED: "false"}}),
        pod(metadata={"deletionTimestamp": "now"}),
        pod(status={"conditions": [{"type": "Ready", "status": "False"}]}),
        pod(status={"containerStatuses": []}),
        pod(status={"containerStatuses": [{"containerID": "containerd://../x"}]}),
        pod(spec={"containers": [{"env": []}]}),
        pod(spec={"containers": [{}, {}]}),
        pod("no-number"),
        pod(path=""),
        {},
    ],
)
def test_pods_that_ask_for_nothing(body: dict[str, Any]) -> None:
    assert wanted(body) is None


class Cluster:
    """Pods, and what is written to them."""

    def __init__(self) -> None:
        self.written: list[tuple[str, dict[str, str]]] = []
        self.fail = 0

    async def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        yield []

    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        if self.fail:
            self.fail -= 1
            raise ApiError(503, "down")
        self.written.append((f"{namespace}/{name}/{uid}", dict(annotations)))


def runtime(folder: Path, script: str) -> str:
    tool = folder / "ascend-docker-runtime"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return str(tool)


def make(cluster: Cluster, tool: str, *pods: Mapping[str, Any], seconds: float = 20.0) -> None:
    async def main() -> None:
        snapshots = Snapshots("n0", cluster, VirtualClock(), runtime=tool, seconds=seconds)
        await asyncio.gather(*snapshots.start(pods))
        # the pod has its answer only in the next list: nothing is done twice
        await asyncio.gather(*snapshots.start(pods))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_container_is_checkpointed_once(tmp_path: Path) -> None:
    tool = runtime(tmp_path, f'echo "$@" >> {tmp_path}/said; mkdir -p "$3"; echo x > "$3/{DIGEST}"')
    cluster, asked = Cluster(), pod(path=str(tmp_path / "images"))
    cluster.fail = 1
    make(cluster, tool, asked)
    assert (tmp_path / "said").read_text() == f"checkpoint --image-path {tmp_path}/images/7 abc123\n"
    assert cluster.written == [("default/infer-7/u7", {SNAPSHOT_FINISHED: "true"})]
    # there already: done
    make(cluster, tool, asked)
    assert (tmp_path / "said").read_text().count("\n") == 1
    assert cluster.written[-1][1] == {SNAPSHOT_FINISHED: "true"}


ENDLESS = "while :; do echo an endless line of complaint >&2; done"
LEFT_BEHIND = "sleep 60 >/dev/null & exit 0"


@pytest.mark.parametrize("script", ["echo no such container >&2; exit 1", "sleep 60", ENDLESS, LEFT_BEHIND])
def test_a_checkpoint_that_fails_or_hangs_is_reported(tmp_path: Path, script: str) -> None:
    cluster = Cluster()
    make(cluster, runtime(tmp_path, script), pod(path=str(tmp_path / "images")), seconds=0.5)
    assert {annotations[SNAPSHOT_FINISHED] for _, annotations in cluster.written} == {"false"}


@pytest.mark.parametrize("path", ["relative", "/a/../b"])
def test_odd_folders_are_refused(tmp_path: Path, path: str) -> None:
    cluster = Cluster()
    make(cluster, runtime(tmp_path, f"touch {tmp_path}/ran"), pod(path=path))
    assert cluster.written[0][1] == {SNAPSHOT_FINISHED: "false"} and not (tmp_path / "ran").exists()


def test_an_empty_folder_is_an_attempt_that_did_not_end(tmp_path: Path) -> None:
    (tmp_path / "images" / "7").mkdir(parents=True)
    cluster = Cluster()
    make(cluster, runtime(tmp_path, "true"), pod(path=str(tmp_path / "images")))
    assert cluster.written[0][1] == {SNAPSHOT_FINISHED: "false"}


def test_a_checkpoint_whose_agent_was_killed_in_the_middle_did_not_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # all but the file that is written last
    folder = tmp_path / "images" / "7"
    (folder / "image").mkdir(parents=True)
    (folder / "rootfs-diff.tar").write_bytes(b"half")
    cluster, asked = Cluster(), pod(path=str(tmp_path / "images"))
    make(cluster, runtime(tmp_path, f"touch {tmp_path}/ran"), asked)
    assert cluster.written[0][1] == {SNAPSHOT_FINISHED: "false"} and not (tmp_path / "ran").exists()
    said = [str(record.__dict__["belay_fields"]["error"]) for record in caplog.records if record.levelname == "ERROR"]
    assert said and f"{folder} exists and has no {DIGEST}: an earlier attempt did not end" in said[0]


def test_the_file_that_ends_a_checkpoint_is_the_one_that_the_container_runtime_writes() -> None:
    header = Path(__file__).parents[1] / "agents" / "runtime" / "oci" / "runtime.h"
    assert f'#define SNAPSHOT_DIGEST "{DIGEST}"' in header.read_text()


def test_eight_at_a_time(tmp_path: Path) -> None:
    tool = runtime(tmp_path, 'mkdir -p "$3"; echo x > "$3/image"')

    async def main() -> None:
        cluster = Cluster()
        snapshots = Snapshots("n0", cluster, VirtualClock(), runtime=tool)
        pods = [pod(f"infer-{n}", path=str(tmp_path / "images"), uid=f"u{n:02d}") for n in range(10)]
        first = snapshots.start(pods)
        assert len(first) == AT_ONCE
        await asyncio.gather(*first)
        for body in pods[:AT_ONCE]:
            body["metadata"]["annotations"][SNAPSHOT_FINISHED] = "true"
        await asyncio.gather(*snapshots.start(pods))
        assert len(cluster.written) == 10

    asyncio.run(asyncio.wait_for(main(), 60))
