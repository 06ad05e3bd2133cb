"""AscendJobs that people suspend and resume: their chips are free in between, and nothing of it counts as a failure."""

from __future__ import annotations

from belay.engine.gangs.job_status import RUNNING, SUSPENDED, is_suspended
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.history import JobMemory
from belay.engine.status.jobs import job_status
from belay.engine.wire.history import JOB_PHASE_KEY
from tests.golden.stories import compare, sample_files, sample_world
from tests.simworld import World

JOB = "default/AscendJob/pretrain"
KEY = ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "default", "pretrain")


def with_suspend(wanted: bool) -> dict[str, bytes]:
    files = sample_files()
    (file,) = [path for path, data in files.items() if b"kind: AscendJob" in data and b"name: pretrain" in data]
    text = files[file].decode()
    assert "runPolicy:\n" in text
    return files | {file: text.replace("runPolicy:\n", f"runPolicy:\n    suspend: {str(wanted).lower()}\n").encode()}


def pods(world: World) -> list[Pod]:
    return [pod for pod in world.observer.observed().pods.values() if pod.name.startswith("pretrain")]


def memory(world: World) -> JobMemory:
    return world.observer.observed().history.jobs.get(JOB, JobMemory())


def conditions(world: World) -> dict[str, tuple[str, str]]:
    rows = world.objects[KEY]["status"]["conditions"]
    return {row["type"]: (row["status"], row["reason"]) for row in rows}


def test_a_suspended_job_frees_its_chips_and_starts_again_when_it_is_resumed(update_golden: bool) -> None:
    world = sample_world()
    world.until_quiet()
    world.story.clear()
    before = memory(world)

    world.push(with_suspend(True))
    plans = world.until_quiet()
    assert pods(world) == []
    assert conditions(world)[SUSPENDED] == ("True", "AscendJobSuspended")
    assert conditions(world)[RUNNING][0] == "False"
    assert not [chip for chip in plans[-1].chips if (chip.used_by or "").startswith("default/pretrain")]
    (shown,) = [
        body for body in job_status(plans[-1], world.observer.observed()) if body["data"]["job"] == JOB
    ]  # fmt: skip
    assert shown["data"][JOB_PHASE_KEY] == SUSPENDED

    world.push(with_suspend(False))
    world.until_quiet()
    compare("suspension", world.story, update_golden)
    assert len(pods(world)) == 2 and {pod.phase for pod in pods(world)} == {"Running"}
    assert conditions(world)[SUSPENDED] == ("False", "AscendJobResumed") and conditions(world)[RUNNING][0] == "True"
    after = memory(world)
    assert (after.version, after.rescheduled, after.recoveries) == (before.version, 0, ())


def test_a_job_that_is_suspended_and_resumed_at_once_keeps_its_retries() -> None:
    world = sample_world()
    world.until_quiet()
    version = memory(world).version
    for _ in range(3):
        world.push(with_suspend(True))
        world.step()
        world.push(with_suspend(False))
        world.step()
    world.until_quiet()
    assert len(pods(world)) == 2 and {pod.phase for pod in pods(world)} == {"Running"}
    assert memory(world).version == version and not is_suspended(world.objects[KEY])
