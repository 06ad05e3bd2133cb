"""Server-sent events: in order, resumable, and without a place for slow readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from belay.engine.serve.console import changes as module
from belay.engine.serve.console.changes import ChangeStream, TooManyViewers
from belay.engine.serve.console.document import Builder, StateDocument
from tests.bench.clusters import NOW, cluster
from tests.test_console_document import published


@pytest.fixture(scope="module")
def documents() -> list[StateDocument]:
    """Ten moments of one cluster."""
    builder, found = Builder(), published(cluster(1, 0))
    return [builder.build(found, time=NOW + n, problems=[f"problem {n}"]) for n in range(10)]


def read(event: bytes) -> dict[str, Any]:
    fields = dict(row.split(": ", 1) for row in event.decode().strip().splitlines())
    return {**fields, "data": json.loads(fields["data"])} if "data" in fields else fields


async def take(events: AsyncGenerator[bytes, None], count: int) -> list[dict[str, Any]]:
    return [read(await anext(events)) for _ in range(count)]


def test_a_viewer_gets_every_change_in_order(documents: list[StateDocument]) -> None:
    async def work() -> None:
        changes = ChangeStream()
        changes.publish(documents[0])
        events = changes.watch("")
        _, hello = await take(events, 2)
        assert hello["event"] == "hello" and hello["data"]["moment"]["id"] == documents[0].id
        for one in documents[1:4]:
            changes.publish(one)
        found = await take(events, 3)
        assert [one["event"] for one in found] == ["patch"] * 3
        assert [one["data"]["from"] for one in found] == [one.id for one in documents[:3]]
        assert found[0]["data"]["patch"] == {"problems": {"n": 1, "i": [0], "v": ["problem 1"]}}

    asyncio.run(work())


def test_a_viewer_that_comes_back_gets_what_it_missed_and_nothing_twice(documents: list[StateDocument]) -> None:
    async def work() -> None:
        changes = ChangeStream()
        for one in documents[:4]:
            changes.publish(one)
        events = changes.watch("")
        _, hello = await take(events, 2)
        await events.aclose()
        for one in documents[4:7]:
            changes.publish(one)
        again = changes.watch(hello["id"])
        _, *found = await take(again, 4)
        assert [one["data"]["moment"]["id"] for one in found] == [one.id for one in documents[4:7]]

    asyncio.run(work())


@pytest.mark.parametrize("last", ["x", "0badcafe-3", "-", "7-" + "9" * 40])
def test_who_was_away_too_long_or_watched_another_server_reads_the_document_again(
    documents: list[StateDocument], last: str
) -> None:
    async def work() -> None:
        changes = ChangeStream()
        changes.publish(documents[0])
        _, first = await take(changes.watch(last), 2)
        assert first["event"] == "reset"

    asyncio.run(work())


def test_the_ring_is_bounded_and_says_reset_beyond(documents: list[StateDocument]) -> None:
    async def work() -> None:
        changes = ChangeStream(ring=3)
        changes.publish(documents[0])
        _, hello = await take(changes.watch(""), 2)
        for one in documents[1:6]:
            changes.publish(one)
        _, found = await take(changes.watch(hello["id"]), 2)
        assert found["event"] == "reset" and found["data"]["moment"]["id"] == documents[5].id

    asyncio.run(work())


def test_a_viewer_that_does_not_read_is_dropped_and_costs_the_others_nothing(documents: list[StateDocument]) -> None:
    async def work() -> None:
        changes = ChangeStream(queued=2)
        changes.publish(documents[0])
        slow, quick = changes.watch(""), changes.watch("")
        await take(slow, 2)
        await take(quick, 2)
        for one in documents[1:5]:
            changes.publish(one)
            await take(quick, 1)
        assert changes.viewers == 1 and changes.dropped == 1
        with pytest.raises(StopAsyncIteration):
            await anext(slow)

    asyncio.run(work())


def test_silence_is_filled_with_comments(documents: list[StateDocument]) -> None:
    async def work() -> None:
        changes = ChangeStream()
        changes.publish(documents[0])
        events = changes.watch("", heartbeat=0.0)
        await take(events, 2)
        assert (await anext(events)).startswith(b":")

    asyncio.run(work())


@pytest.mark.parametrize(("name", "most"), [("greedy", module.MOST_OF_ONE), ("", module.MOST_UNNAMED)])
def test_one_viewer_leaves_streams_for_others(documents: list[StateDocument], name: str, most: int) -> None:
    async def work() -> None:
        changes = ChangeStream()
        kept = [changes.watch("", name=name) for _ in range(most)]
        for events in kept:
            await anext(events)
        with pytest.raises(TooManyViewers):
            await anext(changes.watch("", name=name))
        await anext(changes.watch("", name="another"))

    asyncio.run(work())


def test_viewers_are_counted(monkeypatch: pytest.MonkeyPatch, documents: list[StateDocument]) -> None:
    async def work() -> None:
        monkeypatch.setattr(module, "MOST_VIEWERS", 2)
        changes = ChangeStream()
        kept = [changes.watch("") for _ in range(2)]
        for events in kept:
            await anext(events)
        with pytest.raises(TooManyViewers):
            await anext(changes.watch(""))
        await kept[0].aclose()
        await anext(changes.watch(""))

    asyncio.run(work())
