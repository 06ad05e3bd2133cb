"""The controller's source reaches workers without settings, and a missing repository is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.controller.revision_reader import RevisionReader
from belay.engine.kube import CONFIGMAP
from belay.engine.observe.observed import observe
from belay.engine.source import GitSource, SourceConfig, configuration
from belay.engine.store import StoredRevisions, connect
from belay.engine.wire import sourceinfo
from tests.gitrepo import Repo
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401

__all__ = ["cluster"]

Start = Callable[..., Loop]
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]

ISOLATION = """\
apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: optics}
spec: {nodes: [n-9], reason: dust}
"""
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: default}\ndata: {value: '%s'}\n"


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "git")
    made.commit({"desired/one.yaml": MAP % "1"})
    return made


@pytest.fixture
def start(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Start]:  # noqa: F811
    """Controller with one set of settings, worker with another, as two processes with two environments have them."""
    running: list[Loop] = []

    def begin(worker_url: str, **controller: Any) -> Loop:
        loop = Loop(
            cluster, redis_url, tmp_path / f"data-{len(running)}", worker_settings={"source_url": worker_url},
            source_interval=1.0, **controller,
        )  # fmt: skip
        running.append(loop)
        return loop

    yield begin
    for loop in running:
        loop.close()


def sync(cluster: Cluster) -> dict[str, str]:
    found = cluster.get(CONFIGMAP, "belay-sync", "belay-system")
    return dict(found["data"]) if found else {}


def ready(cluster: Cluster) -> dict[str, str]:
    said = json.loads(sync(cluster).get("conditions.json", "[]"))
    return said[-1] if said else {}


def applied(cluster: Cluster, value: str) -> bool:
    live = cluster.get(CONFIGMAP, "one", "default")
    return live is not None and live["data"]["value"] == value


def test_a_worker_applies_a_source_that_only_the_controller_knows(cluster: Cluster, repo: Repo, start: Start) -> None:
    start("", source_url=str(repo.bare))
    until(lambda: applied(cluster, "1"), what="the first revision")
    until(lambda: ready(cluster).get("status") == "True", what="being ready")
    published = cluster.get(CONFIGMAP, "belay-source", "belay-system")
    assert (
        published is not None and published["data"]["url"] == str(repo.bare) and published["data"]["branch"] == "main"
    )


def test_the_author_of_a_document_reaches_the_worker_and_the_cluster(
    cluster: Cluster, repo: Repo, start: Start
) -> None:
    changed = repo.commit({"desired/isolation.yaml": ISOLATION})
    tip = repo.commit({"desired/one.yaml": MAP % "2"}, message="another file")
    start("", source_url=str(repo.bare))
    until(lambda: "places.json" in sync(cluster), what="the places of documents")
    place = json.loads(sync(cluster)["places.json"])["Isolation/optics"]
    assert place == {
        "file": "desired/isolation.yaml", "line": 1, "commit": changed, "author": "Ada <ada@example.org>",
    }  # fmt: skip
    assert sync(cluster)["appliedRevision"] == tip


def test_a_worker_logs_once_that_it_waits_for_a_revision(
    cluster: Cluster,
    redis_url: str,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster.run(cluster.kube.apply(sourceinfo.build(sourceinfo.FollowedRepository(url="/elsewhere.git"), "main")))
    revision = RevisionReader("main", StoredRevisions(connect(redis_url)), source_url="/other.git")
    observed = observe([cluster.get(CONFIGMAP, "belay-source", "belay-system") or {}])
    for _ in range(3):
        assert revision.load(observed) is None
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and "is not what the controller follows" in warnings[0] and "no revision" in warnings[1]


def test_the_source_is_known_after_redis_lost_everything_and_all_processes_restarted(
    cluster: Cluster,
    repo: Repo,
    start: Start,
    redis_url: str,  # noqa: F811
) -> None:
    first = start("", source_url=str(repo.bare))
    until(lambda: applied(cluster, "1"))
    first.close()
    connect(redis_url).flushall()
    repo.commit({"desired/one.yaml": MAP % "2"})
    start("", source_url=str(repo.bare))
    until(lambda: applied(cluster, "2"), what="the revision pushed meanwhile")


@pytest.mark.parametrize("worker_url", ["", "/somewhere.git"])
def test_without_a_source_jobs_are_placed_and_a_condition_says_so(
    cluster: Cluster, start: Start, worker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    start(worker_url)
    cluster.add_node("node-1")
    cluster.add_pod("train", 4)
    until(lambda: cluster.bound() == {"train"}, what="the placement")
    until(lambda: ready(cluster).get("reason") == "NoSource", what="the condition")
    assert ready(cluster)["status"] == "False" and "--source FILE or BELAY_SOURCE_URL" in ready(cluster)["message"]
    warnings = [record for record in caplog.records if "no repository is known" in record.getMessage()]
    assert len(warnings) == 1, "logged once, whatever the number of passes"


def test_a_controller_that_lost_its_source_deletes_nothing_and_resumes(
    cluster: Cluster, repo: Repo, start: Start
) -> None:
    first = start("", source_url=str(repo.bare))
    until(lambda: applied(cluster, "1") and ready(cluster).get("status") == "True")
    remembered = sync(cluster)
    first.close()
    second = start("")
    until(lambda: ready(cluster).get("reason") == "NoSource", what="the condition")
    assert applied(cluster, "1") and sync(cluster)["inventory.json"] == remembered["inventory.json"]
    assert sync(cluster)["lastGood.json"] == remembered["lastGood.json"]
    second.close()
    repo.commit({"desired/one.yaml": MAP % "2"})
    start("", source_url=str(repo.bare))
    until(lambda: applied(cluster, "2") and ready(cluster).get("status") == "True", what="the newer revision")


def test_credentials_in_an_address_stay_with_the_controller(tmp_path: Path) -> None:
    config = SourceConfig(url="https://robot:s3cret@git.example.com/state.git", path="clusters/a")
    said = sourceinfo.build(configuration.source_info(GitSource(config, tmp_path)), "main")
    assert "s3cret" not in str(said) and "robot" not in str(said)
    assert said["data"]["url"] == "https://***@git.example.com/state.git"
    assert sourceinfo.parse(said) == configuration.source_info(GitSource(config, tmp_path))
    assert sourceinfo.parse({"data": {"url": 3}}) is None and sourceinfo.parse({}) is None
