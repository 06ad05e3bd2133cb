"""`belay wait`: jobs and revisions, by what the engine published."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.waiting import job_standing
from belay.engine.kube import CONFIGMAP
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.status.status_reader import read_status
from belay.engine.wire import history, names
from tests.loop_world import Cluster

JOB = "default/AscendJob/train"
IN_FORCE = [{"type": "Applied", "status": "True", "message": "Everything"}]


def publish(cluster: Cluster, name: str, about: str, data: dict[str, str]) -> None:
    metadata = {"name": name, "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: about}}
    cluster.ensure(CONFIGMAP, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def job(cluster: Cluster, phase: str, **status: Any) -> None:
    data = {history.JOB_NAME_KEY: JOB, "phase": phase, "status.json": json.dumps(status)}
    publish(cluster, f"{names.JOB_PREFIX}train", "job", data)


def wait(cluster: Cluster, *words: str) -> Result:
    return CliRunner().invoke(main, ["wait", *words, "--kubeconfig", str(cluster.kubeconfig)])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.real_time
def test_a_job_is_waited_for_until_it_runs_and_a_lost_cause_ends_at_once(cluster: Cluster) -> None:
    job(cluster, "Pending", pending={"reason": "NoNode", "message": "all 8 chips are taken"})
    late = wait(cluster, "job", "train", "--timeout", "0.2s")
    assert late.exit_code == 1 and "default/train is Pending: NoNode: all 8 chips are taken" in late.output
    runs = threading.Timer(0.7, job, (cluster, "Running"))
    runs.start()
    done = wait(cluster, "job", "default/train", "--timeout", "20s")
    runs.join()
    assert (done.exit_code, done.output) == (0, "default/train is Running\n")
    job(cluster, "Failed", conditions=[{"type": "Ready", "reason": "Failed", "message": "exit code 3"}])
    began = time.monotonic()
    lost = wait(cluster, "job", "train", "--for", "placed")
    assert lost.exit_code == 1 and lost.output == "default/train is Failed: exit code 3\n"
    assert time.monotonic() - began < 60, "the ten minutes were not waited for"
    assert wait(cluster, "job", "train", "--for", "ended").exit_code == 0
    assert wait(cluster, "job", "other", "--for", "gone").exit_code == 0
    assert "there is no job other yet" in wait(cluster, "job", "other", "--timeout", "0.1s").output


def standing(state: str, phase: str, pods: list[str], **status: Any) -> tuple[bool, str]:
    """How far a job of three pods is, with these phases of the pods that have a node."""
    places = {f"train-{number}": {"node": "node-1", "phase": one} for number, one in enumerate(pods)}
    body = {"wanted": 3, "placement": places, **status}
    data = {history.JOB_NAME_KEY: JOB, "phase": phase, "status.json": json.dumps(body)}
    found = job_standing(
        read_status([{"metadata": {"name": f"{names.JOB_PREFIX}train"}, "data": data}]), "train", state
    )
    assert not found.hopeless
    return found.reached, found.text


def test_a_job_is_placed_once_none_of_its_pods_waits() -> None:
    waits = {"pending": {"reason": "InsufficientChips", "message": "1 pod needs 8 chips"}}
    run, late = ["Running"] * 3, "default/train is Starting: "
    assert standing("placed", "Starting", run[:2], **waits) == (False, f"{late}InsufficientChips: 1 pod needs 8 chips")
    assert standing("placed", "Starting", run[:2]) == (False, f"{late}2 of 3 pods placed")
    assert standing("placed", "Running", run[:2], **waits)[0] is False, "it runs with fewer, and one waits"
    assert standing("placed", "Starting", ["Pending"] * 3) == (True, "default/train is Starting")
    assert standing("placed", "Running", run[:2]) == (True, "default/train is Running")
    assert standing("running", "Running", run[:2], **waits)[0] is True


def test_a_job_has_recovered_once_all_its_pods_run_and_no_recovery_is_under_way() -> None:
    begun = {"time": "2026-01-02T03:04:05Z", "actual": None}
    ended = {"time": "2026-01-02T03:00:00Z", "actual": {"seconds": 90}}
    run = ["Running"] * 3
    assert standing("recovered", "Starting", ["Running", "Pending"], recoveries=[begun]) == (
        False, "default/train is Starting: 1 of 3 pods run"
    )  # fmt: skip
    assert standing("recovered", "Running", run[:2])[0] is False, "enough run, but not all"
    assert standing("recovered", "Running", run, recoveries=[ended, begun]) == (
        False, "default/train is Running: the recovery of 2026-01-02T03:04:05Z is under way"
    )  # fmt: skip
    assert standing("recovered", "Running", run, recoveries=[begun, ended])[0] is True
    assert standing("recovered", "Running", run)[0] is True, "it needed none"


def test_a_revision_is_in_force_with_all_its_documents(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    (clone / "desired").mkdir(parents=True)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(clone)]
    subprocess.run([*git, "init", "-q"], check=True)
    commits = []
    for number in range(2):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", str(number)], check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
        commits.append(done.stdout.strip())

    def sync(applied: str, attempted: str, conditions: list[dict[str, str]]) -> None:
        data = {"appliedRevision": applied, "attemptedRevision": attempted, "conditions.json": json.dumps(conditions)}
        publish(cluster, names.SYNC, "sync", data)

    monkeypatch.chdir(clone)
    refused = [{"type": "Accepted", "status": "False", "message": "a.yaml:1:2 is wrong"}]
    sync(commits[0], commits[1], refused)
    late = wait(cluster, "revision", "--timeout", "0.1s")
    assert late.exit_code == 1 and f"{commits[1][:12]} is not in force" in late.output
    assert "a.yaml:1:2 is wrong" in late.output
    sync(commits[1], commits[1], [{"type": "Applied", "status": "False", "message": "1 of 3 objects, 2 held back"}])
    assert "1 of 3 objects, 2 held back" in wait(cluster, "revision", "--timeout", "0.1s").output
    sync(commits[1], commits[1], IN_FORCE)
    done = wait(cluster, "revision")
    assert (done.exit_code, done.output) == (0, f"{commits[1][:12]} is in force: Everything\n")
    assert wait(cluster, "revision", commits[0][:8]).exit_code == 0, "a later commit contains it"
    monkeypatch.chdir(tmp_path)
    assert wait(cluster, "revision", commits[1][:10]).exit_code == 0
    assert wait(cluster, "revision", commits[0][:10], "--timeout", "0.1s").exit_code == 1, "nothing here knows it"
    assert "Name the revision" in wait(cluster, "revision").output
    assert "a job has a name" in wait(cluster, "job").output
