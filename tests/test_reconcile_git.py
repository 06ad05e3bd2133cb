"""From `git push` to the cluster, and what broken files, lost Redis and a silent Git must not change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import CONFIGMAP, resource_for
from belay.engine.sandbox import definitions
from belay.engine.store import connect
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]

Start = Callable[..., Loop]


pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "git")


@pytest.fixture
def start(cluster: Cluster, repo: Repo, redis_url: str, tmp_path: Path) -> Iterator[Start]:  # noqa: F811
    running: list[Loop] = []

    def begin(**settings: Any) -> Loop:
        given = {"source_url": str(repo.bare), "source_interval": 1.0} | settings
        running.append(Loop(cluster, redis_url, tmp_path / f"data-{len(running)}", **given))
        return running[-1]

    yield begin
    for loop in running:
        loop.close()


def config_map(name: str, value: str) -> str:
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\ndata: {{value: '{value}'}}\n"
    )


def value_of(cluster: Cluster, name: str) -> str | None:
    found = cluster.get(CONFIGMAP, name, "default")
    return found["data"]["value"] if found else None


def sync(cluster: Cluster) -> dict[str, str]:
    found = cluster.get(CONFIGMAP, "belay-sync", "belay-system")
    return dict(found["data"]) if found else {}


def test_what_is_pushed_is_applied_changed_and_pruned(cluster: Cluster, repo: Repo, start: Start) -> None:
    repo.commit({"desired/a.yaml": config_map("a", "1"), "desired/b.yaml": config_map("b", "1")})
    loop = start()
    until(lambda: value_of(cluster, "a") == "1" and value_of(cluster, "b") == "1", what="the first revision")
    sha = repo.commit({"desired/a.yaml": config_map("a", "2")})
    loop.controller.fetch_soon()
    until(lambda: value_of(cluster, "a") == "2", what="the change")
    until(lambda: sync(cluster).get("appliedRevision") == sha)
    (repo.work / "desired/b.yaml").unlink()
    repo.commit()
    loop.controller.fetch_soon()
    until(lambda: value_of(cluster, "b") is None, what="the pruning")
    assert value_of(cluster, "a") == "2"
    until(lambda: "default" in sync(cluster)["inventory.json"] and '"b"' not in sync(cluster)["inventory.json"])


def test_an_edit_by_hand_is_reverted(cluster: Cluster, repo: Repo, start: Start) -> None:
    repo.commit({"desired/a.yaml": config_map("a", "1")})
    start()
    until(lambda: value_of(cluster, "a") == "1")
    cluster.run(cluster.kube.patch(CONFIGMAP, "a", {"data": {"value": "x"}}, "default", field_manager="someone"))
    until(lambda: value_of(cluster, "a") == "1", what="the declared value")


def test_a_broken_file_keeps_its_last_good_version_across_lost_redis_and_new_processes(
    cluster: Cluster,
    repo: Repo,
    start: Start,
    redis_url: str,  # noqa: F811
) -> None:
    repo.commit({"desired/a.yaml": config_map("a", "1"), "desired/b.yaml": config_map("b", "1")})
    first = start()
    until(lambda: value_of(cluster, "b") == "1" and "lastGood.json" in sync(cluster))
    bad = repo.commit({"desired/a.yaml": "apiVersion: v1\nkind: [", "desired/b.yaml": config_map("b", "2")})
    first.controller.fetch_soon()
    until(lambda: value_of(cluster, "b") == "2", what="the good half of the push")
    until(lambda: sync(cluster).get("attemptedRevision") == bad)
    found = json.loads(sync(cluster)["diagnostics.json"])
    assert any(one["file"] == "desired/a.yaml" and one["line"] and one["severity"] == "error" for one in found)
    conditions = {one["type"]: one["message"] for one in json.loads(sync(cluster)["conditions.json"])}
    assert "desired/a.yaml:3:1 " in conditions["DocumentsRefused"] and list(conditions)[-1] == "Ready"
    first.close()
    connect(redis_url).flushall()
    cluster.run(cluster.kube.patch(CONFIGMAP, "a", {"data": {"value": "x"}}, "default", field_manager="someone"))
    start()
    until(lambda: value_of(cluster, "a") == "1", what="the last good version, from Git's history")


def test_a_silent_git_stops_no_placement_and_is_reported(cluster: Cluster, repo: Repo, start: Start) -> None:
    start(source_url=str(repo.bare) + "-nowhere")
    cluster.add_node("node-1")
    cluster.add_pod("train", 4)
    until(lambda: cluster.bound() == {"train"}, what="the placement")
    conditions = json.loads(sync(cluster)["conditions.json"])
    assert {"type": "Ready", "status": "False"}.items() <= conditions[-1].items()


def test_an_emptied_repository_is_refused(cluster: Cluster, repo: Repo, start: Start) -> None:
    repo.commit({"desired/a.yaml": config_map("a", "1")})
    loop = start()
    until(lambda: value_of(cluster, "a") == "1")
    (repo.work / "desired/a.yaml").unlink()
    empty = repo.commit()
    loop.controller.fetch_soon()
    until(lambda: sync(cluster).get("attemptedRevision") == empty)
    assert value_of(cluster, "a") == "1"


def test_a_document_of_belay_that_is_declared_no_more_loses_its_copy_too(
    cluster: Cluster, repo: Repo, start: Start
) -> None:
    cluster.run(definitions.ensure(cluster.kube))
    pools = resource_for("belay.dev/v1alpha1", "NodePool")
    pool = (
        "apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: p}\nspec: {selector: {matchLabels: {a: b}}}\n"
    )
    repo.commit({"desired/pool.yaml": pool, "desired/a.yaml": config_map("a", "1")})
    loop = start()
    until(lambda: cluster.get(pools, "p"), what="the copy")
    until(lambda: "NodePool" in sync(cluster).get("inventory.json", ""), what="the inventory")
    (repo.work / "desired/pool.yaml").unlink()
    repo.commit()
    loop.controller.fetch_soon()
    until(lambda: cluster.get(pools, "p") is None, what="the pruning of the copy")
    until(lambda: "NodePool" not in sync(cluster)["inventory.json"])


def pools_told(cluster: Cluster) -> dict[str, Any]:
    """What ``belay-pool-*`` count, by pool."""
    found = cluster.run(cluster.kube.list(CONFIGMAP)).items
    return {
        one["metadata"]["name"].removeprefix("belay-pool-"): json.loads(one["data"]["nodes"])
        for one in found
        if one["metadata"]["name"].startswith("belay-pool-")
    }


def test_a_node_counts_in_one_pool_whatever_pools_were_declared_before(
    cluster: Cluster, repo: Repo, start: Start
) -> None:
    cluster.add_node("node-1")
    pool = (
        "apiVersion: belay.dev/v1alpha1\nkind: NodePool\nmetadata: {name: training}\n"
        "spec: {selector: {matchLabels: {kubernetes.io/hostname: node-1}}}\n"
    )
    other = config_map("a", "1")
    loop = start()
    count = {"healthy": 1}
    for files in (
        ({"desired/p.yaml": pool, "desired/a.yaml": other}, {"training": count}),
        ({"desired/p.yaml": pool.replace("node-1", "node-11")}, {"default": count}),
        ({"desired/p.yaml": pool}, {"training": count}),
        ({"desired/p.yaml": pool.replace("name: training", "name: serving")}, {"serving": count}),
    ):
        repo.commit(dict(files[0]))
        loop.controller.fetch_soon()
        until(lambda wanted=files[1]: pools_told(cluster) == wanted, what=f"{files[1]} and no other pool")  # type: ignore[misc]
    loop.close()
    repo.commit({"desired/p.yaml": pool.replace("node-1", "node-11").replace("name: training", "name: serving")})
    start()
    until(lambda: pools_told(cluster) == {"default": count}, what="the pool that lost its nodes while nothing ran")
