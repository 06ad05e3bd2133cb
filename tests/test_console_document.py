"""The console's document: from the status ConfigMaps of a cluster, bounded, and the same by patches."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from belay.engine.documents import Desired
from belay.engine.load import load
from belay.engine.model.cluster import Observed
from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import Plan
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.serve.console import patches
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.document import Builder, StateDocument, data_of
from belay.engine.serve.console.follower import StatusFollower
from belay.engine.serve.console.repository import section
from belay.engine.serve.console.texts import LONGEST
from belay.engine.status import memory_bodies, status_bodies
from belay.engine.status.sync_status import SyncState
from belay.engine.wire.clustermap import HOLDS, STATES
from belay.engine.wire.revisionlog import ENTRIES, RevisionEntry
from belay.engine.wire.sync import HELD_PRUNE
from tests.bench.clusters import NOW, ascend_job, cluster, device, node, pod, service

SHIPPED = load({}).desired


def planned(items: list[dict[str, Any]], now: float = NOW, desired: Desired = SHIPPED) -> tuple[Plan, Observed]:
    observed = observe(items)
    return plan(desired, observed, now), observed


def published(items: list[dict[str, Any]], now: float = NOW, desired: Desired = SHIPPED) -> dict[str, Any]:
    """The data of every status ConfigMap of a pass."""
    result, observed = planned(items, now)
    bodies = status_bodies(result, observed, SyncState(attempted="a" * 40, applied="a" * 40), None, desired)
    return data_of([*bodies, *memory_bodies(result, observed, desired=desired)])


def document(items: list[dict[str, Any]], builder: Builder | None = None, now: float = NOW) -> StateDocument:
    return (builder or Builder()).build(published(items, now), time=now)


def chip(shown: StateDocument, name: str, number: int) -> dict[str, Any]:
    """The values of one chip in every column."""
    at = shown.layout.at(name, number)
    return {column: cells[at] for column, cells in shown.sections["chips"].items()}


def test_every_node_and_chip_is_on_the_map_with_its_job() -> None:
    shown = document(cluster(4, 1))
    nodes, chips = shown.sections["nodes"], shown.sections["chips"]
    assert nodes["name"] == [f"node-{n:05d}" for n in range(4)]
    assert set(nodes["product"]) == {"atlas-800t-a2"} and set(nodes["state"]) == {"healthy"}
    assert len(chips["node"]) == 32 and {len(cells) for cells in chips.values()} == {32}
    assert chips["chip"][:9] == [0, 1, 2, 3, 4, 5, 6, 7, 0]
    job = shown.sections["jobs"][chips["job"][0]]
    assert (job["namespace"], job["name"], job["phase"], job["chips"]) == ("train", "job-00000", "Running", 16)
    assert [place >= 0 for place in chips["job"]] == [True] * 16 + [False] * 16


def test_a_fault_is_a_state_a_hold_and_a_row() -> None:
    items = [node("a", 0), device("a", faulty=3), node("b", 1), device("b")]
    shown = document(items)
    assert STATES[chip(shown, "a", 3)["state"]] == "isolated"
    assert HOLDS[chip(shown, "a", 3)["hold"]] == "fault"
    assert chip(shown, "b", 3)["state"] == chip(shown, "b", 3)["hold"] == 0
    (fault,) = shown.sections["faults"]
    assert (fault["code"], fault["node"], fault["chip"]) == ("80C98001", "a", 3)
    assert fault["level"] == "RestartNPU" and fault["since"] is not None


def test_a_job_that_waits_says_why_and_the_way_out() -> None:
    shown = document([node("a", 0), device("a"), ascend_job("big", 1, 8), service("big"), waiting_pod("big", 16)])
    (job,) = shown.sections["jobs"]
    assert job["phase"] == "Pending" and job["reason"] and job["message"]
    assert job["wayOutNodes"] == []
    (short,) = document(
        [node("a", 0), device("a", faulty=3), ascend_job("whole", 1, 8), service("whole"), waiting_pod("whole", 8)]
    ).sections["jobs"]
    assert "nearest is a with 7 free" in short["wayOut"] and short["wayOutNodes"] == ["a"]
    (queue,) = shown.sections["queues"]
    assert (queue["name"], queue["waiting"], queue["running"]) == ("default", 1, 0)


def waiting_pod(job: str, chips: int) -> dict[str, Any]:
    body = pod(job, 0, "", chips)
    del body["spec"]["nodeName"], body["metadata"]["annotations"]["huawei.com/AscendReal"]
    del body["metadata"]["annotations"]["huawei.com/Ascend910"]
    return body | {"status": {"phase": "Pending"}}


def test_a_patch_makes_one_document_into_the_next() -> None:
    builder = Builder()
    before = document(cluster(3, 1), builder)
    items = [*cluster(3, 1), device("node-00002", faulty=5)]
    after = document(items[:5] + items[6:], builder, NOW + 5)
    assert patches.same_places(before, after) and before.id != after.id
    event = json.loads(json.dumps(patches.event(before, after)))
    assert event["from"] == before.id and event["patch"]["chips"]["state"]["i"] == [21]
    assert patches.patched(before.sections, event["patch"]) == after.sections


def test_a_job_keeps_its_place_when_another_goes() -> None:
    builder = Builder()
    before = document(cluster(4, 2), builder)
    gone = [item for item in cluster(4, 2) if "job-00000" not in item["metadata"]["name"]]
    after = document(gone, builder, NOW + 5)
    place = chip(before, "node-00002", 0)["job"]
    assert chip(after, "node-00002", 0)["job"] == place
    assert [row and row["name"] for row in after.sections["jobs"]] == [None, "job-00001"]
    assert patches.patched(before.sections, patches.difference(before, after)) == after.sections


def test_a_new_node_needs_a_new_document() -> None:
    builder = Builder()
    assert not patches.same_places(document(cluster(2, 0), builder), document(cluster(3, 0), builder))


def test_the_same_content_at_another_time_is_another_moment() -> None:
    builder = Builder()
    assert document(cluster(1, 0), builder).id != document(cluster(1, 0), builder, NOW + 1).id


def test_texts_of_a_hostile_cluster_are_bounded_and_stay_text() -> None:
    result, observed = planned(cluster(1, 0))
    markup = "<img src=x onerror=alert(1)>"
    findings = tuple(
        Diagnostic("error", f"Kind/{markup}-{n}", f"desired/{n}.yaml", n, 1, "spec", markup + "x" * 1000)
        for n in range(20_000)
    )
    huge = Diagnostic("error", "Kind/huge", "desired/huge.yaml", 1, 1, "spec", "y\n" * 500_000)
    secret = Diagnostic("error", "Kind/s", "a.yaml", 1, 1, "spec", "clone https://me:hunter2@git.example/x failed")
    state = SyncState(diagnostics=(huge, secret, *findings))
    found = data_of(status_bodies(result, observed, state, None, SHIPPED))
    found["belay-job-x"] = {"phase": "Pending" * 99, "status.json": json.dumps({"pending": {"message": "z" * 10**6}})}
    body = Builder().build(found, time=NOW)
    text = body.encoded()
    assert len(text) < 600_000 and b"hunter2" not in text
    assert markup in text.decode()  # as it is: the page shows texts, never markup
    rows = [*body.sections["git"]["findings"], *body.sections["jobs"]]
    assert rows and all(len(value) <= LONGEST for row in rows for value in row.values() if isinstance(value, str))
    assert all("\n" not in row["message"] for row in rows)


@pytest.mark.parametrize("text", ["", "[", "null", '{"name": 7}', '{"name": ["a"]}', "[1, 2]", "[" * 100_000])
def test_what_a_person_broke_counts_as_empty(text: str) -> None:
    found = published(cluster(2, 1))
    for name, data in found.items():
        for key in data:
            if key.endswith(".json"):
                broken = {**found, name: {**data, key: text}}
                json.loads(Builder().build(broken, time=NOW).encoded())


def test_numbers_and_lists_of_another_form_end_nothing() -> None:
    found = published(cluster(2, 1))
    found["belay-sync"] = {**found["belay-sync"], HELD_PRUNE: '{"list": 5, "limits": 7, "release": []}'}
    found["belay-job-x"] = {"phase": "Pending", "status.json": '{"requests": {"a": 1.7e308, "b": 1.7e308}}'}
    json.loads(Builder().build(found, time=NOW).encoded())


class _Page:
    """A cluster whose second state nothing can show."""

    def __init__(self) -> None:
        self.broken = False

    def build(self, found: Any, **_: Any) -> StateDocument:
        if self.broken:
            raise TypeError("boo")
        return Builder().build(found, time=NOW)


def test_a_state_that_cannot_be_shown_is_a_finding_and_the_next_one_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    page, changes = _Page(), ChangeStream()
    follower = StatusFollower(object(), changes)  # type: ignore[arg-type]
    follower._builder = page  # type: ignore[assignment]
    follower._found = published(cluster(1, 0))
    follower._publish_guarded()
    first = changes.document
    page.broken = True
    follower._publish_guarded()
    assert changes.document is first and "what is shown is old" in follower._broken
    page.broken, follower._found = False, published(cluster(2, 0))
    follower._publish_guarded()
    assert changes.document is not first and not follower._broken
    assert caplog.text.count("the status is not shown") == 1


def test_faults_beyond_the_bound_are_counted() -> None:
    rows = [{"code": f"{n:08X}", "node": "node-00000", "chip": 0, "level": "x"} for n in range(5_000)]
    found = published(cluster(1, 0))
    found["belay-chips-main-0"] = {
        **found["belay-chips-main-0"],
        "faults.json": json.dumps(rows),
        "leftOut": '{"faults":95000}',
    }
    sections = Builder().build(found, time=NOW).sections
    assert len(sections["faults"]) + sections["leftOut"]["faults"] == 100_000


def test_the_parts_of_a_map_left_over_from_a_larger_cluster_do_not_count() -> None:
    found = published(cluster(1, 0))
    stale = {**found["belay-map-main-0"], "nodes.json": found["belay-map-main-0"]["nodes.json"].replace("00000", "9")}
    body = Builder().build({**found, "belay-map-main-1": stale}, time=NOW)
    assert body.sections["nodes"]["name"] == ["node-00000"]


def test_the_map_is_cut_into_parts_that_fit_and_puts_them_together() -> None:
    found = published(cluster(5000, 0))
    parts = [name for name in found if name.startswith("belay-map-")]
    assert len(parts) > 1
    assert all(sum(map(len, data.values())) < 800 * 1024 for data in found.values())
    assert len(Builder().build(found, time=NOW).sections["nodes"]["name"]) == 5000


def test_a_revision_is_accepted_by_its_shard() -> None:
    def log(*revisions: str) -> dict[str, str]:
        entries = [
            RevisionEntry(number=n, revision=one, source="s", time=1000 * n) for n, one in enumerate(revisions, 1)
        ]
        return {ENTRIES: msgspec.json.encode(entries).decode()}

    old, both, other = "a" * 40, "b" * 40, "c" * 40
    logs = {"belay-revisions": log(old, both), "belay-revisions.east": log(both, other)}
    for shard, accepted in (("main", {old, both}), ("east", {both, other})):
        rows = section({}, logs, (), shard)["revisions"]
        assert {row["id"] for row in rows if row["accepted"]} == accepted
        taken = {row["id"]: row["taken"] for row in rows if row["taken"]}
        assert set(taken) == accepted and taken[both].startswith("1970-01-01T00:00:0")
        assert {row["id"][0]: row["shards"] for row in rows} == {"a": ["main"], "b": ["main", "east"], "c": ["east"]}


def test_jobs_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("belay.engine.serve.console.document.MOST_JOBS", 3)
    document = Builder().build(published(cluster(8, 5)), time=NOW)
    assert len(document.sections["jobs"]) == 3 and document.sections["leftOut"]["jobs"] == 2
    assert max(document.sections["chips"]["job"]) == 2


def test_a_recovery_lasts_as_long_as_its_stages_show() -> None:
    def recovered(*times: str, seconds: int | None) -> Any:
        stages = [
            {"stage": stage, "time": time} for stage, time in zip(("seen", "bound", "running"), times, strict=False)
        ]
        one = {"reason": "Fault", "codes": ["80C98001"], "stages": stages, "actual": {"seconds": seconds}}
        status = {"recoveries": [one], "placement": {}}
        shown = Builder().build({"belay-job-j": {"status.json": json.dumps(status)}}, time=NOW)
        return shown.sections["recoveries"][0]["seconds"], shown.sections["fleet"]["mttr"]

    times = ("2026-11-24T06:22:47.836Z", "2026-11-24T06:22:50.100Z", "2026-11-24T06:22:54.536Z")
    assert recovered(*times, seconds=6) == (6.7, 6.7)
    assert recovered(*times[:2], seconds=6) == (6, 6), "stages that say less than the status do not count"
    assert recovered(*times, seconds=None) == (None, None), "it goes on"
    assert recovered(times[0], "soon", seconds=6) == (6, 6)


def test_a_hundred_thousand_findings_make_a_small_document() -> None:
    rows = [{"severity": "error", "file": f"desired/{n}.yaml", "line": n, "message": "m"} for n in range(100_000)]
    found = {**published(cluster(1, 0)), "belay-sync": {"diagnostics.json": json.dumps(rows)}}
    assert len(Builder().build(found, time=NOW).encoded()) < 200_000
