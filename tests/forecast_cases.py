"""Random pairs of a cluster and a change of its repository; what `belay plan` foretells against what then happens.

One seed, one case: a reference cluster comes to rest under a repository, the repository changes, the forecast is made
from a list of the cluster's objects, and the cluster runs on. Both must agree on which jobs run where, which wait and
why, and which running pods went.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from belay.engine.cli.forecast import Forecast, forecast
from belay.engine.documents import Desired
from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.load import LoadCache, load
from belay.engine.load.cluster import foreign_documents
from belay.engine.model.cluster import Observed
from belay.engine.model.plan import Plan
from belay.engine.model.plan_cache import PlanCache
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay.offline import every_role, in_force, newest
from belay.engine.simulate import SimulatedServer
from tests.reference_cluster import ReferenceCluster
from tests.simworld import A2, INFER, START

Json = dict[str, Any]
Tree = dict[str, Json]
_READ = LoadCache()
TRAINING, INFERENCE = "huawei.com/Ascend910", "huawei.com/Ascend310P"
CHANGES_A_CLUSTER = 5
"""Cases that begin with the same cluster at rest, each with a change of its own."""
FIRST_REST = 3
"""Idle passes after which a cluster is ground for a forecast: what still comes, both sides see come."""
ORDERS = 6
"""Orders in which kubelets, controllers and agents may move; the forecast must be what happens in one of them, as in
real clusters a second decides which of two pods is placed first."""
LEFT_OUT = ("ReplicaSet", "ControllerRevision", "CustomResourceDefinition")
"""Kinds that `kubectl get nodes,pods,configmaps,acjob,deployments,...` seldom lists."""


class Ran(NamedTuple):
    """What became of the jobs: chips by node of each that runs, the reason of each that waits, and pods that went."""

    places: dict[str, dict[str, int]]
    waits: dict[str, str]
    went: frozenset[str]


def case(seed: int) -> None:
    """Run one case; raises AssertionError with the difference."""
    chance, number = random.Random(f"forecast/{seed}"), seed // CHANGES_A_CLUSTER
    rested = _rested(number)
    if rested is None:
        return  # a first state that never rests is no ground for a forecast

    cluster = rested.cluster.fork(seed)
    try:
        cluster.now += chance.choice((61.0, 700.0, 4000.0))
        for server in cluster.servers.values():
            cluster.report(server)
        trouble(chance, cluster)
        _compare(chance, cluster, changed(chance, rested.tree))
    finally:
        cluster.close()


class Rested(NamedTuple):
    """A cluster that has come to rest under a repository."""

    cluster: ReferenceCluster
    tree: Tree


@lru_cache(maxsize=1)
def _rested(number: int) -> Rested | None:
    """The cluster of so many a number, for several cases after each other; None where it never rests."""
    chance = random.Random(f"forecast/cluster/{number}")
    servers = [SimulatedServer(f"node-{number}", labels=A2) for number in range(chance.randint(1, 4))]
    servers += [SimulatedServer(f"card-{n}", kind="Ascend310P", labels=INFER) for n in range(chance.randint(0, 2))]
    cluster = ReferenceCluster(servers, now=START, seed=number)
    tree = repository(chance)
    try:
        cluster.push(files_of(tree))
        return Rested(cluster, tree) if cluster.until_quiet(rest=FIRST_REST) else None
    finally:
        cluster.close()  # what is forked from it has a loop of its own


def _compare(chance: random.Random, cluster: ReferenceCluster, tree: Tree) -> None:
    items = [copy.deepcopy(item) for item in cluster.items()]
    if chance.random() < 0.5:
        items = [item for item in items if item["kind"] not in LEFT_OUT]
    first, desired, before = planned(items, files_of(tree), cluster.now)
    foretold = forecast(first, desired, items)
    assert foretold is not None

    problems = []
    for order in range(ORDERS):
        future = cluster.fork(order)
        try:
            future.push(files_of(tree))
            _agrees(foretold, future, before)
            return
        except AssertionError as error:
            problems.append(error)
        finally:
            future.close()
    raise problems[0]


def _agrees(foretold: Forecast, future: ReferenceCluster, before: Observed) -> None:
    rested = future.until_quiet()
    if not rested or foretold.ended != "quiet":
        assert rested == (foretold.ended == "quiet"), f"one came to rest, the other did not: {foretold.ended}"
        return
    assert future.last is not None
    happened = outcome(before, future.observed(), future.last)
    assert_same(foretold, happened, outcome(before, before, None))


def planned(items: list[Json], files: dict[str, bytes], now: float) -> tuple[Plan, Desired, Observed]:
    """The first plan, as `belay plan` makes it from these objects."""
    loaded = load(files, foreign=foreign_documents(items), before=in_force(items), cache=_READ)
    desired, observed = every_role(loaded.desired), observe(newest(items))
    return plan(desired, observed, now), desired, observed


def outcome(before: Observed, after: Observed, last: Plan | None) -> Ran:
    """What became of jobs between two snapshots."""
    gangs, _ = group(after, PlanCache())
    places: dict[str, dict[str, int]] = {}
    for key, gang in gangs.items():
        for pod in (after.pods[one] for one in gang.pods if one in after.pods):
            if pod.node and pod.deleting is None and pod.chips:
                here = places.setdefault(key, {})
                here[pod.node] = here.get(pod.node, 0) + len(pod.chips)
    waits = pending_by_gang(last.pending, gangs) if last is not None else {}
    alive = {pod.uid for pod in after.pods.values() if pod.deleting is None}
    went = frozenset(
        pod.key
        for pod in before.pods.values()
        if pod.chips and pod.holds_chips and pod.deleting is None and pod.uid not in alive
    )
    return Ran(places, {key: row.reason for key, row in waits.items()}, went)


def assert_same(foretold: Forecast, happened: Ran, start: Ran) -> None:
    """The forecast names every job that changed, with its places and reasons, and every pod that went."""
    told = {f"{job.namespace}/{job.kind}/{job.name}": job for job in foretold.jobs}
    waits = {key: job.reason for key, job in told.items() if job.outcome == "waiting"}
    assert waits == happened.waits, f"waiting: foretold {waits}, happened {happened.waits}"

    gone = {f"{one.namespace}/{one.pod}" for one in foretold.evicted}
    first = {key for key in gone if key in _names(start, foretold) or key in happened.went}
    assert first == happened.went, f"went: foretold {sorted(first)}, happened {sorted(happened.went)}"

    for key in sorted({*told, *happened.places, *start.places}):
        here = happened.places.get(key, {})
        there = _places(told[key].nodes) if key in told else None
        if there is None and not any(pod.startswith(_pods_of(key)) for pod in happened.went):
            assert here == start.places.get(key, {}), f"{key} is not foretold, and moved to {here}"
        elif there is not None:
            assert there == here, f"{key}: foretold on {there}, happened on {here}"


def _names(start: Ran, foretold: Forecast) -> set[str]:
    """Pods that ran at the start, by what the forecast says of the time at which they go."""
    return {f"{one.namespace}/{one.pod}" for one in foretold.evicted} & set(start.went)


def _places(nodes: dict[str, list[str]]) -> dict[str, int]:
    return {node: len(chips) for node, chips in nodes.items() if chips}


def _pods_of(key: str) -> str:
    namespace, _, name = key.split("/", 2)
    return f"{namespace}/{name}-"


# repositories


def files_of(tree: Tree) -> dict[str, bytes]:
    """The files of a repository of one document a file."""
    return {path: json.dumps(body).encode() for path, body in tree.items()}


def repository(chance: random.Random) -> Tree:
    """A repository of a few jobs of every kind; its budget lets a change through at once."""
    tree: Tree = {"policies/budget.yaml": budget(chance)}
    for number in range(chance.randint(1, 5)):
        path, body = chance.choice(JOBS)(chance, f"job-{number}")
        tree[path] = body
    if chance.random() < 0.15:
        tree["policies/isolation.yaml"] = isolation(chance)
    return tree


def changed(chance: random.Random, tree: Tree) -> Tree:
    """The repository after a commit."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        chance.choice(CHANGES)(chance, tree)
    return tree


def budget(chance: random.Random) -> Json:
    most = chance.choice((1, 40, 40, 40))
    limits = [
        {"actions": ["EvictPod"], "per": "cluster", "max": most, "window": "10m"},
        {"actions": ["DeleteObject"], "per": "cluster", "max": 40, "window": "1h"},
    ]
    return _belay("SafetyBudget", "default", {"limits": limits})


def isolation(chance: random.Random) -> Json:
    node = f"node-{chance.randrange(2)}"
    spec = (
        {"nodes": [node]}
        if chance.random() < 0.5
        else {"chips": [{"node": node, "chips": sorted(chance.sample(range(8), 3))}]}
    )
    return _belay("Isolation", "service", {**spec, "reason": "service"})


def _belay(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _pod(chance: random.Random, resource: str, count: int) -> Json:
    labels = {"host-arch": "huawei-arm"}
    if resource == TRAINING:
        labels["accelerator-type"] = "module-910b-8"
    amounts = {resource: count, **({"cpu": chance.choice((1, 40))} if chance.random() < 0.3 else {})}
    container = {
        "name": "ascend",
        "image": "serve:1",
        "env": [{"name": "LEVEL", "value": "1"}],
        "resources": {"limits": amounts, "requests": dict(amounts)},
    }
    return {
        "schedulerName": "volcano",
        "nodeSelector": labels,
        "terminationGracePeriodSeconds": chance.choice((0, 5, 30)),
        "containers": [container],
    }


def _request(chance: random.Random) -> tuple[str, int]:
    return chance.choice(((TRAINING, chance.choice((1, 2, 4, 8))), (INFERENCE, chance.choice((1, 1, 2, 4)))))


def _labels(name: str, resource: str) -> dict[str, str]:
    return {"app": name, "ring-controller.atlas": "ascend-910b" if resource == TRAINING else "ascend-310P"}


def deployment(chance: random.Random, name: str) -> tuple[str, Json]:
    resource, count = _request(chance)
    labels = _labels(name, resource)
    template = {"metadata": {"labels": {**labels, **_faults(chance)}}, "spec": _pod(chance, resource, count)}
    spec: Json = {
        "replicas": chance.randint(0, 4),
        "selector": {"matchLabels": {"app": name}},
        "template": template,
    }
    style = chance.choice(("default", "recreate", "numbers"))
    if style == "recreate":
        spec["strategy"] = {"type": "Recreate"}
    elif style == "numbers":
        surge, unavailable = chance.choice(((1, 0), (0, 1), (2, 1), ("50%", "50%"), (0, "100%")))
        rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
    return _manifest("apps/v1", "Deployment", name, labels, spec)


def stateful_set(chance: random.Random, name: str) -> tuple[str, Json]:
    resource, count = _request(chance)
    labels = _labels(name, resource)
    template = {"metadata": {"labels": {**labels, **_faults(chance)}}, "spec": _pod(chance, resource, count)}
    spec: Json = {
        "replicas": chance.randint(0, 3),
        "serviceName": name,
        "selector": {"matchLabels": {"app": name}},
        "podManagementPolicy": chance.choice(("OrderedReady", "Parallel")),
        "template": template,
    }
    if chance.random() < 0.2:
        spec["updateStrategy"] = chance.choice(
            ({"type": "OnDelete"}, {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}})
        )
    return _manifest("apps/v1", "StatefulSet", name, labels, spec)


def ascend_job(chance: random.Random, name: str) -> tuple[str, Json]:
    count = chance.choice((1, 4, 8, 8))
    workers = chance.randint(0, 2) if count == 8 else 0
    labels = {"framework": "pytorch", "ring-controller.atlas": "ascend-910b", **_faults(chance)}
    pod = _pod(chance, TRAINING, count)
    pod.pop("schedulerName")

    def replica(number: int) -> Json:
        template = {"metadata": {"labels": {"ring-controller.atlas": "ascend-910b"}}, "spec": copy.deepcopy(pod)}
        return {"replicas": number, "restartPolicy": "Never", "template": template}

    spec = {
        "schedulerName": "volcano",
        "runPolicy": {"schedulingPolicy": {"minAvailable": 1 + workers, "queue": "default"}},
        "successPolicy": "AllWorkers",
        "replicaSpecs": {"Master": replica(1), **({"Worker": replica(workers)} if workers else {})},
    }
    return _manifest("mindxdl.gitee.com/v1", "AscendJob", name, labels, spec)


def volcano_job(chance: random.Random, name: str) -> tuple[str, Json]:
    count = chance.choice((2, 8))
    labels = {"ring-controller.atlas": "ascend-910b", **_faults(chance)}
    size = chance.randint(1, 2) if count == 8 else 1
    template = {"metadata": {"labels": labels}, "spec": {**_pod(chance, TRAINING, count), "restartPolicy": "Never"}}
    spec = {
        "minAvailable": size,
        "schedulerName": "volcano",
        "queue": "default",
        "tasks": [{"name": "default-test", "replicas": size, "template": template}],
    }
    return _manifest("batch.volcano.sh/v1alpha1", "Job", name, labels, spec)


def _faults(chance: random.Random) -> dict[str, str]:
    return {"fault-scheduling": chance.choice(("grace", "force"))} if chance.random() < 0.7 else {}


def _manifest(api: str, kind: str, name: str, labels: dict[str, str], spec: Json) -> tuple[str, Json]:
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return f"desired/{name}.yaml", {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


JOBS: tuple[Callable[[random.Random, str], tuple[str, Json]], ...] = (
    deployment, deployment, stateful_set, ascend_job, ascend_job, volcano_job,
)  # fmt: skip


# changes


def _jobs(tree: Tree) -> list[str]:
    return sorted(path for path in tree if path.startswith("desired/"))


def _some_job(chance: random.Random, tree: Tree) -> Json | None:
    paths = _jobs(tree)
    return tree[chance.choice(paths)] if paths else None


def _templates(spec: Json) -> list[Json]:
    if "replicaSpecs" in spec:
        return [one["template"] for one in spec["replicaSpecs"].values()]
    return [one["template"] for one in spec.get("tasks", [spec])]


def add_job(chance: random.Random, tree: Tree) -> None:
    path, body = chance.choice(JOBS)(chance, f"new-{chance.randrange(100)}")
    tree[path] = body


def remove_job(chance: random.Random, tree: Tree) -> None:
    paths = _jobs(tree)
    if len(paths) > 1:
        del tree[chance.choice(paths)]


def resize(chance: random.Random, tree: Tree) -> None:
    body = _some_job(chance, tree)
    if body is not None and body["apiVersion"] == "apps/v1":
        body["spec"]["replicas"] = chance.randint(0, 5)


def other_image(chance: random.Random, tree: Tree) -> None:
    body = _some_job(chance, tree)
    for template in _templates(body["spec"]) if body else ():
        template["spec"]["containers"][0]["image"] = "serve:2"


def other_chips(chance: random.Random, tree: Tree) -> None:
    body = _some_job(chance, tree)
    count = chance.choice((1, 2, 4, 8, 16))
    for template in _templates(body["spec"]) if body else ():
        for amounts in template["spec"]["containers"][0]["resources"].values():
            for resource in (TRAINING, INFERENCE):
                if resource in amounts:
                    amounts[resource] = count


def fewer_fields(chance: random.Random, tree: Tree) -> None:
    """Take something out of a template."""
    body = _some_job(chance, tree)
    for template in _templates(body["spec"]) if body else ():
        spec = template["spec"]
        chance_of_one = chance.choice(("env", "nodeSelector", "terminationGracePeriodSeconds", "cpu"))
        if chance_of_one == "env":
            spec["containers"][0].pop("env", None)
        elif chance_of_one == "cpu":
            for amounts in spec["containers"][0]["resources"].values():
                amounts.pop("cpu", None)
        else:
            spec.pop(chance_of_one, None)


def other_nodes(chance: random.Random, tree: Tree) -> None:
    body = _some_job(chance, tree)
    node = f"node-{chance.randrange(3)}"
    for template in _templates(body["spec"]) if body else ():
        template["spec"].setdefault("nodeSelector", {})["kubernetes.io/hostname"] = node


def isolate(chance: random.Random, tree: Tree) -> None:
    if "policies/isolation.yaml" in tree:
        del tree["policies/isolation.yaml"]
    else:
        tree["policies/isolation.yaml"] = isolation(chance)


def relabel(chance: random.Random, tree: Tree) -> None:
    """A change that touches no template."""
    body = _some_job(chance, tree)
    if body is not None:
        body["metadata"]["labels"]["team"] = chance.choice("abc")


CHANGES: tuple[Callable[[random.Random, Tree], None], ...] = (
    add_job, add_job, remove_job, resize, resize, other_image, other_image, other_chips, other_chips, fewer_fields,
    other_nodes, isolate, relabel,
)  # fmt: skip


def trouble(chance: random.Random, cluster: ReferenceCluster) -> None:
    """Sometimes a node or chip is not well when the change comes."""
    kind = chance.choice(("none", "none", "none", "fault", "not ready"))
    server = chance.choice(sorted(cluster.servers.values(), key=lambda one: one.name))
    if kind == "fault":
        chip = chance.choice(server.ids)
        code, level = chance.choice((("80C98001", "RestartNPU"), ("80DF8402", "SeparateNPU")))
        server.faults.setdefault(chip, {})[code] = (int(cluster.now * 1000), level)
        cluster.report(server)
    elif kind == "not ready":
        cluster.readiness(server, False)


__all__ = ["case"]
