"""Volcano's Commands: `vcctl job suspend`, `resume` and their kind."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.times import rfc3339
from tests.jobs import NOW, World, volcano_job


def command(action: str, name: str = "c", *, job: str = "vc", uid: str = "vc-uid", age: float = 0.0) -> dict[str, Any]:
    target = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": job, **({"uid": uid} if uid else {})}
    meta = {"name": name, "namespace": "vision", "creationTimestamp": rfc3339(NOW - age)}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": meta,
        "action": action,
        "target": target,
    }


def running() -> World:
    world = World(volcano_job())
    world.settle()
    world.run_all()
    world.settle()
    assert world.state("vc") == "Running"
    return world


def after(world: World) -> None:
    """Passes until nothing is left to do, while kubelets end what is deleted."""
    for _ in range(10):
        if not world.step() and not any("deletionTimestamp" in world.pod(n)["metadata"] for n in world.pods()):
            return
        world.bury()
    raise AssertionError(world.log[-5:])


def test_a_suspended_job_gives_its_chips_back_and_resumes() -> None:
    world = running()
    world.put(command("AbortJob"))
    after(world)
    assert world.state("vc") == "Aborted"
    assert world.pods() == []
    assert world.kinds("Command") == [], "carried out, and gone"
    assert world.step() == [], "it stays suspended"
    world.put(command("ResumeJob"))
    after(world)
    assert world.pods() == ["vc-worker-0", "vc-worker-1"]
    assert world.state("vc") == "Pending"
    world.run_all()
    world.settle()
    assert world.state("vc") == "Running"
    assert world.job("vc")["status"]["retryCount"] == 1


@pytest.mark.parametrize(("action", "phase"), [("TerminateJob", "Terminated"), ("CompleteJob", "Completed")])
def test_a_job_ends_on_command(action: str, phase: str) -> None:
    world = running()
    world.put(command(action))
    after(world)
    assert (world.state("vc"), world.pods(), world.kinds("Command")) == (phase, [], [])


def test_a_command_that_could_not_be_deleted_is_not_carried_out_twice() -> None:
    world = running()
    world.put(command("RestartJob"))
    kept = {"DeleteObject"}
    world.step(skip=lambda action: type(action).__name__ in kept)
    version = world.history.jobs["vision/Job/vc"].version
    for _ in range(3):
        world.bury()
        world.step(skip=lambda action: type(action).__name__ in kept)
    assert world.history.jobs["vision/Job/vc"].version == version == 1
    after(world)
    assert world.kinds("Command") == []


def test_a_command_whose_effect_could_not_be_written_is_carried_out_in_the_next_pass() -> None:
    world = running()
    world.put(command("AbortJob"))
    world.step(skip=lambda action: True)
    after(world)
    assert (world.state("vc"), world.pods(), world.kinds("Command")) == ("Aborted", [], [])


@pytest.mark.parametrize(
    "one", [command("AbortJob", uid="another"), command("AbortJob", uid="", age=3600), command("AbortJob", job="other")]
)
def test_a_command_for_another_job_changes_nothing(one: dict[str, Any]) -> None:
    world = running()
    world.put(one)
    world.settle()
    assert world.state("vc") == "Running"


def test_a_command_without_effect_is_deleted_and_an_unknown_one_is_a_finding() -> None:
    world = running()
    world.put(command("ResumeJob"))
    world.put(command("Explode", "odd"))
    world.settle()
    assert world.state("vc") == "Running"
    assert world.kinds("Command") == ["odd"]
    world.plan()
    assert any("action 'Explode' is not one of AbortJob" in line for line in world.diagnostics)
