"""The reset and profiling ConfigMaps of jobs as files, for training managers that mount the folders."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from belay.agents.node import jobfiles
from belay.agents.node.jobfiles import Place, Roots
from belay.agents.node.settings import Settings
from belay.agents.training.compat.resetfile import read
from tests.agent_world import World, play, pod

CONFIG = "reset-config-pretrain"


def config(data: dict[str, str], name: str = CONFIG, **labels: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "labels": labels or {"reset": "true"}}, "data": data}


def mounting(root: Path, *names: str, job: str = "worker", phase: str = "Running") -> dict[str, Any]:
    body = pod(job, ["Ascend910-0"], phase=phase)
    body["spec"]["volumes"] = [
        {"name": f"v{n}", "hostPath": {"path": f"{root}/{name}"}} for n, name in enumerate(names)
    ]
    return body


async def until(true: Any, world: World, seconds: float = 90.0) -> None:
    """Files are written by threads, which the virtual clock does not know of."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come"
        await world.run(1)
        await asyncio.sleep(0.01)


def test_files_follow_the_config_map_and_go_with_the_pod(tmp_path: Path) -> None:
    root = tmp_path / "reset"
    folder = root / f"default.{CONFIG}"

    async def story() -> None:
        world = World(tmp_path, settings=Settings(reset_root=str(root), trace_root=str(tmp_path / "trace")))
        world.cluster.set_pods([mounting(root, f"default.{CONFIG}")])
        await world.start()
        await until(folder.is_dir, world)  # a container may start before anything was written
        ranks = '{"RankList":[{"RankId":3}],"RetryTime":2,"FaultFlushing":false}'
        world.cluster.set_map(config({"reset.json": ranks, "restartType": "hotReset", "checkCode": "x"}))
        await until((folder / "restartType").exists, world)
        assert (folder / "reset.json").read_text() == ranks
        assert read(folder / "reset.json").retry_time == 2 and not read(folder / "reset.json").may_start([3])
        assert (folder / "restartType").read_text() == "hotReset" and not (folder / "checkCode").exists()
        world.cluster.set_map(config({"reset.json": "{}"}))
        await until(lambda: (folder / "reset.json").read_text() == "{}", world)
        assert not (folder / "restartType").exists()
        world.cluster.set_map(None, "default", CONFIG)
        await until(lambda: not (folder / "reset.json").exists(), world)
        assert folder.is_dir()  # the pod still mounts it
        world.cluster.set_pods([])
        await until(lambda: not folder.exists(), world)
        await world.kill()

    play(story)


def test_a_file_that_is_written_while_the_pod_leaves_goes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, may_write, writing, ended = jobfiles.write, threading.Event(), threading.Event(), threading.Event()

    def slow_disk(place: Place, body: Any) -> bool:
        writing.set()
        assert may_write.wait(30)
        try:
            return written(place, body)
        finally:
            ended.set()

    monkeypatch.setattr(jobfiles, "write", slow_disk)
    root = tmp_path / "reset"
    folder = root / f"default.{CONFIG}"

    async def story() -> None:
        world = World(tmp_path, settings=Settings(reset_root=str(root), trace_root=str(tmp_path / "trace")))
        world.cluster.set_pods([mounting(root, folder.name)])
        await world.start()
        await until(writing.is_set, world)
        world.cluster.set_pods([])
        await world.run(5)
        may_write.set()
        await until(ended.is_set, world)
        await until(lambda: not folder.exists(), world)
        await world.kill()

    play(story)


def test_profiling_switches_have_files_too(tmp_path: Path) -> None:
    place = Place(tmp_path / "default.data-trace-j", "default", "data-trace-j", ("profilingSwitch",))
    assert jobfiles.write(place, config({"profilingSwitch": '{"Step":"on"}'}, "data-trace-j"))
    assert (place.folder / "profilingSwitch").read_text() == '{"Step":"on"}'
    assert not jobfiles.write(place, config({"profilingSwitch": '{"Step":"on"}'}, "data-trace-j"))
    jobfiles.clear(place)
    jobfiles.clear(place)
    assert not place.folder.exists()


def test_only_the_pods_own_folders_are_followed(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        await world.start()
        state = world.agent.state
        assert state is not None
        roots = Roots(tmp_path / "r", tmp_path / "t")
        strange = ("other.reset-config-j", "default.something", "deeper/default.reset-config-j", "default.data-trace-j",
                   "../default.reset-config-j")  # fmt: skip
        state.bodies = [
            mounting(roots.reset, "default.reset-config-j", *strange),
            mounting(roots.reset, "default.reset-config-ended", phase="Failed"),
            mounting(roots.trace, "default.data-trace-j"),
        ]
        found = jobfiles.mounted(state, roots)
        assert [(p.namespace, p.config_map) for p in found] == [
            ("default", "reset-config-j"), ("default", "data-trace-j"),
        ]  # fmt: skip
        await world.kill()

    play(story)


def test_a_config_map_without_the_label_is_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path / "default.reset-config-j", "default", "reset-config-j", ("reset.json", "restartType"))
    assert not jobfiles.write(place, config({"reset.json": "{}"}, app="x"))
    assert list(place.folder.iterdir()) == []


def test_links_are_never_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("mine")
    place = Place(tmp_path / "default.reset-config-j", "default", "reset-config-j", ("reset.json",))
    place.folder.symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        jobfiles.write(place, config({"reset.json": "{}"}))
    place.folder.unlink()
    place.folder.mkdir()
    (place.folder / "reset.json").symlink_to(elsewhere / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        jobfiles.write(place, config({"reset.json": "{}"}))
    assert (elsewhere / "secret").read_text() == "mine"
