"""Tidal scheduling: inference grows into training's chips and gives them back, by preemption and by reclaim.

The objects are those of docs/zh/scheduling/04_usage/10_tidal_scheduling of MindCluster.
"""

from __future__ import annotations

import copy

import pytest
import yaml

from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.diagnostics import ObjectKey
from tests.golden.stories import compare
from tests.simworld import A2, Node, World

CONF = """
actions: "allocate, {action}, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    {switch}: false
configurations:
- name: init-params
  arguments: {{"prefer-previous-node": "true"}}
"""
CLASSES = """
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: inference-high}
value: 1000
preemptionPolicy: PreemptLowerPriority
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: training-low}
value: 100
preemptionPolicy: Never
"""
QUEUES = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: inference}
spec: {weight: 1, reclaimable: false}
status: {state: Open}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: default}
spec: {weight: 1, reclaimable: true}
status: {state: Open}
"""
TRAINING = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata:
  name: train-job
  namespace: default
  labels: {fault-scheduling: grace}
  annotations: {huawei.com/schedule_policy: chip8-node8}
spec:
  queue: default
  schedulerName: volcano
  minAvailable: 2
  policies: [{event: PodEvicted, action: RestartJob}]
  tasks:
  - name: test
    replicas: 2
    template:
      spec:
        containers:
        - name: training
          image: ubuntu:22.04
          resources: {requests: {huawei.com/Ascend910: 8}, limits: {huawei.com/Ascend910: 8}}
"""
INFERENCE = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: inference-deploy, namespace: default, labels: {app: inference}}
spec:
  replicas: 0
  selector: {matchLabels: {app: inference}}
  template:
    metadata:
      labels: {app: inference}
      annotations: {huawei.com/schedule_policy: chip8-node8, huawei.com/schedule_minAvailable: "1"}
    spec:
      schedulerName: volcano
      containers:
      - name: inference
        image: ubuntu:22.04
        resources: {requests: {huawei.com/Ascend910: 8}, limits: {huawei.com/Ascend910: 8}}
"""
DEPLOYMENT = ObjectKey("apps/v1", "Deployment", "default", "inference-deploy")


def tide(variant: str, seed: int = 0) -> World:
    world = World({}, [Node(f"node-{i}", labels=A2) for i in (1, 2)], seed=seed)
    training, inference = yaml.safe_load(TRAINING), yaml.safe_load(INFERENCE)
    if variant == "preempt":
        for body in yaml.safe_load_all(CLASSES):
            world.put(body)
        training["spec"]["priorityClassName"] = "training-low"
        inference["spec"]["template"]["spec"]["priorityClassName"] = "inference-high"
    else:
        for body in yaml.safe_load_all(QUEUES):
            world.put(body)
        inference["spec"]["template"]["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] = "inference"
    switch = "enablePreemptable" if variant == "preempt" else "enableReclaimable"
    conf = {"volcano-scheduler.conf": CONF.format(action=variant, switch=switch)}
    meta = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
    world.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": conf})
    world.put(training)
    world.inference = inference  # type: ignore[attr-defined]
    return world


def scale(world: World, replicas: int) -> None:
    body = copy.deepcopy(world.objects.get(DEPLOYMENT, world.inference))  # type: ignore[attr-defined]
    body["spec"]["replicas"] = replicas
    world.put(body)
    for name, pod in list(world.pods().items())[:: -1 if replicas == 0 else 1]:
        if replicas == 0 and name.startswith("inference"):
            world.delete(ObjectKey("v1", "Pod", "default", pod["metadata"]["name"]))


def where(world: World, prefix: str) -> dict[str, str]:
    return {n: p["spec"].get("nodeName", "") for n, p in sorted(world.pods().items()) if n.startswith(prefix)}


@pytest.mark.parametrize("variant", ["preempt", "reclaim"])
def test_inference_takes_and_gives_back(variant: str, update_golden: bool) -> None:
    world = tide(variant)
    world.until_quiet()
    home = where(world, "train-job")
    assert sorted(home.values()) == ["node-1", "node-2"]
    world.story.clear()

    scale(world, 1)
    world.story.append("-- inference wants one node")
    plans = world.until_quiet()
    assert list(where(world, "inference").values()).count("") == 0
    assert set(where(world, "train-job").values()) == {""}, "the training job pends as a whole"
    evictions = [a for p in plans for a in p.actions if isinstance(a, EvictPod)]
    assert {a.budget_unit for a in evictions} == {"default/Job/train-job"}
    assert {a.reason for a in evictions} == {"Preempted" if variant == "preempt" else "Reclaimed"}

    scale(world, 2)
    world.story.append("-- inference wants two")
    plans = world.until_quiet()
    assert sorted(where(world, "inference").values()) == ["node-1", "node-2"]
    assert not any(isinstance(a, EvictPod) for p in plans for a in p.actions)

    scale(world, 0)
    world.story.append("-- inference goes to sleep")
    plans = world.until_quiet()
    assert where(world, "train-job") == home, "every rank returns to its node"
    assert any(isinstance(a, BindPod) for p in plans for a in p.actions)
    compare(f"tidal-{variant}", world.story, update_golden)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("variant", ["preempt", "reclaim"])
def test_in_any_order_and_with_lost_actions(variant: str, seed: int) -> None:
    world = tide(variant, seed)
    world.until_quiet(some=0.7)
    scale(world, 1)
    world.until_quiet(some=0.7, ceiling=60)
    assert "" not in where(world, "inference").values()
    scale(world, 0)
    world.until_quiet(some=0.7, ceiling=60)
    assert "" not in where(world, "train-job").values()


@pytest.mark.parametrize("variant", ["preempt", "reclaim"])
def test_without_the_action_no_pod_is_deleted(variant: str) -> None:
    world = tide(variant)
    key = ObjectKey("v1", "ConfigMap", "volcano-system", "volcano-scheduler-configmap")
    body = copy.deepcopy(world.objects[key])
    body["data"]["volcano-scheduler.conf"] = body["data"]["volcano-scheduler.conf"].replace(f"{variant}, ", "")
    world.put(body)
    world.until_quiet()
    scale(world, 1)
    world.until_quiet()
    assert "" in where(world, "inference").values() and "" not in where(world, "train-job").values()
