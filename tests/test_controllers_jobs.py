"""Job controller: completions, parallelism, back-off, indexes, deadline and time to live."""

from __future__ import annotations

from belay.engine.workloads import job, objects
from tests.controller_world import World, condition, workload


def test_completions_with_parallelism() -> None:
    world = World(3)
    world.ends = lambda pod: "Succeeded"
    world.add(workload("Job", "train", completions=5, parallelism=2))

    def bounded() -> None:
        assert sum(objects.active(pod) for pod in world.pods()) <= 2

    world.settle(bounded, share=0.6)
    train = world.get("Job", "train")
    assert condition(train, "Complete") == ("True", "CompletionsReached")
    assert train["status"]["succeeded"] == 5 and train["status"].get("active", 0) == 0
    assert len(world.pods()) == 5
    labels = world.pods()[0]["metadata"]["labels"]
    assert labels["job-name"] == labels["batch.kubernetes.io/job-name"] == "train"
    assert labels["controller-uid"] == train["metadata"]["uid"]


def test_failures_beyond_the_limit_end_the_job() -> None:
    world = World()
    world.ends = lambda pod: "Failed"
    world.add(workload("Job", "train", backoffLimit=2))
    world.settle()
    train = world.get("Job", "train")
    assert condition(train, "Failed") == ("True", "BackoffLimitExceeded")
    assert train["status"]["failed"] == 3


def test_failed_pods_are_replaced_after_a_growing_pause() -> None:
    world = World()
    world.ends = lambda pod: "Failed"
    thing = world.add(workload("Job", "train", backoffLimit=6))
    world.round()
    world.round()
    step = job.reconcile(thing, world.pods(), world.now, 1.0)
    assert not any(write.verb == "create" for write in step.writes)
    assert step.again_in is not None and 0 < step.again_in <= 10


def test_indexed_job_runs_each_index_once() -> None:
    world = World(7)
    failed: set[str] = set()

    def end(pod: dict) -> str:  # type: ignore[type-arg]
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        if index == "1" and index not in failed:
            failed.add(index)
            return "Failed"
        return "Succeeded"

    world.ends = end
    world.add(workload("Job", "train", completions=4, parallelism=4, completionMode="Indexed"))
    world.settle()
    train = world.get("Job", "train")
    assert condition(train, "Complete")[0] == "True"
    assert train["status"]["completedIndexes"] == "0-3"
    env = world.pods()[0]["spec"]["containers"][0]["env"]
    assert env[0]["name"] == "JOB_COMPLETION_INDEX"


def test_deleted_finished_pods_are_not_run_again() -> None:
    world = World()
    world.ends = lambda pod: "Succeeded"
    world.add(workload("Job", "train", completions=2, parallelism=1))
    world.settle()
    for pod in world.pods():
        del world.things["Pod", pod["metadata"]["name"]]
    world.settle()
    assert world.pods() == []


def test_deadline_suspension_and_time_to_live() -> None:
    world = World()
    world.add(workload("Job", "slow", activeDeadlineSeconds=500))
    for _ in range(8):
        world.round()
    assert condition(world.get("Job", "slow"), "Failed") == ("True", "DeadlineExceeded")
    world.settle()
    assert not any(objects.active(p) for p in world.pods())
    world.add(workload("Job", "later", suspend=True))
    world.settle()
    assert condition(world.get("Job", "later"), "Suspended")[0] == "True"
    world.ends = lambda pod: "Succeeded"
    world.edit("Job", "later", {"spec": {"suspend": False, "ttlSecondsAfterFinished": 300}})
    for _ in range(12):
        world.round()
    assert ("Job", "later") not in world.things
