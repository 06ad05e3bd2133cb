"""Random histories of jobs: the passes converge and keep their invariants whatever happens to the pods."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import AnyAction
from tests.jobs import POD_GROUP_CRD, World, ascend_job, config_map, replica, volcano_job

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["run", "succeed", "fail", "retryable", "delete", "vanish", "bury", "step", "held"]),
        st.integers(0, 2),
    ),
    max_size=14,
)
ENDS = {"Succeeded", "Failed", "Completed", "Aborted", "Terminated"}


def live(world: World, events: list[tuple[str, int]], job: str, container: str) -> None:
    """Applies the events, one pass after each, and checks what must hold after every one."""
    ended = ""
    for what, number in events:
        names = world.pods()
        name = names[number % len(names)] if names else ""
        if what == "run":
            world.run_all()
        elif what == "bury":
            world.bury()
        elif name and what in ("succeed", "fail", "retryable") and world.pod(name)["status"]["phase"] == "Running":
            phase, code = {"succeed": ("Succeeded", 0), "fail": ("Failed", 1), "retryable": ("Failed", 137)}[what]
            world.end(name, phase, code, container)
        elif name and what == "delete":
            world.pod(name)["metadata"]["deletionTimestamp"] = "2026-09-01T08:10:00Z"
        elif name and what == "vanish":
            world.vanish(name)
        world.step(skip=held if what == "held" else lambda _: False)
        state = world.state(job)
        assert not ended or state == ended, "an ended job stays ended"
        ended = state if state in ENDS else ""
        assert len(world.pods()) <= 3


def held(action: AnyAction) -> bool:
    return type(action).__name__ in ("EvictPod", "DeleteObject")


def rest(world: World, job: str) -> None:
    """Faults have stopped: pods that go are gone, pods that wait run, and then no pass has anything to do."""
    for _ in range(40):
        if not world.step():
            before = world.pods()
            world.bury()
            world.run_all()
            if not world.step() and world.pods() == before:
                break
    else:
        raise AssertionError(f"no rest: {world.log[-12:]}")
    state = world.state(job)
    if state not in ENDS:
        phases = {world.pod(name)["status"]["phase"] for name in world.pods()}
        assert len(world.pods()) == 3
        assert phases <= {"Running", "Succeeded", "Failed"}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    EVENTS,
    st.sampled_from(["Never", "ExitCode"]),
    st.sampled_from([{}, {"fault-retry-times": "2"}]),
    st.sampled_from([None, {"backoffLimit": 2}, {"cleanPodPolicy": "All"}]),
)
def test_ascend_jobs_converge(events: list[Any], restart: str, labels: dict[str, str], policy: Any) -> None:
    replicas = {"Master": replica(restart=restart), "Worker": replica(2, restart=restart)}
    rings = config_map("rings-config-train", {})
    world = World(POD_GROUP_CRD, rings, ascend_job(replicas=replicas, labels=labels, policy=policy))
    live(world, events, "train", "ascend")
    rest(world, "train")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    EVENTS,
    st.sampled_from(["SyncJob", "RestartJob", "RestartPod", "RestartTask", "AbortJob", "CompleteJob"]),
    st.sampled_from(["SyncJob", "RestartJob", "TerminateJob"]),
    st.sampled_from([{}, {"minAvailable": 1}, {"maxRetry": 1}]),
)
def test_volcano_jobs_converge(events: list[Any], failed: str, evicted: str, spec: dict[str, Any]) -> None:
    policies = [{"event": "PodFailed", "action": failed}, {"event": "PodEvicted", "action": evicted}]
    tasks = [
        {"name": "a", "replicas": 2, "template": replica()["template"]},
        {"name": "b", "replicas": 1, "template": replica()["template"]},
    ]
    world = World(POD_GROUP_CRD, config_map("rings-config-vc", {}), volcano_job(tasks=tasks, policies=policies, **spec))
    live(world, events, "vc", "ascend")
    rest(world, "vc")
