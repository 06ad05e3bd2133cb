"""The cause of an action, taken out of the world, takes the action out of the plan."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from engine.documents import Desired
from engine.load import LoadCache, load
from engine.load.cluster import foreign_documents
from engine.model import actions as act
from engine.model.actions import AnyAction, kind_of
from engine.model.causes import Cause, CauseKind
from engine.model.plan import Plan
from engine.observe.observed import observe
from engine.plan import plan
from engine.simulate import SimulatedServer
from tests import forecast_cases as cases
from tests.reference_cluster import ReferenceCluster
from tests.simworld import A2, START

Json = dict[str, Any]
_READ = LoadCache()
JUDGED = (
    act.EvictPod,
    act.IsolateChip,
    act.IsolateNode,
    act.ResetChips,
    act.CreateObject,
    act.PatchObject,
    act.BindPod,
)


def world_with_trouble(chance: random.Random, seed: int) -> tuple[list[Json], dict[str, bytes], float]:
    """The objects of a cluster at rest, on which something has just happened."""
    servers = [SimulatedServer(f"node-{number}", labels=A2) for number in range(3)]
    cluster = ReferenceCluster(servers, now=START, seed=seed)
    try:
        tree: cases.Tree = {"policies/budget.yaml": cases.budget(random.Random(1))}
        for number in range(3):
            path, body = chance.choice((cases.ascend_job, cases.deployment))(chance, f"job-{number}")
            body["metadata"]["labels"]["fault-scheduling"] = "force"
            tree[path] = body
        cluster.push(cases.files_of(tree))
        cluster.until_quiet()
        cluster.now += 61.0
        for server in servers:
            cluster.report(server)
        chance.choice(TROUBLES)(chance, cluster, tree)
        cluster.now += 61.0 if chance.random() < 0.5 else 0.0
        return copy.deepcopy(cluster.items()), cases.files_of(tree), cluster.now
    finally:
        cluster.close()


def fault(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> None:
    server = cluster.servers[f"node-{chance.randrange(3)}"]
    server.faults[chance.randrange(8)] = {"80C98001": (int(cluster.now * 1000), "RestartNPU")}
    cluster.report(server)


def policy(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> None:
    """A code that the tables ignore, which a policy makes a fault."""
    server = cluster.servers[f"node-{chance.randrange(3)}"]
    server.faults[chance.randrange(8)] = {"80E18402": (int(cluster.now * 1000), "NotHandleFault")}
    cluster.report(server)
    tree["policies/faults.yaml"] = cases._belay("FaultPolicy", "strict", {"levels": {"80E18402": "SeparateNPU"}})


def silence(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> None:
    cluster.readiness(cluster.servers[f"node-{chance.randrange(3)}"], False)


def isolate(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> None:
    tree["policies/isolation.yaml"] = cases.isolation(chance)


def commit(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> None:
    chance.choice((cases.add_job, cases.other_image, cases.relabel))(chance, tree)


TROUBLES: tuple[Callable[[random.Random, ReferenceCluster, cases.Tree], None], ...] = (
    fault, fault, policy, silence, isolate, commit,
)  # fmt: skip


def planned(items: list[Json], files: dict[str, bytes], now: float, without: str = "") -> Plan:
    loaded = load(files, revision="c1", cache=_READ, foreign=foreign_documents(items))
    return plan(_without_document(loaded.desired, without), observe(items), now)


def _without_document(desired: Desired, subject: str) -> Desired:
    kind, _, rest = subject.partition("/")
    if kind == "Isolation":
        kept = tuple(one for one in desired.isolations if one.document.name != rest)
        return dataclasses.replace(desired, isolations=kept)
    if kind == "FaultPolicy":
        policies = tuple(one for one in desired.fault_policies if one.document.name != rest)
        return dataclasses.replace(desired, fault_policies=policies)
    manifests = tuple(
        one for one in desired.manifests if not _names(subject, one.key.kind, one.key.namespace, one.key.name)
    )
    return dataclasses.replace(desired, manifests=manifests)


def _names(subject: str, kind: str, namespace: str, name: str) -> bool:
    return subject in ("/".join(part for part in (kind, namespace, name) if part), f"{kind}/{name}")


def _clean_report(item: Json) -> Json:
    """A device report without any fault, of the same chips."""
    import json

    from engine.wire import deviceinfo

    body = json.loads(item["data"]["DeviceInfoCfg"])["DeviceInfo"]
    rows = body["DeviceList"]
    resource = next(key for key in rows if "-" not in key.rpartition("/")[2])
    bad = [one for one in rows[f"{resource}-Unhealthy"].split(",") if one]
    free = [one for one in rows[resource].split(",") if one]
    fresh = dict.fromkeys(rows, "") | {resource: ",".join(sorted({*free, *bad})), f"{resource}-Fault": "[]"}
    node = item["metadata"]["name"].removeprefix("mindx-dl-deviceinfo-")
    return deviceinfo.build(node, device_list=fresh, update_time=body["UpdateTime"], super_pod_id=-2, server_index=-2)


def taken_out(items: list[Json], cause: Cause) -> list[Json]:
    """The world without one cause that is no document."""
    found = []
    for item in copy.deepcopy(items):
        metadata = item["metadata"]
        if not _names(cause.subject, item["kind"], str(metadata.get("namespace") or ""), metadata["name"]):
            found.append(item)
        elif cause.kind is CauseKind.CONDITION:
            for row in item["status"]["conditions"]:
                row["status"] = "True"
            found.append(item)
        elif cause.kind is CauseKind.REPORT:
            found.append(_clean_report(item))
    return found


def same(one: AnyAction, other: AnyAction) -> bool:
    """Whether two actions do the same to the same thing."""
    fields = ("node", "chips", "namespace", "pod", "name", "object_kind")
    return kind_of(one) == kind_of(other) and all(getattr(one, f, None) == getattr(other, f, None) for f in fields)


@pytest.mark.parametrize("seed", range(18))
def test_a_cause_taken_out_of_the_world_takes_its_action_out_of_the_plan(seed: int) -> None:
    chance = random.Random(f"causes/{seed}")
    items, files, now = world_with_trouble(chance, seed)
    first = planned(items, files, now)
    judged = [action for action in first.actions if isinstance(action, JUDGED)]
    for action in judged:
        cause = action.evidence.cause
        assert isinstance(cause, Cause), action
        left, gone = items, ""
        for one in (cause, *cause.also):
            if one.kind is CauseKind.DOCUMENT:
                gone = one.subject
            else:
                left = taken_out(left, one)
        after = planned(left, files, now, gone)
        assert not any(same(action, other) for other in after.actions), f"{cause.text}: {action}"


def test_every_action_has_a_cause() -> None:
    for seed in range(6):
        items, files, now = world_with_trouble(random.Random(seed), seed)
        result = planned(items, files, now)
        for action in (*result.actions, *(row.action for row in result.deferred)):
            assert isinstance(action.evidence.cause, Cause) and action.evidence.cause.subject, action
