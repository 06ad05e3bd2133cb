"""The narrative of a node that dies under a job, for each way of rescheduling: one eviction, and the job runs again."""

from __future__ import annotations

from collections import Counter

import pytest

from belay.engine.model.actions import EvictPod, kind_of
from tests.golden.stories import compare, sample_files
from tests.simworld import A2, Node, World

JOB = """\
apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata:
  name: llm
  namespace: train
  labels: {{framework: pytorch, fault-scheduling: {mode}}}
spec:
  schedulerName: volcano
  runPolicy: {{schedulingPolicy: {{minAvailable: {least}, queue: default}}}}
  successPolicy: AllWorkers
  replicaSpecs:
    Master: &replica
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          terminationGracePeriodSeconds: 30
          nodeSelector: {{host-arch: huawei-arm, accelerator-type: module-910b-8}}
          containers:
            - name: ascend
              image: registry.example.org/train:1
              resources: {{requests: {{huawei.com/Ascend910: 8}}, limits: {{huawei.com/Ascend910: 8}}}}
    Worker: *replica
"""


def started(mode: str, *, least: int = 2) -> World:
    """Four servers whose kubelets die with them, and a job of two pods that runs."""
    files = {path: data for path, data in sample_files().items() if "/pools/" in path or "budget" in path}
    nodes = [Node(f"node-{i}", labels=A2) for i in range(1, 5)]
    world = World(files | {"desired/llm.yaml": JOB.format(mode=mode, least=least).encode()}, nodes)
    world.kubelets_die = True
    world.until_quiet()
    return world


def home(world: World, pod: str) -> str:
    return next(str(p["spec"].get("nodeName")) for key, p in world.objects.items() if key.name == pod)


def played(world: World, seconds: int) -> Counter[str]:
    """Passes every two seconds; what was done, by kind, and the story that the world shows."""
    began, counts = world.now, Counter[str]()
    while world.now - began < seconds:
        result = world.step()
        for action in result.actions:
            counts[kind_of(action)] += 1
            world.story.append(f"{world.now - began:4.0f} s {kind_of(action)} {action.message}")
        world.pass_time(2)
    return counts


@pytest.mark.parametrize("mode", ["grace", "force"])
@pytest.mark.parametrize("state", ["not-ready", "gone"])
def test_a_dead_node_costs_its_job_one_restart(mode: str, state: str, request: pytest.FixtureRequest) -> None:
    world = started(mode)
    world.story.clear()
    lost = world.nodes[home(world, "llm-worker-0")]
    if state == "gone":
        world.remove(lost)
    else:
        world.readiness(lost, False)
    counts = played(world, 1000)
    pods = {key.name: pod for key, pod in world.objects.items() if key.kind == "Pod"}
    assert {pod["status"]["phase"] for pod in pods.values()} == {"Running"}
    assert lost.name not in {pod["spec"]["nodeName"] for pod in pods.values()}
    # one deletion more where grace runs out on a node that cannot confirm the first
    assert counts["EvictPod"] <= 3 and counts["CreatePod"] == counts["BindPod"] == 2, counts
    assert world.spent("EvictPod", 2000) == 1, "a gang that goes whole, in one go, is one unit"
    compare(f"dead-node-{state}-{mode}", world.story, request.config.getoption("--update-golden"))


def test_a_job_that_runs_on_with_fewer_pods_is_not_restarted_again_for_a_pod_that_cannot_end() -> None:
    """Its new pods run beside the old one, which terminates on the dead node until its grace time is over."""
    world = started("grace", least=1)
    world.readiness(world.nodes[home(world, "llm-worker-0")], False)
    counts = played(world, 800)
    assert counts["EvictPod"] == 2 and counts["CreatePod"] <= 2, counts


def test_each_restart_by_a_further_dead_node_is_a_unit_of_its_own() -> None:
    world = started("force")
    for dead in range(2):
        world.readiness(world.nodes[home(world, "llm-worker-0")], False)
        played(world, 200)
        assert world.spent("EvictPod", 10_000) == dead + 1
    spent = [row for rows in world.plan().history.budgets.values() for row in rows if row[1].endswith("/llm")]
    assert len({at for at, _, _ in spent}) == 2, "the budgets counted both"


def test_a_hit_pod_that_others_delete_already_takes_its_job_once() -> None:
    """As the taint manager does on a node that is not ready: Belay did not ask for that deletion."""
    world = started("grace")
    lost = world.nodes[home(world, "llm-worker-0")]
    world.readiness(lost, False)
    key = next(key for key in world.objects if key.name == "llm-worker-0")
    world.apply(EvictPod(reason="Taint", message="by the taint manager", namespace=key.namespace, pod=key.name,
                         grace_period_seconds=30, force=False, owner=None, budget_unit="other"))  # fmt: skip
    counts = played(world, 700)
    assert counts["EvictPod"] == 1 and counts["CreatePod"] <= 1, counts
