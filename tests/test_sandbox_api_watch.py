"""Watches, paging and injected faults of the sandbox's API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from belay.engine.sandbox.api import FaultInjector, FaultRule
from belay.engine.sandbox.api.store import HISTORY, HISTORY_BYTES, ClusterStore, Watcher
from tests.api_client import JSON, MERGE, Client, Sandbox, at

pytestmark = pytest.mark.real_time

CM = "/api/v1/~/configmaps"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox()
    yield made
    made.close()


@pytest.fixture
def api(sandbox: Sandbox) -> Client:
    return sandbox.client()


def configmap(name: str, value: str = "1", **metadata: Any) -> JSON:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": {"v": value}}


def seen(events: list[JSON]) -> list[tuple[str, Any, Any]]:
    return [(event["type"], at(event, "object.metadata.name"), at(event, "object.data.v")) for event in events]


def version(api: Client) -> str:
    return str(at(api.send("GET", CM)[1], "metadata.resourceVersion"))


def test_a_watch_resumes_from_history_and_goes_on_live(api: Client) -> None:
    start = version(api)
    api.send("POST", CM, configmap("a"))

    async def go() -> list[JSON]:
        watching = asyncio.create_task(read(api, f"{CM}?resourceVersion={start}", 3))
        await asyncio.sleep(0.05)
        for value in ("2", "3"):
            async with api._session.patch(
                api._base + "/api/v1/namespaces/default/configmaps/a",
                data=json.dumps({"data": {"v": value}}),
                headers={"Content-Type": MERGE},
            ) as response:
                assert response.status == 200
        return await watching

    assert seen(api._run(go())) == [("ADDED", "a", "1"), ("MODIFIED", "a", "2"), ("MODIFIED", "a", "3")]


async def read(api: Client, path: str, count: int) -> list[JSON]:
    events: list[JSON] = []
    async with api._session.get(api._base + path.replace("~", "namespaces/default") + "&watch=1") as response:
        async for line in response.content:
            events.append(json.loads(line))
            if len(events) >= count:
                break
    return events


def test_bookmarks_carry_versions_of_other_objects_changes(api: Client) -> None:
    start = version(api)
    api.send("POST", CM, configmap("other"))
    path = f"{CM}?resourceVersion={start}&allowWatchBookmarks=true&fieldSelector=metadata.name=mine"
    events = api.watch(path, 1, seconds=3)
    assert events[0]["type"] == "BOOKMARK"
    assert int(events[0]["object"]["metadata"]["resourceVersion"]) > int(start)


def test_a_compacted_version_gets_410_and_a_fresh_list_works(api: Client) -> None:
    start = version(api)
    api.send("POST", CM, configmap("a"))
    assert api.send("POST", "/sandbox/compact")[0] == 200
    events = api.watch(f"{CM}?resourceVersion={start}", 1)
    assert [(e["type"], e["object"]["code"], e["object"]["reason"]) for e in events] == [("ERROR", 410, "Expired")]
    fresh = version(api)
    api.send("POST", CM, configmap("b"))
    assert seen(api.watch(f"{CM}?resourceVersion={fresh}", 1)) == [("ADDED", "b", "1")]


def test_initial_events_end_with_a_marked_bookmark(api: Client) -> None:
    api.send("POST", CM, configmap("a"))
    path = f"{CM}?sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    events = api.watch(path, 2)
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize(("form", "kind"), [("PartialObjectMetadata", "PartialObjectMetadata"), ("Table", "Table")])
def test_a_bookmark_has_the_form_of_the_other_events(api: Client, form: str, kind: str) -> None:
    """A client that asked for metadata decodes nothing else: the garbage collector ends such a watch with an error."""
    api.send("POST", CM, configmap("a"))
    api._headers["Accept"] = f"application/json;as={form};g=meta.k8s.io;v=v1"
    path = f"{CM}?sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    events = api.watch(path, 2)
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    assert [(e["object"]["kind"], e["object"]["apiVersion"]) for e in events] == [(kind, "meta.k8s.io/v1")] * 2
    assert events[1]["object"]["metadata"]["resourceVersion"]


def test_history_is_bounded_by_count_and_bytes() -> None:
    store = ClusterStore()
    for i in range(2 * HISTORY + 10):
        store.put("things", ("n", "a"), {"metadata": {"name": "a"}, "i": i})
    collection = store.collection("things")
    assert len(collection.history) <= 2 * HISTORY
    assert collection.compacted > 0
    big = "x" * (HISTORY_BYTES // 4)
    for _ in range(20):
        store.put("big", ("n", "a"), {"metadata": {"name": "a"}, "big": big})
    assert sum(len(event.entry.raw) for event in store.collection("big").history) <= 2 * HISTORY_BYTES + len(big) + 100


def test_history_never_skips_an_event_it_does_not_report_as_compacted() -> None:
    store = ClusterStore()
    versions = [store.put("things", ("n", "a"), {"metadata": {"name": "a"}}).rv for _ in range(2 * HISTORY + 10)]
    collection = store.collection("things")
    assert [event.rv for event in collection.since(collection.compacted)] == [
        v for v in versions if v > collection.compacted
    ]


def test_a_watcher_that_falls_behind_overflows() -> None:
    store = ClusterStore()
    watcher = Watcher(None, None)
    store.collection("things").subscribe(watcher)
    for _ in range(10_001):
        store.put("things", ("n", "a"), {"metadata": {"name": "a"}})
    assert watcher.overflowed
    assert len(watcher.queue) <= 10_000


def test_an_expired_continue_token_gets_410(api: Client) -> None:
    for i in range(4):
        api.send("POST", CM, configmap(f"c{i}"))
    token = at(api.send("GET", f"{CM}?limit=2")[1], "metadata.continue")
    api.send("POST", "/sandbox/compact")
    status, answer = api.send("GET", f"{CM}?limit=2&continue={token}")
    assert (status, answer["reason"]) == (410, "Expired")


# -- faults


def test_an_injected_429_has_retry_after_and_ends_after_its_count(api: Client) -> None:
    rule = {
        "mode": "error",
        "status": 429,
        "retryAfter": 7,
        "verbs": ["create"],
        "resources": ["configmaps"],
        "count": 2,
    }
    assert api.send("POST", "/sandbox/faults", rule)[0] == 201
    statuses = [api.send("POST", CM, configmap(f"c{i}"))[0] for i in range(3)]
    assert statuses == [429, 429, 201]
    assert api.send("GET", CM)[0] == 200
    api.send("POST", "/sandbox/faults", rule)

    async def retry_after() -> str:
        async with api._session.post(
            api._base + "/api/v1/namespaces/default/configmaps", json=configmap("x")
        ) as response:
            return response.headers["Retry-After"]

    assert api._run(retry_after()) == "7"
    assert api.send("GET", "/sandbox/faults")[1]["rules"][0]["hits"] == 1
    api.send("DELETE", "/sandbox/faults")
    assert api.send("GET", "/sandbox/faults")[1]["rules"] == []


def test_a_refused_request_changes_nothing(api: Client) -> None:
    api.send("POST", "/sandbox/faults", {"mode": "error", "status": 500})
    assert api.send("POST", CM, configmap("a"))[0] == 500
    api.send("DELETE", "/sandbox/faults")
    assert api.send("GET", f"{CM}/a")[0] == 404


def test_a_dropped_watch_ends_without_an_error(api: Client) -> None:
    api.send("POST", "/sandbox/faults", {"mode": "drop-watch", "latency": 0.1})
    begun = time.monotonic()
    assert api.watch(f"{CM}?resourceVersion={version(api)}", 1, seconds=30) == []
    assert time.monotonic() - begun < 10


def test_a_rule_drops_watches_that_are_already_open(sandbox: Sandbox, api: Client) -> None:
    start = version(api)

    async def watch() -> int:
        watching = asyncio.create_task(read(api, f"{CM}?resourceVersion={start}", 1))
        while not sandbox.server.store.collection("configmaps").watchers():
            await asyncio.sleep(0.01)
        rule = {"mode": "drop-watch", "resources": ["configmaps"], "count": 1}
        async with api._session.post(api._base + "/sandbox/faults", json=rule) as response:
            assert response.status == 201
        return len(await asyncio.wait_for(watching, 60))

    assert api._run(watch()) == 0


def test_a_lagging_watch_loses_nothing(api: Client) -> None:
    start = version(api)
    api.send("POST", "/sandbox/faults", {"mode": "watch-lag", "latency": 0.05, "seed": 3})
    for i in range(5):
        api.send("POST", CM, configmap(f"c{i}"))
    assert [name for _, name, _ in seen(api.watch(f"{CM}?resourceVersion={start}", 5))] == [f"c{i}" for i in range(5)]


@pytest.mark.parametrize(
    "rule, word",
    [
        ({"mode": "explode"}, "mode"),
        ({"mode": "error", "probability": 2}, "probability"),
        ({"mode": "error", "x": 1}, "x"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(api: Client, rule: JSON, word: str) -> None:
    status, answer = api.send("POST", "/sandbox/faults", rule)
    assert status == 400
    assert word in answer["message"]


def test_the_same_seed_hits_the_same_requests() -> None:
    def hits(seed: int) -> list[bool]:
        injector = FaultInjector(clock=lambda: 0.0)
        injector.add(FaultRule(mode="error", probability=0.5, seed=seed))
        return [bool(injector.match(("error",), "get", "pods")) for _ in range(50)]

    assert hits(1) == hits(1)
    assert hits(1) != hits(2)


def test_a_rule_ends_with_its_duration() -> None:
    now = [0.0]
    injector = FaultInjector(clock=lambda: now[0])
    injector.add(FaultRule(mode="error", duration=5.0))
    assert injector.match(("error",), "get", "pods")
    now[0] = 5.0
    assert not injector.match(("error",), "get", "pods")
    assert injector.rules() == []


def test_a_client_that_goes_away_leaves_no_watcher_behind(sandbox: Sandbox, api: Client) -> None:
    collection = sandbox.server.store.collection("configmaps")

    async def come_and_go() -> int:
        async with api._session.get(api._base + "/api/v1/namespaces/default/configmaps?watch=1") as response:
            assert response.status == 200
            for _ in range(100):
                if collection.watchers():
                    break
                await asyncio.sleep(0.01)
            open_now = len(collection.watchers())
            response.close()
        return open_now

    async def left() -> int:
        for _ in range(200):
            if not collection.watchers():
                break
            await asyncio.sleep(0.01)
        return len(collection.watchers())

    assert api._run(come_and_go()) == 1
    assert api._run(left()) == 0
