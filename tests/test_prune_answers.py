"""What `belay plan`, `diff`, `simulate`, `status` and `replay` say of a deletion that waits for a person."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.status_table import print_status
from belay.engine.replay import recording
from belay.engine.status import SyncState
from belay.engine.status.conditions import StatusCondition
from belay.engine.status.events import held_events
from belay.engine.status.status_reader import read_status
from belay.engine.status.sync_status import sync_body
from belay.engine.wire import names, sync
from tests.gitrepo import Repo
from tests.test_sync_pruning import JOBS, held, job, running, tree


def belay(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    made = Repo(tmp_path / "git")
    made.commit(dict(tree(*JOBS)))
    return made


@pytest.fixture
def cluster(tmp_path: Path, repo: Repo) -> str:
    """A List of a cluster in which the repository's commit is in force."""
    world = running(*JOBS)
    (key,) = [key for key in world.objects if key.name == names.SYNC]
    world.objects[key]["data"]["appliedRevision"] = repo.head()
    file = tmp_path / "cluster.json"
    items = [world.objects[key] for key in sorted(world.objects)]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(file)


def planned(repo: Repo, cluster: str) -> dict[str, Any]:
    result = belay("plan", "--desired", str(repo.work), "--cluster", cluster, "-o", "json")
    assert result.exit_code == 0, result.output
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def empty(repo: Repo, message: str = "clean up") -> None:
    for file in (repo.work / "desired").glob("AscendJob-*"):
        file.unlink()
    repo.commit(message=message)


def test_a_plan_before_the_merge_prints_the_digest_and_a_commit_that_carries_it_is_released(
    repo: Repo, cluster: str
) -> None:
    empty(repo)
    before = planned(repo, cluster)
    hold = before["heldPrune"]
    assert (hold["objects"], hold["jobs"], hold["chips"]) == (5, 5, {"default": 80})
    assert {(row["budget"], row["until"], row["confirm"]) for row in before["deferred"]} == {
        ("default", None, hold["digest"])
    }
    assert [action for action in before["actions"] if action["kind"] == "DeleteObject"] == []
    table = belay("plan", "--desired", str(repo.work), "--cluster", cluster).output
    assert hold["release"] in table and "a person decides" in table
    assert hold["release"] in belay("simulate", "--desired", str(repo.work), "--cluster", cluster).output
    differences = belay("diff", "--desired", str(repo.work), "--cluster", cluster)
    assert hold["release"] in differences.output and differences.exit_code == 1
    repo.commit(message=f"finished\n\n{hold['release']}")
    after = planned(repo, cluster)
    assert "heldPrune" not in after and after["deferred"] == []
    assert sum(action["kind"] == "DeleteObject" for action in after["actions"]) == 5


def test_a_plan_without_a_deletion_mentions_none(repo: Repo, cluster: str) -> None:
    assert "heldPrune" not in planned(repo, cluster)


def test_the_status_lists_waiting_objects_within_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    many = [job(f"job-{number:03d}-{'x' * 40}", workers=0) for number in range(60)]
    world = running(*many, nodes=60)
    world.push(tree())
    plan = world.plan()
    hold = held(plan)
    observed = world.observer.observed()
    body = sync_body(SyncState(), plan, observed)
    read = read_status([body])
    assert read.held_prune["digest"] == hold.digest and len(read.held_prune["list"]) == 60
    assert body["data"]["pruneBase"] == "rev-1"
    print_status(read, sys.stdout, wide=False, now=0.0)
    shown = capsys.readouterr().out
    assert f"Belay-Confirm: {hold.digest}" in shown and hold.objects[-1].object in shown and "PruneHeld" in shown
    more = tuple(hold.objects[0] for _ in range(20_000))
    grown = msgspec.structs.replace(plan, held_prune=msgspec.structs.replace(hold, objects=more))
    data = sync_body(SyncState(), grown, observed)["data"]
    assert len(data["heldPrune.json"]) < 60_000
    bounded = json.loads(data["heldPrune.json"])
    assert bounded["objects"] == 20_000 == len(bounded["list"]) + bounded["leftOut"]


def test_findings_write_runs_of_chips_short(capsys: pytest.CaptureFixture[str]) -> None:
    chips = ", ".join(f"Ascend910-{number}" for number in range(8))
    found = {"severity": "info", "object": "Node/node-1", "message": f"{chips} of node node-1 held: reset-pending"}
    body = {"metadata": {"name": names.SYNC}, "data": {"diagnostics.json": json.dumps([found])}}
    status = read_status([body])
    assert status.diagnostics == [found]
    print_status(status, sys.stdout, wide=False, now=0.0)
    assert "Ascend910-0..7 of node node-1 held: reset-pending" in capsys.readouterr().out


def test_events_name_each_object_once_per_set() -> None:
    world = running(*JOBS)
    world.push(tree())
    first = held_events(world.step())
    world.pass_time(61)
    again = held_events(world.step())
    names_of = [body["metadata"]["name"] for body in first]
    assert names_of == [body["metadata"]["name"] for body in again] and len(set(names_of)) == 5
    assert all(body["type"] == "Warning" and "Belay-Confirm: " in body["message"] for body in first)
    assert {body["involvedObject"]["kind"] for body in first} == {"AscendJob"}


def test_a_recorded_pass_with_a_confirmation_is_derived_again_and_older_recordings_are_read(tmp_path: Path) -> None:
    world = running(*JOBS)
    world.push(tree())
    digest = held(world.step()).digest
    objects = [world.objects[key] for key in sorted(world.objects)]

    def write(confirmed: tuple[str, ...], earlier: dict[str, bytes] | None = None) -> Path:
        more: dict[str, Any] = {"version": "1", "shard": "main", "now": world.now, "revision": world.revision}
        more |= {"files": world.files, "objects": objects, "confirmed": confirmed, "earlier": earlier or {}}
        first = recording.write(tmp_path, digest="?", **more)
        derived = recording.replay(first).derived
        first.unlink()
        return recording.write(tmp_path, digest=derived, **more)

    waits, goes = write(()), write((digest,))
    assert recording.replay(waits).same and recording.replay(goes).same
    assert recording.replay(waits).derived != recording.replay(goes).derived
    key = next(key for key in world.objects if key.kind == "AscendJob")
    edited = {**world.objects[key], "spec": {**world.objects[key]["spec"], "schedulerName": "other"}}
    objects = [edited if one == key else world.objects[one] for one in sorted(world.objects)]
    drifted, reverted = write(()), write((), dict(tree(*JOBS)))
    assert recording.replay(drifted).same and recording.replay(reverted).same
    assert recording.replay(reverted).derived != recording.replay(drifted).derived
    older = json.loads(gzip.decompress(waits.read_bytes()))
    del older["confirmed"], older["earlier"]
    waits.write_bytes(gzip.compress(json.dumps(older).encode()))
    assert recording.replay(waits).same


def test_a_condition_that_is_a_choice_stands_last_and_as_information(capsys: pytest.CaptureFixture[str]) -> None:
    world = running(job("job-1"))
    unsigned = StatusCondition("OrdersSigned", "False", "Unsigned", "no signature", severity=sync.INFO)
    refused = StatusCondition("Ready", "False", "Findings", "1 error")
    state = SyncState(conditions=(unsigned, refused))
    status = read_status([sync_body(state, world.plan(), world.observer.observed())])
    print_status(status, sys.stdout, wide=False, now=0.0)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "Findings" in line or "Unsigned" in line]
    assert [row[:3] for row in rows] == [["Ready", "False", "Findings"], ["OrdersSigned", "info", "Unsigned"]]
