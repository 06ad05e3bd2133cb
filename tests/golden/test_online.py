"""Chips healed under their jobs as narratives: it works, managers are deaf, it fails, a second fault comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from belay.engine.model.diagnostics import ObjectKey
from tests.golden.stories import compare, sample_files
from tests.golden.test_decisions import RESET, home
from tests.simworld import A2, INFER, Node, World

POLICY: Final = b"""apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: heal-in-place}
spec:
  actions:
    RestartRequest: {training: tolerate}
    RestartBusiness: {training: tolerate}
    RestartNPU: {training: tolerate}
"""


def world() -> World:
    files = sample_files()
    job = next(name for name, data in files.items() if b"name: pretrain" in data and b"AscendJob" in data)
    files[job] = files[job].replace(b"    fault-scheduling: grace\n", b"    fault-scheduling: force\n")
    files |= {"policies/heal.yaml": POLICY, "desired/reset.yaml": RESET}
    nodes = [Node(f"node-{i}", labels=A2) for i in range(1, 9)]
    nodes.append(Node("infer-1", chips=8, kind="Ascend310P", labels=INFER))
    made = World(files, nodes)
    made.until_quiet()
    made.story.clear()
    return made


def told(world: World) -> tuple[dict[str, Any], str]:
    data = world.objects[ObjectKey("v1", "ConfigMap", "default", "reset-config-pretrain")]["data"]
    return json.loads(data["reset.json"]), data.get("restartType", "")


def second_fault(world: World) -> None:
    world.step()
    world.fault(home(world, "worker"), 1)


def failing(world: World) -> None:
    world.nodes[home(world)].reset_fails = 1


STORIES: Final[dict[str, tuple[str, Callable[[World], None] | None, bool]]] = {
    "online-reset": ("RestartNPU", None, True),
    "online-restart": ("RestartBusiness", None, True),
    "online-deaf-managers": ("RestartNPU", lambda w: setattr(w, "deaf", True), False),
    "online-reset-fails": ("RestartNPU", failing, False),
    "online-second-fault": ("RestartNPU", second_fault, False),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_chip_is_healed_under_its_job(name: str, update_golden: bool) -> None:
    level, more, heals = STORIES[name]
    made = world()
    pods = {key.name: pod["metadata"]["uid"] for key, pod in made.objects.items() if key.kind == "Pod"}
    where = home(made)
    made.fault(where, 3, level=level)
    if more is not None:
        more(made)
    made.until_quiet()
    compare(name, made.story, update_golden)
    after = {key.name: pod["metadata"]["uid"] for key, pod in made.objects.items() if key.kind == "Pod"}
    mine = {name for name in pods if name.startswith("pretrain")}
    assert ({n: after[n] for n in mine} == {n: pods[n] for n in mine}) is heals
    body, kind = told(made)
    resets = made.nodes[where].reset_log
    if heals:
        assert [row["Status"] for row in body["RankList"]] == ["recovered"] * 8 and kind == "hotReset"
        assert body["RetryTime"] == 1 and [group for _, group in resets] == [tuple(range(8))]
    else:
        assert body["RankList"] == []  # new pods do not learn of the old ones' end
    assert all(pod["status"]["phase"] == "Running" for pod in made.pods().values())
    assert not made.plan().actions and not [c for c in made.plan().chips if c.state not in ("healthy",)]
