"""Deployment and StatefulSet: convergence from any order of events, limits kept at every step."""

from __future__ import annotations

import pytest

from belay.engine.model.labels import DEPLOYMENT_REVISION
from belay.engine.workloads import deployment, objects
from tests.controller_world import World, condition, image_of, workload


def active(world: World) -> list[str]:
    return [image_of(pod) for pod in world.pods() if objects.active(pod)]


def available(world: World) -> int:
    return sum(objects.active(pod) and objects.ready(pod) for pod in world.pods())


def test_deployment_comes_up_and_says_so() -> None:
    world = World()
    world.add(workload("Deployment", replicas=3))
    world.settle()
    status = world.get("Deployment", "web")["status"]
    assert (status["replicas"], status["readyReplicas"], status["availableReplicas"], status["updatedReplicas"]) == (
        3,
        3,
        3,
        3,
    )
    assert status.get("unavailableReplicas", 0) == 0
    assert condition(world.get("Deployment", "web"), "Available") == ("True", "MinimumReplicasAvailable")
    assert condition(world.get("Deployment", "web"), "Progressing") == ("True", "NewReplicaSetAvailable")
    assert status["observedGeneration"] == 1
    (replica_set,) = world.of("ReplicaSet")
    digest = replica_set["metadata"]["labels"]["pod-template-hash"]
    assert replica_set["metadata"]["name"] == f"web-{digest}"
    assert all(pod["metadata"]["labels"]["pod-template-hash"] == digest for pod in world.pods())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1), ("25%", "25%"), (2, 2), (0, 0)])
def test_rolling_update_keeps_its_limits(seed: int, surge: object, unavailable: object) -> None:
    world = World(seed)
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    world.add(workload("Deployment", replicas=6, strategy={"type": "RollingUpdate", "rollingUpdate": rolling}))
    world.settle()
    most, least = deployment.limits(world.get("Deployment", "web"))

    def keep() -> None:
        wanted = sum(rs["spec"]["replicas"] for rs in world.of("ReplicaSet"))
        assert wanted <= 6 + most
        assert len(active(world)) <= 6 + most
        assert available(world) >= 6 - least

    world.edit(
        "Deployment", "web", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "two"}]}}}}
    )
    world.settle(keep, share=0.5)
    assert active(world) == ["two"] * 6
    assert world.get("Deployment", "web")["metadata"]["annotations"][DEPLOYMENT_REVISION] == "2"


def test_a_broken_image_stops_the_roll_out_and_a_rollback_heals_it() -> None:
    world = World()
    world.add(workload("Deployment", replicas=4, progressDeadlineSeconds=20))
    world.settle()
    world.fails = lambda pod: image_of(pod) == "broken" and objects.phase(pod) == "Pending" and world.now > 0
    world.edit(
        "Deployment", "web", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "broken"}]}}}}
    )
    for _ in range(40):
        world.round()
        assert available(world) >= 3
    assert condition(world.get("Deployment", "web"), "Progressing") == ("False", "ProgressDeadlineExceeded")
    world.fails = lambda pod: False
    world.edit(
        "Deployment", "web", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "one"}]}}}}
    )
    world.settle()
    assert active(world) == ["one"] * 4
    assert len(world.of("ReplicaSet")) == 2, "the rollback takes the old ReplicaSet again"
    assert world.get("Deployment", "web")["metadata"]["annotations"][DEPLOYMENT_REVISION] == "3"


def test_failed_and_evicted_pods_are_replaced() -> None:
    world = World()
    world.add(workload("Deployment", replicas=2))
    world.settle()
    first, second = world.pods()
    first["status"] = {"phase": "Failed", "reason": "Evicted"}
    del world.things["Pod", second["metadata"]["name"]]
    world.settle()
    assert len(active(world)) == 2
    assert ("Pod", first["metadata"]["name"]) in world.things, "what failed stays to be looked at"


def test_scale_recreate_pause_and_history() -> None:
    world = World()
    world.add(workload("Deployment", replicas=3, strategy={"type": "Recreate"}, revisionHistoryLimit=1))
    world.settle()
    for number, image in enumerate(("two", "three", "four")):
        world.edit(
            "Deployment", "web", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
        )
        world.settle(lambda: len({image_of(p) for p in world.pods()}) <= 1 or pytest.fail("two versions at once"))
        assert active(world) == [image] * 3, number
    assert len(world.of("ReplicaSet")) == 2
    world.edit("Deployment", "web", {"spec": {"paused": True, "replicas": 5}})
    world.edit(
        "Deployment", "web", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "five"}]}}}}
    )
    world.settle()
    assert active(world) == ["four"] * 5, "a paused deployment is scaled but not rolled out"
    world.edit("Deployment", "web", {"spec": {"paused": None, "replicas": 0}})
    world.settle()
    assert active(world) == []


def test_nothing_is_written_at_the_fixed_point() -> None:
    world = World()
    world.add(workload("Deployment", replicas=3))
    world.add(workload("StatefulSet", "db", replicas=2))
    world.settle()
    world.narrative.clear()
    for _ in range(5):
        world.round()
    assert world.narrative == []


def test_a_name_taken_by_another_template_is_salted() -> None:
    world = World()
    thing = world.add(workload("Deployment"))
    first = deployment.reconcile(thing, [], [], world.now).writes[0]
    world.perform(type(deployment.reconcile(thing, [], [], world.now))((deployment.collided(thing),)))
    second = deployment.reconcile(world.get("Deployment", "web"), [], [], world.now).writes[0]
    assert first.name != second.name


@pytest.mark.parametrize("seed", range(5))
def test_stateful_set_starts_in_order_and_updates_from_the_last(seed: int) -> None:
    world = World(seed)
    world.add(workload("StatefulSet", "db", replicas=3, serviceName="db"))

    def ordered() -> None:
        names = {pod["metadata"]["name"] for pod in world.pods()}
        for number in (1, 2):
            if f"db-{number}" in names:
                below = world.things.get(("Pod", f"db-{number - 1}"))
                assert below is not None and objects.ready(below), "a pod starts only after the one before it is ready"

    world.settle(ordered, share=0.5)
    assert [pod["metadata"]["name"] for pod in world.pods()] == ["db-0", "db-1", "db-2"]
    assert world.get("Pod", "db-1")["spec"]["hostname"] == "db-1"
    assert world.get("Pod", "db-1")["spec"]["subdomain"] == "db"
    order: list[str] = []

    def replaced() -> None:
        for pod in world.pods():
            if image_of(pod) == "two" and pod["metadata"]["name"] not in order:
                order.append(pod["metadata"]["name"])

    world.edit(
        "StatefulSet", "db", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "two"}]}}}}
    )
    world.settle(replaced, share=0.5)
    assert order == ["db-2", "db-1", "db-0"]
    status = world.get("StatefulSet", "db")["status"]
    assert status["currentRevision"] == status["updateRevision"]
    assert status["updatedReplicas"] == status["currentReplicas"] == status["readyReplicas"] == 3


def test_stateful_set_partition_parallel_and_scale_down() -> None:
    world = World()
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
    world.add(workload("StatefulSet", "db", replicas=3, podManagementPolicy="Parallel", updateStrategy=strategy))
    world.round()
    world.round()
    assert len(world.pods()) == 3, "parallel pods start together"
    world.settle()
    world.edit(
        "StatefulSet", "db", {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "two"}]}}}}
    )
    world.settle()
    assert [image_of(pod) for pod in world.pods()] == ["one", "one", "two"]
    del world.things["Pod", "db-0"]
    world.settle()
    assert image_of(world.get("Pod", "db-0")) == "one", "below the partition the old template is used"
    world.edit("StatefulSet", "db", {"spec": {"replicas": 1, "podManagementPolicy": "OrderedReady"}})
    gone: list[str] = []
    world.settle(lambda: gone.extend(n for n in ("db-2", "db-1") if ("Pod", n) not in world.things and n not in gone))
    assert gone == ["db-2", "db-1"]


def test_a_failed_pod_of_a_stateful_set_is_replaced_under_its_name() -> None:
    world = World()
    world.add(workload("StatefulSet", "db", replicas=2))
    world.settle()
    old = world.get("Pod", "db-0")
    old["status"] = {"phase": "Failed"}
    world.settle()
    fresh = world.get("Pod", "db-0")
    assert fresh["metadata"]["uid"] != old["metadata"]["uid"] and objects.ready(fresh)
