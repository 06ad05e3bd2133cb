"""Several shards, one status: each publishes its part, and ``belay-sync`` holds what all of them say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from belay.engine.documents import Desired
from belay.engine.kube import CONFIGMAP, NODE
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import ChipState, NodeState, Pending, Plan, PlaneLevels
from belay.engine.model.plan_cache import PlanCache
from belay.engine.model.refusals import RefusalCause, RefusalKey, ServerRefusal
from belay.engine.model.states import ChipHealth, NodeHealth
from belay.engine.observe.observed import observe
from belay.engine.observe.watch_events import essence, own_output
from belay.engine.plan import plan
from belay.engine.sandbox import definitions
from belay.engine.status import (
    ClusterInfo,
    StatusCondition,
    SyncState,
    memory_bodies,
    outdated_parts,
    status_bodies,
)
from belay.engine.status.shard_views import with_other_shards
from belay.engine.status.status_reader import PublishedStatus, read_status
from belay.engine.wire import names, shardview, sourceinfo
from belay.engine.wire.sourceinfo import FollowedRepository
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until  # noqa: F401
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.worlds import NOW, device_report, document
from tests.worlds import desired as desired_of

SHA, OLD = "a" * 40, "b" * 40
FAR = document("NodePool", "far", selector={"matchLabels": {"zone": "far"}}, shard="far")
_FETCHED = StatusCondition("Fetched", "True", "Fetched", "f")
_READY = StatusCondition("Ready", "True", "InForce", "all is well")
_APPLIED = StatusCondition("Applied", "True", "Everything", "all of it is in force")


class Shards:
    """The passes of two shards, and the ConfigMaps that they leave."""

    def __init__(self, desired: Desired) -> None:
        self.desired = desired
        self.stored: dict[str, dict[str, Any]] = {}
        self.findings: dict[str, tuple[Diagnostic, ...]] = {}
        self.refusals: dict[str, tuple[ServerRefusal, ...]] = {}
        self.applied = {"main": SHA, "far": SHA}

    def pass_of(self, shard: str) -> None:
        observed = observe(self.stored.values(), shard)
        plan = Plan(
            revision=self.applied[shard], now=0.0, diagnostics=self.findings.get(shard, ()),
            refusals=self.refusals.get(shard, ()),
        )  # fmt: skip
        state = SyncState(
            attempted=self.applied[shard], applied=self.applied[shard], conditions=(_FETCHED, _READY),
            in_force=_APPLIED, inventory=(),
        )  # fmt: skip
        bodies = status_bodies(plan, observed, state, None, self.desired, shard=shard)
        self.stored.update(
            {body["metadata"]["name"]: body for body in bodies if body["metadata"]["name"].startswith(names.SYNC)}
        )
        for _, name in outdated_parts(observed, self.desired, shard):
            self.stored.pop(name, None)

    def passes(self) -> PublishedStatus:
        """A pass of each, then again of each; the second round must leave ``belay-sync`` as it is."""
        for shard in ("far", "main"):
            self.pass_of(shard)
        first = self.stored[names.SYNC]
        for shard in ("far", "main", "far"):
            self.pass_of(shard)
            assert self.stored[names.SYNC] == first
        return read_status(self.stored.values())


def conditions(status: PublishedStatus) -> dict[str, tuple[str, str]]:
    return {row["type"]: (row["status"], row["reason"]) for row in status.conditions}


def finding(text: str) -> Diagnostic:
    return Diagnostic("warning", f"Node/{text}", "", 0, 0, "", text)


def refused() -> ServerRefusal:
    key = RefusalKey("CreatePod", "v1", "Pod", "team", "far-0")
    return ServerRefusal(
        key=key, digest="d", cause=RefusalCause.QUOTA_EXCEEDED, answer="exceeded quota: npu", file="desired/a.yaml",
        line=3, revision=SHA, attempts=1, since=1, retry=2,
    )  # fmt: skip


def test_the_status_holds_what_every_shard_says_and_does_not_flip() -> None:
    shards = Shards(desired_of(FAR))
    shards.findings = {"main": (finding("near"), finding("both")), "far": (finding("remote"), finding("both"))}
    status = shards.passes()
    assert [row["message"] for row in status.diagnostics] == ["both", "near", "remote"]
    assert conditions(status) == {
        "Fetched": ("True", "Fetched"), "Applied": ("True", "Everything"), "Ready": ("True", "InForce"),
    }  # fmt: skip
    part = shards.stored["belay-sync.far"]["data"]
    assert not {"inventory.json", "lastGood.json", "pruneBase", "heldPrune.json"} & part.keys(), (
        "the main shard's alone"
    )


def test_the_status_is_not_ready_while_a_shard_is_not() -> None:
    shards = Shards(desired_of(FAR))
    shards.refusals = {"far": (refused(),)}
    status = shards.passes()
    assert conditions(status)["Ready"] == ("False", "RefusedByServer")
    (ready,) = [row for row in status.conditions if row["type"] == "Ready"]
    assert ready["message"].startswith("shard far: the API server refuses 1 object,") and "quota" in ready["message"]
    assert [(row["shard"], row["cause"]) for row in status.refusals] == [("far", RefusalCause.QUOTA_EXCEEDED)]
    assert shards.stored[names.SYNC]["data"]["ready"] == "False"

    shards.refusals = {}
    assert conditions(shards.passes())["Ready"] == ("True", "InForce")


@pytest.mark.parametrize(("url", "reason"), [("https://git/one", "Applying"), ("https://git/other", "InForce")])
def test_a_shard_that_is_behind_is_said(url: str, reason: str) -> None:
    shards = Shards(desired_of(FAR))
    for shard, followed in (("main", "https://git/one"), ("far", url)):
        body = sourceinfo.build(FollowedRepository(url=followed), shard)
        shards.stored[body["metadata"]["name"]] = body
    shards.applied["far"] = OLD
    status = shards.passes()
    assert conditions(status)["Ready"][1] == reason
    if reason == "Applying":
        assert conditions(status)["Applied"] == ("False", "Applying")
        (ready,) = [row for row in status.conditions if row["type"] == "Ready"]
        assert ready["message"] == f"shard far has {OLD[:12]} in force, not {SHA[:12]}"


def test_a_shard_that_nothing_decides_leaves_the_status_unknown() -> None:
    shards = Shards(desired_of(FAR))
    shards.pass_of("main")
    status = read_status(shards.stored.values())
    assert conditions(status)["Ready"] == ("Unknown", "NoPass")
    assert "BELAY_SHARD=far" in shards.stored[names.SYNC]["data"]["readyMessage"]


def test_the_part_of_a_shard_that_no_pool_names_goes() -> None:
    shards = Shards(desired_of(FAR))
    shards.findings = {"far": (finding("remote"),)}
    shards.passes()
    shards.desired = desired_of(document("NodePool", "near", selector={"matchLabels": {"zone": "near"}}))
    status = shards.passes()
    assert list(shards.stored) == [names.SYNC] and status.diagnostics == []


def test_a_part_that_cannot_be_read_counts_as_empty() -> None:
    shards = Shards(desired_of(FAR))
    shards.passes()
    part = shards.stored["belay-sync.far"]
    shards.stored["belay-sync.far"] = {**part, "data": {"appliedRevision": SHA, "conditions.json": "[" * 10_000}}
    shards.pass_of("main")
    data = shards.stored[names.SYNC]["data"]
    assert json.loads(data["diagnostics.json"]) == [] and data["ready"] == "True"
    assert msgspec.json.decode(data["conditions.json"])[-1]["type"] == "Ready"


def test_two_real_shards_publish_one_status(cluster: Cluster, redis_url: str, tmp_path: Path) -> None:  # noqa: F811
    cluster.run(definitions.ensure(cluster.kube))
    cluster.add_node("far-1")
    label = {"metadata": {"labels": {"zone": "far"}}}
    cluster.run(cluster.kube.patch(NODE, "far-1", label))
    repo = Repo(tmp_path / "repo")
    repo.commit({"desired/pool.yaml": yaml.safe_dump(FAR)})
    more: dict[str, Any] = {"source_url": str(repo.bare), "source_interval": 1.0}
    main = Loop(cluster, redis_url, tmp_path / "main", **more)
    far: Loop | None = None

    def data(name: str) -> dict[str, str]:
        return dict((cluster.get(CONFIGMAP, name, names.SYSTEM) or {}).get("data") or {})

    try:
        until(lambda: data(names.SYNC).get("readyReason") == "NoPass")
        far = Loop(cluster, redis_url, tmp_path / "far", shard="far", **more)
        until(lambda: data(names.SYNC).get("ready") == "True")
        assert data(names.SYNC)["appliedRevision"] == data("belay-sync.far")["appliedRevision"] == repo.head()
        assert "inventory.json" in data(names.SYNC) and "inventory.json" not in data("belay-sync.far")
        assert json.loads(data("belay-pool-far")["nodes"]) == {"healthy": 1}
        assert main.failures == far.failures == []
    finally:
        main.close()
        if far is not None:
            far.close()


#: ConfigMaps that list the nodes or jobs of all shards.
LISTS = ("cluster-info-", "vcjob-fault-npu-cm", "scheduling-exception-report", "current-job-statistic", names.MANUAL)


class Fleet:
    """Two shards with a node each, whose passes publish everything."""

    def __init__(self) -> None:
        self.desired = desired_of(FAR, document("SchedulingSettings", "default", schedulerNames=["volcano"]))
        self.objects = [plain_node("n0"), plain_node("f0", zone="far")]
        self.stored: dict[str, dict[str, Any]] = {}
        self.infos = {shard: ClusterInfo() for shard in ("main", "far")}

    def report(self, name: str, *bad: int) -> None:
        faulty = dict.fromkeys(bad, ("80E01801", "SeparateNPU"))
        body = device_report(name, 8, faulty, int(NOW))
        self.objects = [one for one in self.objects if one["metadata"]["name"] != body["metadata"]["name"]] + [body]

    def passes(self, *shards: str) -> dict[str, str]:
        """A pass of each, in this order; the lists as they then are."""
        for shard in shards:
            observed = observe([*self.objects, *self.stored.values()], shard)
            decided = plan(self.desired, observed, NOW, shard=shard)
            roles = {"schedule": "on", "aggregate": "on"}
            state = SyncState(attempted=SHA, applied=SHA, conditions=(_FETCHED, _READY), in_force=_APPLIED, roles=roles)
            bodies = status_bodies(decided, observed, state, self.infos[shard], self.desired, shard=shard)
            bodies += memory_bodies(decided, observed, shard, self.desired)
            self.stored.update({body["metadata"]["name"]: body for body in bodies})
        return {name: json.dumps(body["data"]) for name, body in self.stored.items() if name.startswith(LISTS)}


def plain_node(name: str, **labels: str) -> dict[str, Any]:
    status = {
        "allocatable": {"huawei.com/Ascend910": "8"}, "conditions": [{"type": "Ready", "status": "True"}],
    }  # fmt: skip
    marks = {"accelerator-type": "module-910b-8", "accelerator": "huawei-Ascend910", **labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": marks}, "status": status}


def test_lists_of_all_nodes_have_one_writer_and_do_not_flip() -> None:
    """Each shard wrote them from its own view: another's isolated chips were there and gone with every pass."""
    fleet = Fleet()
    fleet.report("n0", 1)
    fleet.report("f0", 2)
    lists = fleet.passes("far", "main")
    for shards in (("far",), ("main",), ("far", "far"), ("main", "far")):
        assert fleet.passes(*shards) == lists, shards

    devices, faults = lists["cluster-info-device-0"], lists["vcjob-fault-npu-cm"]
    for node, chip in (("n0", "Ascend910-1"), ("f0", "Ascend910-2")):
        assert node in faults and chip in devices.partition(f"mindx-dl-deviceinfo-{node}")[2]

    fleet.report("f0")
    healed = fleet.passes("far", "main")
    assert healed == fleet.passes("far", "main") and "f0" not in healed["vcjob-fault-npu-cm"]
    assert "belay-view.far-0" in fleet.stored and "belay-view.main-0" not in fleet.stored


def test_the_view_of_a_shard_that_no_pool_names_goes() -> None:
    fleet = Fleet()
    fleet.passes("far", "main")
    seen = observe(fleet.stored.values())
    assert ("belay-system", "belay-view.far-0") not in outdated_parts(seen, with_git(fleet.desired), "main")
    assert ("belay-system", "belay-view.far-0") in outdated_parts(seen, with_git(desired_of()), "main")


def with_git(desired: Desired) -> Desired:
    return dataclasses.replace(desired, has_git=True)


def test_a_view_survives_the_way_through_its_config_maps() -> None:
    chips = tuple(
        ChipState(f"n{number:05}", f"Ascend910-{chip}", ChipHealth.HEALTHY, "", (), (), "a/b")
        for number in range(2000) for chip in range(8)
    )  # fmt: skip
    nodes = tuple(NodeState(f"n{number:05}", "far", NodeHealth.HEALTHY, "", ()) for number in range(2000))
    planes = {"n00007": {3: PlaneLevels("SeparateNPU", {"81078603": "SubHealthFault"})}}
    whole = Plan(revision=SHA, now=0.0, nodes=nodes, chips=chips, planes=planes)
    bodies = shardview.build("far", whole)
    assert len(bodies) == 2 and all(len(json.dumps(body)) < 800_000 for body in bodies)

    merged = with_other_shards(Plan(revision=SHA, now=0.0), observe(bodies), desired_of(FAR), PlanCache())
    assert (merged.nodes, merged.chips, merged.planes) == (nodes, chips, planes)
    own = Plan(revision=SHA, now=0.0, nodes=nodes[:1])
    moved = with_other_shards(own, observe(bodies), desired_of(FAR), PlanCache())
    assert len(moved.nodes) == 2000 and len(moved.chips) == 8 * 1999, "a node that moved is the main shard's"


def test_why_jobs_wait_in_another_shard_wakes_no_pass() -> None:
    """Its text may change with every pass; states wake one."""
    pending = Pending("AscendJob", "a", "j", ("j-0",), "GangIncomplete", "for 3 s", {}, None)
    base = Plan(revision=SHA, now=0.0, nodes=(NodeState("n0", "far", NodeHealth.HEALTHY, "", ()),))
    (first,) = shardview.build("far", base)
    (text,) = shardview.build("far", msgspec.structs.replace(base, pending=(pending,)))
    worse = NodeState("n0", "far", NodeHealth.ISOLATED, "SeparateNPU", ())
    (states,) = shardview.build("far", msgspec.structs.replace(base, nodes=(worse,)))
    assert essence(first) == essence(text) != essence(states)
    assert not own_output(first)
