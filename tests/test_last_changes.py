"""Who changed a document last: from the source to every place that says what holds a chip or a node."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from belay.engine.cli import answers
from belay.engine.cli.explanation import explain
from belay.engine.cli.narrative import narrate
from belay.engine.controller.revision_reader import RevisionReader
from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.load.cluster import copies_from_git, places_of, with_places
from belay.engine.model.actions import DeleteObject, IsolateChip, IsolateNode
from belay.engine.model.causes import Cause
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.last_changes import LastChange, Place
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay import recording
from belay.engine.replay.offline import every_role
from belay.engine.source.last_changes import why
from belay.engine.status import SyncState
from belay.engine.status.events import events
from belay.engine.status.sync_status import sync_body
from belay.engine.store import RevisionRecord
from belay.engine.wire import lastchanges, sync
from tests import worlds
from tests.golden.test_maintenance import isolated, started

ADA = LastChange("a" * 40, "Ada <ada@example.org>")
GRACE = LastChange("b" * 40, "Grace <grace@example.org>")
CHANGES = {"desired/maintenance.yaml": ADA, "policies/faults.yaml": GRACE}
CHIP = b"""
apiVersion: belay.dev/v1alpha1
kind: Isolation
metadata: {name: lasers}
spec: {chips: [{node: infer-1, chips: [2]}], reason: lasers are weak, until: "2027-01-01T00:00:00Z"}
"""
POLICY = b"""
apiVersion: belay.dev/v1alpha1
kind: FaultPolicy
metadata: {name: strict}
spec: {frequency: [{codes: ["80E18402"], times: 2, window: 24h, level: ManuallySeparateNPU}]}
"""


def test_a_table_is_read_as_it_was_written_and_garbage_is_no_table() -> None:
    assert lastchanges.decode(lastchanges.encode(CHANGES)) == CHANGES
    assert lastchanges.encode({}) == b"" and lastchanges.decode(b"") == {}
    for garbage in (b"[", b'{"commits": 1}', b"[" * 10_000, b'{"commits": [["a"]], "files": {"x": 0}}', b"\xff"):
        assert lastchanges.decode(garbage) == {}
    assert lastchanges.decode(b'{"commits": [["a", "b"]], "files": {"x": 0, "y": 1, "z": -1}}') == {
        "x": LastChange("a", "b")
    }
    reasoned = {"desired/a.yaml": LastChange("a" * 40, "Ada", "The paper is due."), "desired/b.yaml": GRACE}
    table = lastchanges.encode(reasoned)
    assert lastchanges.decode(table) == reasoned and b"whys" not in lastchanges.encode(CHANGES)
    assert lastchanges.decode(table.replace(b'"whys":["The paper is due.",""]', b'"whys":["x"]')) == {
        path: msgspec.structs.replace(one, why="") for path, one in reasoned.items()
    }, "a list of another length is no list of these commits"
    long = {f"desired/{number}/{'x' * 200}.yaml": ADA for number in range(12_000)}
    assert lastchanges.encode(long) == b"", "a larger table is left out"


def world() -> tuple[Plan, Any, Desired, Any]:
    """A node and a chip isolated by two people."""
    found, first, _ = started()
    found.push(isolated(first) | {"desired/lasers.yaml": CHIP})
    found.desired = dataclasses.replace(found.desired, last_changes={**CHANGES, "desired/lasers.yaml": GRACE})
    return found.plan(), found.observer.observed(), found.desired, first


def test_an_isolation_has_reason_author_and_end_wherever_it_is_shown() -> None:
    result, observed, desired, node = world()
    by_node = (
        "Isolation/new-optics (optics are replaced) at desired/maintenance.yaml:1@aaaaaaaaaaaa by Ada <ada@example.org>"
    )
    by_chip = (
        "Isolation/lasers (lasers are weak, until 2027-01-01T00:00:00Z) at desired/lasers.yaml:2@bbbbbbbbbbbb by "
        "Grace <grace@example.org>"
    )
    taken = [one for one in result.actions if isinstance(one, IsolateChip | IsolateNode)]
    causes = {type(one): one.evidence.cause for one in taken}
    assert {kind: cause.text for kind, cause in causes.items() if isinstance(cause, Cause)} == {
        IsolateNode: by_node, IsolateChip: by_chip,
    }  # fmt: skip
    assert {one.evidence.revision for one in taken} == {desired.revision}, "the revision in force stands apart"
    assert all(any(text in event["message"] for text in (by_node, by_chip)) for event in events(taken, result.now))

    held = {(one["node"], one.get("chip", "")): one["cause"] for one in result.document()["holds"]}
    assert held[node, ""] | {"subject": ""} == {
        "kind": "document", "subject": "", "detail": "optics are replaced", "file": "desired/maintenance.yaml",
        "line": 1, "commit": ADA.commit, "author": ADA.author,
    }  # fmt: skip
    assert held["infer-1", "Ascend310P-2"]["until"] == "2027-01-01T00:00:00Z"

    said = {
        "get nodes": next(row["heldBy"] for row in answers.nodes(result, observed).rows if row["node"] == node)[0],
        "get chips": next(row["heldBy"] for row in answers.chips(result, observed).rows if row["node"] == node)[0],
        "explain node": narrated("node", node, result, observed),
        "explain chip": narrated("chip", f"{node}/0", result, observed),
    }
    for where, text in said.items():
        for part in ("optics are replaced", "Ada <ada@example.org>", "desired/maintenance.yaml:1@aaaaaaaaaaaa"):
            assert part in text, (where, text)
    chip = narrated("chip", "infer-1/2", result, observed)
    assert "2027-01-01T00:00:00Z" in chip and "Grace <grace@example.org>" in chip and "lasers are weak" in chip


def test_why_a_person_acted_comes_back_in_explain() -> None:
    """``--why`` of `belay isolate` and of `belay scale`, from the commit to the explanation."""
    found, first, _ = started()
    found.push(isolated(first) | {"desired/lasers.yaml": CHIP})
    reasoned = msgspec.structs.replace(GRACE, why="Ticket 4711, the vendor comes on Friday.")
    changes = dict.fromkeys((*CHANGES, "desired/lasers.yaml", "desired/jobs/pretrain.yaml"), reasoned)
    desired = dataclasses.replace(found.desired, last_changes=changes)
    observed = found.observer.observed()
    result = plan(desired, observed, found.now)

    # what a command reads is what the engine published
    declared = tuple(desired_keys(desired))
    status = sync_body(SyncState(inventory=declared, places=places_of(desired)), result, observed)
    observed = msgspec.structs.replace(observed, places=sync.parse_places(status))
    desired = with_places(load(copies_from_git([status, *copies(desired)]), has_git=False).desired, [status])
    for kind, name in (("node", first), ("chip", "infer-1/2")):
        (held,) = explain(kind, name, result, observed, desired)["holds"]
        assert held["why"] == reasoned.why and held["author"] == GRACE.author, kind
    job = explain("job", "pretrain", result, observed, desired)
    assert job["why"] == reasoned.why and job["declaredBy"].endswith(f"@{'b' * 12} by {GRACE.author}")
    out = io.StringIO()
    narrate("job", job, out, None)
    assert f"why it was changed: {reasoned.why}" in out.getvalue()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("OPS-123: fan", "OPS-123: fan"),
        ("Ticket: 4711\nVendor: Friday\n\nBelay-Confirm: 0123", "Ticket: 4711 Vendor: Friday"),
        ("Signed-off-by: Ada <a@x>\nChange-Id: I4\n\nThe paper is due.", "The paper is due."),
        ("Belay-Confirm: 0123\nCo-authored-by: Bob <b@x>\nCC: Eve <e@x>", ""),
    ],
)
def test_a_reason_may_begin_with_a_ticket_and_trailers_are_none(body: str, reason: str) -> None:
    assert why(body) == reason


def test_what_git_declares_no_more_names_its_file_and_the_commit_that_removed_it() -> None:
    """The place comes from ``belay-sync``, which keeps it while the object is still there."""
    kept, gone = config_map("kept"), config_map("gone")
    files = {"desired/kept.yaml": json.dumps(kept).encode(), "desired/gone.yaml": json.dumps(gone).encode()}
    before = load(files, revision="r1").desired
    places = places_of(before)
    assert places["ConfigMap/train/gone"] == Place("desired/gone.yaml", 1)
    assert places_of(load({}, revision="r2").desired, places) == places, "what was declared stays for a while"

    status = sync_body(SyncState(inventory=keys_of(kept, gone), places=places), plan_of(before), Observed())
    live = [status, applied(kept), applied(gone)]
    after = load({"desired/kept.yaml": files["desired/kept.yaml"]}, revision="r2").desired
    after = dataclasses.replace(after, last_changes={"desired/gone.yaml": GRACE})
    result = plan(every_role(after), observe(live), worlds.NOW)
    rows = [*result.actions, *(row.action for row in result.deferred)]
    (pruned,) = [one for one in rows if isinstance(one, DeleteObject)]
    assert isinstance(pruned.evidence.cause, Cause)
    assert pruned.evidence.cause.text == (
        "ConfigMap/train/gone (no longer declared) at desired/gone.yaml:1@bbbbbbbbbbbb by Grace <grace@example.org>"
    )


def config_map(name: str) -> dict[str, Any]:
    metadata = {"namespace": "train", "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}


def applied(manifest: dict[str, Any]) -> dict[str, Any]:
    """The object that Belay made of a manifest."""
    own = {"uid": f"u-{manifest['metadata']['name']}", "labels": {"app.kubernetes.io/managed-by": "belay"}}
    return manifest | {"metadata": manifest["metadata"] | own}


def keys_of(*objects: dict[str, Any]) -> tuple[ObjectKey, ...]:
    return tuple(ObjectKey("v1", "ConfigMap", "train", one["metadata"]["name"]) for one in objects)


def plan_of(desired: Desired) -> Plan:
    return plan(desired, Observed(), worlds.NOW)


def narrated(kind: str, name: str, result: Plan, observed: Any) -> str:
    out = io.StringIO()
    narrate(kind, explain(kind, name, result, observed), out, None)
    return " ".join(out.getvalue().split())


def test_a_command_that_reads_the_cluster_names_the_place_in_git_too() -> None:
    """What stands in the cluster is a copy: ``belay-sync`` says where it comes from."""
    result, observed, desired, _ = world()
    status = sync_body(SyncState(inventory=tuple(desired_keys(desired)), places=places_of(desired)), result, observed)
    objects = [status, *copies(desired)]
    loaded = load(copies_from_git(objects), has_git=False).desired
    assert places_of(loaded) == {}
    placed = with_places(loaded, objects)
    mine = {name: place for name, place in places_of(desired).items() if name.startswith("Isolation/")}
    assert places_of(placed) == mine
    assert places_of(desired)["Isolation/new-optics"] == Place("desired/maintenance.yaml", 1, ADA.commit, ADA.author)

    older = {**status, "data": {key: text for key, text in status["data"].items() if key != sync.PLACES}}
    assert with_places(loaded, [older, *objects[1:]]) is loaded
    broken = {**status, "data": {**status["data"], sync.PLACES: "[" * 5000}}
    assert with_places(loaded, [broken]) is loaded


def desired_keys(desired: Desired) -> Iterable[Any]:
    from belay.engine.model.diagnostics import ObjectKey

    for item in (*desired.isolations, *desired.pools, *desired.budgets, *desired.layouts):
        yield ObjectKey("belay.dev/v1alpha1", item.document.kind, "", item.document.name)


def copies(desired: Desired) -> list[dict[str, Any]]:
    return [json.loads(item.document.model_dump_json(by_alias=True, exclude_none=True)) for item in desired.isolations]


class _Stored:
    """What the controller put into Redis."""

    def __init__(self, files: Mapping[str, bytes], changes: Mapping[str, LastChange] | None) -> None:
        self.contents = {f"blob-{path}": data for path, data in files.items()}
        meta: dict[str, Any] = {"conditions": []}
        if changes is not None:
            self.contents["table"] = lastchanges.encode(changes)
            meta[lastchanges.META] = "table"
        self.record = RevisionRecord("c" * 40, {path: f"blob-{path}" for path in files}, meta)

    def current(self, shard: str) -> RevisionRecord:
        return self.record

    def blobs(self, ids: Iterable[str]) -> dict[str, bytes]:
        return {name: self.contents[name] for name in ids if name in self.contents}


@pytest.mark.parametrize(
    ("changes", "author"), [(CHANGES, GRACE.author), (None, "")], ids=["new", "of an older controller"]
)
def test_a_worker_takes_the_last_changes_with_the_revision(changes: Any, author: str) -> None:
    reader = RevisionReader("main", _Stored({"policies/faults.yaml": POLICY}, changes))  # type: ignore[arg-type]
    loaded = reader.load(observe([]))
    assert loaded is not None
    strict = next(item for item in loaded.desired.fault_policies if item.document.name == "strict")
    place = loaded.desired.place_of(strict.origin)
    assert (place.author, place.commit) == (author, GRACE.commit if changes else "c" * 40)
    assert dict(reader.last_changes) == (CHANGES if changes else {})


def test_a_recording_keeps_the_last_changes_and_older_ones_are_read(tmp_path: Path) -> None:
    found, first, _ = started()
    files, objects = isolated(first), list(found.objects.values())
    digests = {}
    for name, changes in (("old", {}), ("new", CHANGES)):
        desired = dataclasses.replace(load(files, revision="r").desired, last_changes=changes)
        digests[name] = plan(desired, observe(objects), found.now).digest()
        file = recording.write(
            tmp_path / name, version="1", shard="main", now=found.now, revision="r", files=files, objects=objects,
            digest=digests[name], last_changes=changes,
        )  # fmt: skip
        assert recording.replay(file).same
    assert digests["old"] != digests["new"], "the commit and its author are part of the plan"
