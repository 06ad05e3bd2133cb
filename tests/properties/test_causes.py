"""The cause of an action, taken out of the world, takes the action out of the plan."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from belay.engine.documents import Desired
from belay.engine.load import LoadCache, load
from belay.engine.load.cluster import foreign_documents
from belay.engine.model import actions as act
from belay.engine.model.actions import AnyAction, kind_of
from belay.engine.model.causes import Cause, CauseKind
from belay.engine.model.history import History
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.simulate import SimulatedServer
from tests import forecast_cases as cases
from tests import test_preempt as preempting
from tests import test_vnpu_layout as layouts
from tests import worlds
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


class Moment(NamedTuple):
    """The objects of a cluster, the files of its repository, and the time."""

    items: list[Json]
    files: dict[str, bytes]
    now: float


def world_with_trouble(chance: random.Random, seed: int, troubles: Sequence[Trouble] = ()) -> tuple[Moment, Moment]:
    """A cluster at rest, on which something has just happened: before that, and now."""
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
        before = chance.choice(troubles or TROUBLES)(chance, cluster, tree) or at_rest(cluster, tree)
        cluster.now += 61.0 if chance.random() < 0.5 else 0.0
        return before, at_rest(cluster, tree)
    finally:
        cluster.close()


def at_rest(cluster: ReferenceCluster, tree: cases.Tree) -> Moment:
    return Moment(copy.deepcopy(cluster.items()), cases.files_of(tree), cluster.now)


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


def heal(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> Moment:
    """A fault that no reset mends, on a chip or as the node's, and then its end."""
    server = cluster.servers[f"node-{chance.randrange(3)}"]
    chip = chance.randrange(8)
    server.faults[chip] = {"80C98003": (int(cluster.now * 1000), "ManuallySeparateNPU")}
    cluster.report(server)
    cluster.until_quiet()
    before = at_rest(cluster, tree)
    server.faults.pop(chip)
    cluster.report(server)
    return before


def give_back(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> Moment:
    """An Isolation of a node or of chips, until all is quiet, and then its end."""
    isolate(chance, cluster, tree)
    cluster.push(cases.files_of(tree))
    cluster.until_quiet()
    before = at_rest(cluster, tree)
    del tree["policies/isolation.yaml"]
    return before


def loosen(chance: random.Random, cluster: ReferenceCluster, tree: cases.Tree) -> Moment:
    """A policy that makes a code a fault, or none, and its change while the code is still reported."""
    server = cluster.servers[f"node-{chance.randrange(3)}"]
    stricter = chance.random() < 0.5
    code, level = ("80E18402", "NotHandleFault") if stricter else ("80C98003", "SeparateNPU")
    server.faults[chance.randrange(8)] = {code: (int(cluster.now * 1000), level)}
    cluster.report(server)
    if stricter:
        tree["policies/faults.yaml"] = cases._belay("FaultPolicy", "strict", {"levels": {code: "SeparateNPU"}})
    cluster.push(cases.files_of(tree))
    cluster.until_quiet()
    before = at_rest(cluster, tree)
    if stricter and chance.random() < 0.5:
        del tree["policies/faults.yaml"]
    else:
        levels = {code: "NotHandleFault"}
        tree["policies/faults.yaml"] = cases._belay("FaultPolicy", "strict", {"levels": levels})
    return before


Trouble = Callable[[random.Random, ReferenceCluster, cases.Tree], Moment | None]
TROUBLES: tuple[Trouble, ...] = (fault, fault, policy, silence, isolate, commit)
ENDS: tuple[Trouble, ...] = (heal, give_back, loosen)


def planned(
    items: list[Json], files: dict[str, bytes], now: float, without: str = "", history: History | None = None
) -> Plan:
    """The plan of a moment; with the ``history`` of a pass whose actions did not come to be."""
    loaded = load(files, revision="c1", cache=_READ, foreign=foreign_documents(items))
    seen = observe(items)
    if history is not None:
        seen = msgspec.structs.replace(seen, history=history)
    return plan(_without_document(loaded.desired, without), seen, now)


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

    from belay.engine.wire import deviceinfo

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


def put_back(now: Moment, before: Moment, cause: Cause) -> Moment:
    """The world with what a release says has ended: the document, or the reports as they were."""
    if cause.kind is CauseKind.DOCUMENT:
        return now._replace(files=before.files)
    old = {(item["kind"], item["metadata"]["name"]): item for item in before.items}
    items = [
        old.get((item["kind"], item["metadata"]["name"]), item)
        if _names(cause.subject, item["kind"], str(item["metadata"].get("namespace") or ""), item["metadata"]["name"])
        else item
        for item in now.items
    ]
    return now._replace(items=items)


def releases(result: Plan) -> list[act.ReleaseChip | act.ReleaseNode]:
    return [action for action in result.actions if isinstance(action, act.ReleaseChip | act.ReleaseNode)]


@pytest.mark.parametrize("seed", range(12))
def test_the_cause_of_a_release_put_back_takes_it_out_of_the_plan(seed: int) -> None:
    before, now = world_with_trouble(random.Random(f"ends/{seed}"), seed, ENDS[seed % 3 :][:1])
    first = planned(now.items, now.files, now.now)
    released = releases(first)
    assert released
    second = releases(planned(now.items, now.files, now.now + 10, history=first.history))
    assert [one.evidence.cause for one in second] == [one.evidence.cause for one in released], "a pass later"
    for action in released:
        cause = action.evidence.cause
        assert isinstance(cause, Cause)
        again = now
        assert (cause.kind is CauseKind.REPORT) == (ENDS[seed % 3] is heal), cause.text
        for one in (cause, *cause.also):
            again = put_back(again, before, one)
        after = planned(again.items, again.files, again.now)
        assert not any(same(action, other) for other in after.actions), f"{cause.text}: {action}"


@pytest.mark.parametrize("seed", range(18))
def test_a_cause_taken_out_of_the_world_takes_its_action_out_of_the_plan(seed: int) -> None:
    chance = random.Random(f"causes/{seed}")
    _, (items, files, now) = world_with_trouble(chance, seed)
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
        _, (items, files, now) = world_with_trouble(random.Random(seed), seed)
        result = planned(items, files, now)
        for action in (*result.actions, *(row.action for row in result.deferred)):
            assert isinstance(action.evidence.cause, Cause) and action.evidence.cause.subject, action


@pytest.mark.parametrize("seed", range(8))
def test_without_the_job_that_goes_first_nothing_is_preempted(seed: int) -> None:
    chance = random.Random(f"preempted/{seed}")
    lower = [
        preempting.running(f"low{number}", [(f"n{number}", range(chance.choice((4, 8))))], priorityClassName="low")
        for number in range(2)
    ]
    wanting = preempting.wanting(count=chance.choice((1, 2)))

    def evictions(*gangs: Any) -> list[act.EvictPod]:
        objects = [group for _, group in gangs]
        pods = [pod for rows, _ in gangs for pod in rows]
        world = worlds.world(2, pods=pods, objects=[*objects, *preempting.CLASSES])
        found = plan(preempting.allowing(), world, worlds.NOW).actions
        return [action for action in found if isinstance(action, act.EvictPod)]

    evicted = evictions(*lower, wanting)
    assert evicted
    for action in evicted:
        cause = action.evidence.cause
        assert isinstance(cause, Cause) and cause.kind is CauseKind.DECISION
        assert cause.subject == "PodGroup/train/want"
    assert not evictions(*lower), "the job of the cause is taken out"


@pytest.mark.parametrize("seed", range(8))
def test_without_its_layout_or_with_the_lost_one_no_chip_is_cut(seed: int) -> None:
    chance = random.Random(f"cut/{seed}")
    templates = chance.choice(("[vir04, vir02_1c]", "[vir01]", "[vir02, vir02, vir02]"))
    standing = [(100 + n, name, "") for n, name in enumerate(chance.sample(("vir01", "vir02", "vir04"), 2))]
    cluster = layouts.cluster(*standing, done=1, orders=layouts.standing(templates=tuple(t for _, t, _ in standing)))
    declared, gone = layouts.declared(templates), load({}, revision="c1").desired

    for wanted, without in ((declared, gone), (gone, declared)):
        (cut,) = layouts.cuts(plan(wanted, cluster, worlds.NOW))
        cause = cut.evidence.cause
        assert isinstance(cause, Cause) and cause.kind is CauseKind.DOCUMENT
        assert cause.subject == ("VNPULayout/a" if wanted is declared else "VNPULayout")
        after = layouts.cuts(plan(without, cluster, worlds.NOW))
        assert not any(one.templates == cut.templates for one in after), "the layout is taken out, or put back"
