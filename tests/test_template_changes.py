"""A changed template of a running job takes effect with its next restart; until then the status says so."""

from __future__ import annotations

import pytest

from belay.engine.model.diagnostics import Diagnostic
from tests.simworld import World
from tests.test_sync_pruning import job, note, running, tree
from tests.worlds import document


def findings(world: World) -> list[Diagnostic]:
    return [one for one in world.plan().diagnostics if "older template" in one.message]


def test_running_pods_of_an_older_template_are_reported_until_they_restart() -> None:
    world = running(job("train"), nodes=3)
    assert findings(world) == []

    # a change beside the templates says nothing of them
    labelled = job("train")
    labelled["metadata"]["labels"]["team"] = "a"
    world.push(tree(labelled))
    world.until_quiet()
    assert findings(world) == []

    changed = job("train")
    for spec in changed["spec"]["replicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["image"] = "train:2"
    world.push(tree(changed))
    world.until_quiet()
    (finding,) = findings(world)
    assert (finding.severity, finding.object) == ("info", "AscendJob/default/train")
    assert finding.file == "desired/AscendJob-train.yaml"
    assert finding.message.startswith("2 of 2 running pods have the older template")

    for key in [key for key in world.objects if key.kind == "Pod"]:
        world.delete(key)
    world.until_quiet()
    assert findings(world) == []
    assert len([key for key in world.objects if key.kind == "Pod"]) == 2
    assert not world.plan().history.retemplated


@pytest.mark.parametrize("edit", ["gone", "another"])
def test_a_job_that_is_gone_is_not_reported(edit: str) -> None:
    world = running(job("train", workers=0), nodes=2)
    changed = job("train", workers=0)
    changed["spec"]["replicaSpecs"]["Master"]["template"]["spec"]["containers"][0]["image"] = "train:2"
    world.push(tree(changed))
    world.step()
    world.push(tree(note("other")) if edit == "gone" else tree(job("other", workers=0)))
    world.until_quiet()
    assert findings(world) == []


def test_a_job_of_another_shard_is_reported() -> None:
    """The main shard applies what Git changes of every job; the pods are in the other shard's passes."""
    world = running(job("train"), nodes=3)
    changed = job("train")
    for body in (changed, *world.objects.values()):
        if (body.get("kind"), body["metadata"]["name"]) == ("AscendJob", "train"):
            body["metadata"].setdefault("labels", {})["belay.dev/shard"] = "far"
    for spec in changed["spec"]["replicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["image"] = "train:2"
    world.push(tree(changed, document("NodePool", "far", selector={"matchLabels": {"zone": "far"}}, shard="far")))
    for _ in range(3):
        world.step()
    (finding,) = findings(world)
    assert finding.message.startswith("2 of 2 running pods have the older template")
