"""A big deletion through a real Git remote: it waits, is reported, and a person confirms or reverts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from belay.engine.kube import CONFIGMAP, EVENT, resource_for
from belay.engine.sandbox import definitions
from belay.engine.store import connect
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.test_reconcile_git import config_map, sync
from tests.test_source_signatures import allow, ssh_key, ssh_options
from tests.test_sync_pruning import job

__all__ = ["cluster"]

Start = Callable[..., Loop]
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

JOB = resource_for("mindxdl.gitee.com/v1", "AscendJob")
NAMES = {f"j{i}" for i in range(5)}
"""80 chips, more than the 64 that deletions may free."""


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

    cluster.run(definitions.ensure(cluster.kube))
    for number in range(10):
        cluster.add_node(f"node-{number}")
    yield begin
    for loop in running:
        loop.close()
    assert [failure for loop in running for failure in loop.failures] == []


def documents(**annotations: str) -> dict[str, str | bytes]:
    jobs = yaml.safe_dump_all(job(name, **annotations) for name in sorted(NAMES))
    return {"desired/jobs.yaml": jobs, "desired/a.yaml": config_map("a", "1")}


def jobs(cluster: Cluster) -> set[str]:
    return {one["metadata"]["name"] for one in cluster.run(cluster.kube.list(JOB)).items}


def held(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sync(cluster).get("heldPrune.json") or "{}")
    return found


def runs(cluster: Cluster) -> bool:
    return jobs(cluster) == NAMES and len(cluster.bound()) == 10


def delete(repo: Repo, *options: str) -> str:
    (repo.work / "desired/jobs.yaml").unlink()
    return repo.commit(None, *options, message="clean up")


def uids(cluster: Cluster) -> set[str]:
    return {pod["metadata"]["uid"] for pod in cluster.pods()}


def test_a_big_deletion_waits_is_reported_and_runs_when_a_commit_confirms_it(
    cluster: Cluster,
    repo: Repo,
    start: Start,
    redis_url: str,  # noqa: F811
) -> None:
    repo.commit(documents())
    loop = start()
    until(lambda: runs(cluster), what="ten pods on their nodes")
    pods = uids(cluster)
    gone = delete(repo)
    loop.controller.fetch_soon()
    until(lambda: held(cluster), what="the hold in belay-sync")
    waiting = held(cluster)
    assert (waiting["objects"], waiting["jobs"], waiting["chips"]) == (5, 5, {"default": 80})
    assert {row["object"] for row in waiting["list"]} == {f"AscendJob/default/{name}" for name in NAMES}
    until(lambda: sync(cluster).get("appliedRevision") == gone)
    (condition,) = [one for one in json.loads(sync(cluster)["conditions.json"]) if one["type"] == "PruneHeld"]
    assert condition["status"] == "True" and waiting["release"] in condition["message"]
    assert {row.get("confirm") for row in json.loads(sync(cluster)["deferred.json"])} == {waiting["digest"]}
    until(lambda: events(cluster) == NAMES, what="an Event on every job")

    cluster.run(cluster.kube.patch(JOB, "j0", {"spec": {"schedulerName": "x"}}, "default", field_manager="other"))
    until(lambda: scheduler(cluster, "j0") == "belay", what="the text before the deletion")

    # everything but Git and the cluster is lost, and the digest is the same
    loop.close()
    connect(redis_url).flushall()
    other = start()
    repo.commit({"desired/a.yaml": config_map("a", "2")}, message="something else\n\nBelay-Confirm: " + "0" * 32)
    other.controller.fetch_soon()
    until(lambda: cluster.get(CONFIGMAP, "a", "default")["data"] == {"value": "2"}, what="another change")  # type: ignore[index]
    assert held(cluster)["digest"] == waiting["digest"]
    assert runs(cluster) and uids(cluster) == pods

    repo.commit(message=f"Those five are finished\n\n{waiting['release']}")
    repo.commit({"desired/a.yaml": config_map("a", "3")}, message="and something later")
    other.controller.fetch_soon()
    until(lambda: not jobs(cluster), what="the deletion")
    until(lambda: not held(cluster) and "pruneBase" not in sync(cluster), what="the end of the wait")
    assert "PruneHeld" not in sync(cluster)["conditions.json"]


def scheduler(cluster: Cluster, name: str) -> str:
    found = cluster.get(JOB, name, "default")
    assert found is not None
    return str(found["spec"]["schedulerName"])


def events(cluster: Cluster) -> set[str]:
    found = cluster.run(cluster.kube.list(EVENT)).items
    return {one["involvedObject"]["name"] for one in found if one["reason"] == "PruneHeld"}


def test_restored_documents_end_the_wait_and_void_the_confirmation(cluster: Cluster, repo: Repo, start: Start) -> None:
    repo.commit(documents())
    loop = start()
    until(lambda: runs(cluster), what="ten pods on their nodes")
    pods = uids(cluster)
    delete(repo)
    loop.controller.fetch_soon()
    until(lambda: held(cluster), what="the hold")
    release = held(cluster)["release"]
    repo.commit(documents(), message=f"No, keep them\n\n{release}")
    restored = repo.head()
    loop.controller.fetch_soon()
    until(lambda: not held(cluster) and sync(cluster).get("appliedRevision") == restored, what="the end of the wait")
    assert runs(cluster) and uids(cluster) == pods
    delete(repo)
    loop.controller.fetch_soon()
    until(lambda: held(cluster), what="the same deletion waits again")
    assert held(cluster)["release"] == release and runs(cluster) and uids(cluster) == pods


def test_documents_with_the_annotation_need_no_confirmation(cluster: Cluster, repo: Repo, start: Start) -> None:
    repo.commit(documents())
    loop = start()
    until(lambda: runs(cluster), what="ten pods on their nodes")
    repo.commit(documents(prune="confirmed"))
    loop.controller.fetch_soon()
    until(lambda: all(marked(one) for one in cluster.run(cluster.kube.list(JOB)).items), what="the annotation")
    delete(repo)
    loop.controller.fetch_soon()
    until(lambda: not jobs(cluster), what="the deletion")
    assert not held(cluster)


def marked(one: Any) -> bool:
    return (one["metadata"].get("annotations") or {}).get("belay.dev/prune") == "confirmed"


def test_only_signed_commits_confirm_where_signatures_are_required(
    cluster: Cluster, repo: Repo, start: Start, tmp_path: Path
) -> None:
    key = ssh_key(tmp_path, "ada")
    signed = ssh_options(key)
    signers = allow(tmp_path / "signers", ada=key)
    repo.commit(documents(), *signed)
    loop = start(source_verify="ssh", source_signers=str(signers))
    until(lambda: runs(cluster), what="ten pods on their nodes")
    delete(repo, *signed)
    loop.controller.fetch_soon()
    until(lambda: held(cluster), what="the hold")
    release = held(cluster)["release"]
    repo.commit(None, message=f"not signed\n\n{release}", push=False)
    later = repo.commit({"desired/a.yaml": config_map("a", "2")}, *signed, message="signed, and confirms nothing")
    loop.controller.fetch_soon()
    until(lambda: sync(cluster).get("appliedRevision") == later, what="the signed tip")
    assert held(cluster)["release"] == release and jobs(cluster) == NAMES
    repo.commit(None, *signed, message=f"signed\n\n{release}")
    loop.controller.fetch_soon()
    until(lambda: not jobs(cluster), what="the deletion")
