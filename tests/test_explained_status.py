"""`belay explain queue|pool|policy|revision`: state, cause with numbers and next step, of what the engine published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.load import load
from belay.engine.model.last_changes import Place
from belay.engine.model.times import rfc3339
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.status import memory_bodies, status_bodies
from belay.engine.status.sync_status import SyncState
from belay.engine.wire import names, revisionlog, sync
from belay.engine.wire.revisionlog import RevisionEntry, RevisionLog
from tests.bench.clusters import NOW, cluster
from tests.test_published import WORLDS, config_maps

POLICY = {
    "apiVersion": "belay.dev/v1alpha1", "kind": "FaultPolicy", "metadata": {"name": "training"},
    "spec": {"mode": "shadow", "levels": {"80C98001": "NotHandleFault"}},
}  # fmt: skip


def explain(tmp_path: Path, items: list[dict[str, Any]], *words: str) -> Result:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return CliRunner().invoke(main, ["explain", *words, "--cluster", str(file)])


def document(tmp_path: Path, items: list[dict[str, Any]], *words: str) -> dict[str, Any]:
    result = explain(tmp_path, items, *words, "-o", "json")
    assert result.exit_code == 0, result.output
    body: dict[str, Any] = json.loads(result.stdout)
    return body


def test_a_queue_says_who_waits_and_what_would_help(tmp_path: Path) -> None:
    maps = config_maps(WORLDS["a job that waits"])
    body = document(tmp_path, maps, "queue", "default")
    assert body["summary"] == "Open, 0 jobs running, 1 job waits" and body["reasons"] == {"InvalidRequest": 1}
    assert body["waiting"][0]["job"] == "train/big" and "asks for 16 chips" in body["waiting"][0]["message"]
    assert body["nextSteps"] == ["train/big: ask for 8 chips a pod in 2 pods instead of 1"]
    text = explain(tmp_path, maps, "queue", "default").stdout
    assert text.startswith("queue default: Open, 0 jobs running, 1 job waits\n")
    assert "Queue" not in text, "what it is declared by is no place"
    assert "\nwhat comes next\n  train/big: ask for 8 chips" in text
    unknown = explain(tmp_path, maps, "queue", "defualt")
    assert unknown.exit_code == 2 and "there is no queue 'defualt'. Did you mean default?" in unknown.output
    planned = explain(tmp_path, maps, "queue", "default", "--now", "2026-09-01T08:00:00Z")
    assert planned.exit_code == 2 and "belay plan shows what they would change" in planned.output


def test_a_pool_says_what_is_free_and_what_is_out(tmp_path: Path) -> None:
    body = document(tmp_path, config_maps(WORLDS["a fault under a job"]), "pool", "default")
    assert body["summary"] == "3 of 3 nodes healthy; 24 chips: 16 used, 7 free, 1 out of service"
    assert [(one["node"], one["chip"], one["codes"]) for one in body["chips"]] == [
        ("node-00002", "Ascend910-5", ["80C98001"])
    ]
    assert body["nextSteps"] == ["belay explain chip node-00002/Ascend910-5"] and body["jobs"] == ["train/job-00000"]
    well = document(tmp_path, config_maps(WORLDS["jobs that run"]), "pool", "default")
    assert well["nextSteps"] == ["nothing: no node or chip of it is out of service"] and not well["chips"]


def test_what_people_declare_has_its_place_and_the_reason_of_its_last_change(tmp_path: Path) -> None:
    place = Place("desired/pools/default.yaml", 1, "a" * 40, "Ada <ada@example.org>", "the night belongs to evaluation")
    observed = observe(cluster(4, 1))
    desired = load({}).desired
    result = plan(desired, observed, NOW)
    state = SyncState(attempted="a" * 40, applied="a" * 40, places={"NodePool/default": place, "Queue/default": place})
    maps = [*status_bodies(result, observed, state, None, desired), *memory_bodies(result, observed, desired=desired)]
    for kind in ("pool", "queue"):
        body = document(tmp_path, maps, kind, "default")
        assert (body["declared"], body["why"]) == (place.text, "the night belongs to evaluation")
    assert "why it was changed: the night belongs to evaluation" in explain(tmp_path, maps, "pool", "default").stdout


ISOLATION = b"""
apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: fans}
spec: {nodes: [node-00003], chips: [{node: node-00003, chips: [1]}], reason: new fans}
"""


def test_a_pool_says_once_what_holds_a_whole_node(tmp_path: Path) -> None:
    desired = load({"desired/isolations.yaml": ISOLATION}).desired
    observed = observe(cluster(4, 1))
    result = plan(desired, observed, NOW)
    state = SyncState(attempted="a" * 40, applied="a" * 40)
    maps = [*status_bodies(result, observed, state, None, desired), *memory_bodies(result, observed, desired=desired)]

    body = document(tmp_path, maps, "pool", "default")
    (held,) = body["nodes"]
    assert (held["node"], held["chips"], held["used"], len(held["heldBy"])) == ("node-00003", 8, 0, 1)
    (chip,) = body["chips"]
    assert chip["chip"] == "Ascend910-1" and len(chip["heldBy"]) == 1, "what holds the chip alone"
    assert body["nextSteps"] == ["belay explain node node-00003", "belay explain chip node-00003/Ascend910-1"]
    assert body["summary"].endswith("16 used, 8 free, 1 out of service, 7 on nodes that take no work")


def test_a_policy_says_what_it_judges_and_how_to_enforce_it(tmp_path: Path) -> None:
    maps = config_maps(WORLDS["a fault"])
    (repository,) = [one for one in maps if one["metadata"]["name"] == names.SYNC]
    shadow = {"policy": "training", "action": "ReleaseChip", "what": "Ascend910-3 stays in service", "node": "a",
              "budget": "", "change": "dropped"}  # fmt: skip
    repository["data"][sync.SHADOW] = json.dumps([shadow])
    body = document(tmp_path, [*maps, POLICY], "policy", "training")
    assert body["summary"] == "mode shadow, 1 level of codes, 0 rules by frequency, 0 rules by duration"
    assert body["inShadow"][0]["what"] == "Ascend910-3 stays in service" and body["levels"] == {
        "80C98001": "NotHandleFault"
    }
    assert body["nextSteps"] == ["to enforce it: belay policy edit training --mode enforce"]
    assert explain(tmp_path, maps, "policy", "training").exit_code == 2

    enforced = {**POLICY, "spec": {**POLICY["spec"], "mode": "enforce"}}
    (step,) = document(tmp_path, [*maps, enforced], "policy", "training")["nextSteps"]
    assert "belay policy test FILE --against RECORDINGS" in step, "as the command line takes it"


@pytest.mark.parametrize(
    ("conditions", "steps"),
    [
        ([{"type": "Applied", "status": "True", "message": "Everything"}], "nothing: everything that it declares"),
        (
            [{"type": "Applied", "status": "False", "reason": "Applying", "message": "1 on the way"}],
            "belay wait revision",
        ),
        ([{"type": "Applied", "status": "False", "reason": "ExceptRefused", "message": "bad"}], "belay validate"),
    ],
)
def test_a_revision_says_how_it_stands(tmp_path: Path, conditions: list[dict[str, str]], steps: str) -> None:
    now, before = "a" * 40, "b" * 40
    maps = config_maps(WORLDS["jobs that run"])
    (repository,) = [one for one in maps if one["metadata"]["name"] == names.SYNC]
    repository["data"] |= {sync.CONDITIONS: json.dumps(conditions)}
    log = RevisionLog()
    for one in (before, now):
        log = log.appended(RevisionEntry(number=0, revision=one, source="r main", time=round(NOW - 60) * 1000))
    accepted = revisionlog.build(log, "main")
    body = document(tmp_path, [*maps, accepted], "revision", now[:8])
    assert body["revision"] == now and steps in body["nextSteps"][0]
    old = document(tmp_path, [*maps, accepted], "revision", before[:8])
    assert old["nextSteps"] == [f"to go back to it: belay rollback {before[:12]}"]
    assert f"{now[:12]} is in force now" in old["summary"] and old["accepted"] == rfc3339(round(NOW - 60))
