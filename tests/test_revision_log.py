"""``belay-revisions``: accepted revisions as a chain, kept in the cluster through the loss of everything else."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from belay.engine.kube import CONFIGMAP
from belay.engine.store import connect
from belay.engine.wire import commitproof, revisionlog
from belay.engine.wire.errors import WireError
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from tests.gitrepo import Repo, git
from tests.loop_world import Cluster, Loop, cluster, until
from tests.redis_server import redis_process, redis_url  # noqa: F401
from tests.signing import allow, ssh_key, ssh_options

__all__ = ["cluster"]
pytestmark = [pytest.mark.real_time, pytest.mark.timeout(300)]
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: default}\ndata: {value: '%s'}\n"


def log_of(count: int, commit: str = "") -> RevisionLog:
    log = RevisionLog()
    for number in range(count):
        entry = RevisionEntry(number=0, revision=f"{number:040d}", source="r main", verified="ssh", commit=commit)
        log = log.appended(entry)
    return log


def test_a_log_reads_back_and_is_bounded() -> None:
    long = base64.b64encode(b"x" * revisionlog.MAX_COMMIT).decode()
    for log in (log_of(3), log_of(600), log_of(300, long)):
        body = revisionlog.build(log, "main")
        assert revisionlog.parse(body) == log
        assert len(log.entries) <= revisionlog.MAX_ENTRIES and len(str(body)) < 800 * 1024
        assert log.head is not None and log.entries[0].number == log.start.number + 1
    assert log_of(1, "x" * 99_999).entries[0].commit == ""


@pytest.mark.parametrize("change", ["signer", "drop", "insert", "swap", "start", "garbage"])
def test_a_changed_log_is_noticed(change: str) -> None:
    body = revisionlog.build(log_of(4), "main")
    value: dict[str, Any] = json.loads(body["data"]["entries.json"])
    entries = value["entries"]
    match change:
        case "signer":
            entries[1]["signer"] = "eve@example.org"
        case "drop":
            del entries[1]
        case "insert":
            entries.insert(2, entries[1])
        case "swap":
            entries[1], entries[2] = entries[2], entries[1]
        case "start":
            del entries[0]
        case "garbage":
            entries[1] = 7
    body["data"]["entries.json"] = json.dumps(value)
    with pytest.raises(WireError):
        revisionlog.parse(body)


def test_a_log_that_was_cut_or_replaced_does_not_continue_the_one_known() -> None:
    known = log_of(5)
    entry = RevisionEntry(number=0, revision="f" * 40, source="r main")
    assert known.appended(entry).continues(known) and known.continues(known) and log_of(900).continues(known)
    assert not log_of(4).continues(known) and not RevisionLog().continues(known)
    assert not log_of(4).appended(entry).continues(known)


def test_revisions_of_another_source_or_unverified_ones_set_no_floor() -> None:
    log = log_of(2)
    for source, verified in (("r other", "ssh"), ("r main", "none")):
        log = log.appended(RevisionEntry(number=0, revision="e" * 40, source=source, verified=verified))
    assert list(log.of("r main")) == [f"{0:040d}", f"{1:040d}"]


@pytest.fixture
def start(cluster: Cluster, redis_url: str, tmp_path: Path) -> Iterator[Any]:  # noqa: F811
    running: list[Loop] = []

    def begin(repo: Repo, signers: Path) -> Loop:
        folder = tmp_path / f"data-{len(running)}"
        more = {"source_verify": "ssh", "source_signers": str(signers)}
        running.append(Loop(cluster, redis_url, folder, source_url=str(repo.bare), source_interval=1.0, **more))
        return running[-1]

    yield begin
    for loop in running:
        loop.close()


def value(cluster: Cluster) -> str:
    live = cluster.get(CONFIGMAP, "one", "default")
    return live["data"]["value"] if live else ""


def commit_in_force(cluster: Cluster) -> str:
    found = cluster.get(CONFIGMAP, "belay-commit", "belay-system")
    if found is None:
        return ""
    proof = commitproof.parse(found)
    return proof.revision if proof.commit() and proof.rules() == frozenset() else ""


def verified(cluster: Cluster) -> str:
    found = cluster.get(CONFIGMAP, "belay-sync", "belay-system") or {"data": {}}
    said = json.loads(found["data"].get("conditions.json", "[]"))
    return next((row["reason"] for row in said if row["type"] == "Verified"), "")


def test_a_rollback_is_refused_when_redis_and_every_disk_are_new(
    cluster: Cluster,
    redis_url: str,  # noqa: F811
    tmp_path: Path,
    start: Any,
) -> None:
    repo, ada = Repo(tmp_path / "git"), ssh_key(tmp_path, "ada")
    signers = allow(tmp_path / "signers", ada=ada)
    old = repo.commit({"desired/one.yaml": MAP % "1"}, *ssh_options(ada))
    first = start(repo, signers)
    until(lambda: value(cluster) == "1", what="the first revision")
    new = repo.commit({"desired/one.yaml": MAP % "2"}, *ssh_options(ada))
    until(lambda: value(cluster) == "2", what="the second revision")
    kept = revisionlog.parse(cluster.get(CONFIGMAP, "belay-revisions", "belay-system") or {})
    assert [(e.revision, e.verified) for e in kept.entries] == [(old, "ssh"), (new, "ssh")]
    assert kept.entries[1].signer.startswith("ada@example.org") and b"tree " in kept.entries[1].commit_bytes()
    until(lambda: commit_in_force(cluster) == new, what="the proof of the signed commit")
    first.close()
    connect(redis_url).flushall()
    git(repo.work, "push", "-q", "--force", "origin", f"{old}:refs/heads/main")
    second = start(repo, signers)
    until(lambda: verified(cluster) == "RolledBack", what="the refusal")
    assert value(cluster) == "2"
    second.close()
    # the log is changed so that it would let the older one in
    body = cluster.get(CONFIGMAP, "belay-revisions", "belay-system") or {}
    body["data"]["entries.json"] = body["data"]["entries.json"].replace(new, old)
    cluster.run(cluster.kube.replace(CONFIGMAP, body))
    start(repo, signers)
    until(lambda: verified(cluster) == "LogBroken", what="the refusal")
    assert value(cluster) == "2"
