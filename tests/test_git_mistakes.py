"""Mistakes pushed through a real Git remote to the running engine: nothing is deleted, and mending ends it all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import CONFIGMAP, Object, resource_for
from belay.engine.sandbox import definitions
from belay.engine.store import connect
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

pytestmark = pytest.mark.real_time

__all__ = ["cluster"]

JOB = resource_for("mindxdl.gitee.com/v1", "AscendJob")
SAMPLE = (Path(__file__).parent.parent / "desired/jobs/pretrain.yaml").read_text()
PATH = "desired/jobs/pretrain.yaml"
ISOLATION = """apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: rack}
spec: {nodes: [node-4], reason: power}
"""
#: Every edit: what is replaced in the job's file, by what.
MISTAKES = {
    "a mistyped kind": ("kind: AscendJob", "kind: AscendJbo"),
    "a kind in small letters": ("kind: AscendJob", "kind: ascendjob"),
    "a kind that is not accepted": ("kind: AscendJob", "kind: CronJob"),
    "another version": ("mindxdl.gitee.com/v1", "mindxdl.gitee.com/v2"),
    "a mistyped group": ("mindxdl.gitee.com/v1", "mindxld.gitee.com/v1"),
    "an impossible name": ("  name: pretrain\n  namespace", "  name: Pretrain_1\n  namespace"),
    "an impossible namespace": ("namespace: default\n  labels:\n    fr", "namespace: De/f\n  labels:\n    fr"),
    "a lost separator": ("---\n", ""),
    "a tab": ("spec:\n", "spec:\n\t"),
}  # fmt: skip


class World:
    """One engine and one repository for all edits; ``uids`` shows whether anything was deleted and created again."""

    def __init__(self, cluster: Cluster, redis: str, folder: Path) -> None:
        self.cluster, self.redis, self.folder, self.starts = cluster, redis, folder, 0
        self.repo = Repo(folder / "git")
        cluster.run(definitions.ensure(cluster.kube))
        for number in range(1, 5):
            cluster.add_node(f"node-{number}")
        self.start()

    def start(self) -> None:
        self.starts += 1
        given = {"source_url": str(self.repo.bare), "source_interval": 1.0}
        self.loop = Loop(self.cluster, self.redis, self.folder / f"data-{self.starts}", **given)

    def push(self, files: dict[str, str], *removed: str, ready: str, reason: str) -> None:
        """Push a tree and wait until the engine says how it stands with it."""
        for path in removed:
            (self.repo.work / path).unlink()
        sha = self.repo.commit(dict(files))
        self.loop.controller.fetch_soon()

        def said() -> bool:
            if not ready:
                return self.sync().get("attemptedRevision") == sha
            condition = self.conditions().get("Ready", {})
            return self.sync().get("attemptedRevision") == sha and (condition["status"], condition["reason"]) == (
                ready, reason,
            )  # fmt: skip

        until(said, 30, f"Ready={ready} ({reason})")

    def sync(self) -> dict[str, str]:
        found = self.cluster.get(CONFIGMAP, "belay-sync", "belay-system")
        return dict(found["data"]) if found else {}

    def conditions(self) -> dict[str, Any]:
        return {one["type"]: one for one in json.loads(self.sync().get("conditions.json", "[]"))}

    def held(self) -> dict[str, Any]:
        """The deletion that waits for a person."""
        found = json.loads(self.sync().get("heldPrune.json") or "null")
        return dict(found or {})

    def confirm(self) -> None:
        """Push a commit that confirms the deletion that waits."""
        self.repo.commit({}, message=f"meant\n\nBelay-Confirm: {self.held()['digest']}")
        self.loop.controller.fetch_soon()

    def findings(self) -> str:
        return " ".join(one["message"] for one in json.loads(self.sync()["diagnostics.json"]))

    def isolated(self) -> set[str]:
        """The nodes that are out by hand."""
        pool = self.cluster.get(CONFIGMAP, "belay-pool-default", "belay-system") or {"data": {}}
        rows = json.loads(pool["data"].get("nodes.json", "[]"))
        return {row["node"] for row in rows if row["state"] == "manually-isolated"}

    def job(self, name: str = "pretrain") -> Object | None:
        return self.cluster.get(JOB, name, "default")

    def uids(self) -> dict[str, str]:
        """What people would miss: the job, its rank table, the pods that run on chips, all by their uid."""
        table = self.cluster.get(CONFIGMAP, "rings-config-pretrain", "default")
        kept = [found for found in (self.job(), table, *self.cluster.pods()) if found]
        return {
            f"{one.get('kind')}/{one['metadata']['name']}/{(one.get('spec') or {}).get('nodeName')}": one["metadata"][
                "uid"
            ]
            for one in kept
        }


@pytest.fixture
def world(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[World]:  # noqa: F811
    made = World(cluster, redis_url, tmp_path)
    yield made
    made.loop.close()


def test_mistakes_pushed_to_the_running_engine_delete_nothing_and_mending_prunes_again(world: World) -> None:
    other = {"desired/isolation.yaml": ISOLATION}
    world.push({PATH: SAMPLE, **other}, ready="True", reason="Succeeded")
    until(lambda: len(world.cluster.bound()) == 2, 30, "the job on its chips")
    before = world.uids()
    assert len(before) == 4
    until(lambda: world.isolated() == {"node-4"}, 30, "the isolation")

    for name, (old, new) in MISTAKES.items():
        assert SAMPLE.count(old) >= 1, name
        world.push({PATH: SAMPLE.replace(old, new)}, ready="False", reason="Findings")
        assert world.uids() == before, name
        applied = world.conditions()["Applied"]
        assert (applied["status"], applied["reason"]) == ("True", "ExceptRefused"), name
    world.push({PATH: SAMPLE.replace("kind: AscendJob", "kind: AscendJbo")}, ready="False", reason="Findings")
    assert "did you mean AscendJob?" in world.findings()

    world.loop.close()
    connect(world.redis).flushall()
    world.start()
    world.push({"desired/broken.yaml": "kind: Isolatoin\n"}, "desired/isolation.yaml", ready="False", reason="Findings")
    moved = "desired/jobs/moved.yaml"
    world.push({moved: SAMPLE.replace("kind: AscendJob", "kind: Job")}, PATH, ready="False", reason="Findings")
    assert world.uids() == before, "after a restart with a lost Redis, with a broken tip, in another file"
    assert "node-4" in world.isolated(), "the misread Isolation is in force"

    world.push({moved: SAMPLE}, "desired/broken.yaml", ready="True", reason="Succeeded")
    assert world.uids() == before
    assert world.conditions()["Applied"]["reason"] == "Everything"
    renamed = SAMPLE.replace("name: pretrain\n", "name: pretrain2\n")
    world.push({moved: renamed}, ready="", reason="")
    until(lambda: world.job("pretrain2"), 30, "the job under its new name")
    until(lambda: world.held(), 30, "the deletion of the old one, which holds 16 chips, waits")
    assert "its name was changed from pretrain" in world.findings() and world.job() is not None
    world.confirm()
    until(lambda: world.job() is None and world.job("pretrain2"), 30, "the job under its new name alone")
    world.push({"desired/note.yaml": ISOLATION}, moved, ready="", reason="")
    until(lambda: world.held(), 30, "the deletion of the job waits")
    world.confirm()
    until(lambda: world.job("pretrain2") is None, 30, "the pruning of what is no longer declared")
