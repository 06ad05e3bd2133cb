"""Several shards, one status: each publishes its part, and ``belay-sync`` holds what all of them say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from engine.documents import Desired
from engine.kube import CONFIGMAP, NODE
from engine.model.diagnostics import Diagnostic
from engine.model.plan import Plan
from engine.model.refusals import RefusalCause, RefusalKey, ServerRefusal
from engine.observe.observed import observe
from engine.sandbox import definitions
from engine.status import StatusCondition, SyncState, outdated_parts, status_bodies
from engine.status.status_reader import PublishedStatus, read_status
from engine.wire import names, sourceinfo
from engine.wire.sourceinfo import FollowedRepository
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until  # noqa: F401
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.worlds import desired as desired_of
from tests.worlds import document

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
    assert ready["message"].startswith("shard far: the API server refuses 1 objects") and "quota" in ready["message"]
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
