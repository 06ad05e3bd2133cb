"""Slow, silent and too many callers: the server closes their connections and keeps answering."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from belay.engine.errors import InputError
from belay.engine.serve import webhook
from belay.engine.serve.slow_connections import SlowConnections

pytestmark = pytest.mark.real_time


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Transport:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


class Connection:
    def __init__(self) -> None:
        self.transport = Transport()
        self._request_count = 0
        self._current_request: object | None = None


def test_a_connection_without_a_request_ends_after_its_time() -> None:
    clock, silent, asking = Clock(), Connection(), Connection()
    sweeper = SlowConnections(head=15.0, clock=clock)
    for second in range(20):
        clock.now = float(second)
        asking._request_count = second // 10
        sweeper.close_overdue([c for c in (silent, asking) if not c.transport.aborted])
    assert silent.transport.aborted and not asking.transport.aborted


def test_a_request_that_never_ends_is_ended() -> None:
    clock, stuck = Clock(), Connection()
    stuck._request_count, stuck._current_request = 1, object()
    sweeper = SlowConnections(head=1.0, answer=60.0, clock=clock)
    sweeper.close_overdue([stuck])
    clock.now = 59.0
    assert sweeper.close_overdue([stuck]) == 0
    clock.now = 61.0
    assert sweeper.close_overdue([stuck]) == 1 and stuck.transport.aborted


def test_of_too_many_connections_the_longest_silent_go() -> None:
    clock = Clock()
    sweeper = SlowConnections(most=3, clock=clock)
    connections = [Connection() for _ in range(5)]
    connections[0]._current_request = object()
    for number in range(1, 6):
        clock.now = float(number)
        sweeper.close_overdue([c for c in connections[:number] if not c.transport.aborted])
    assert [c.transport.aborted for c in connections] == [False, True, True, False, False]


def test_three_hundred_half_requests_are_closed_and_others_answered() -> None:
    async def story() -> None:
        async def hello(request: web.Request) -> web.Response:
            return web.Response(text="ok")

        app = web.Application()
        app.router.add_get("/", hello)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        server: Any = runner.server
        clock = Clock()
        sweeper = SlowConnections(clock=clock)
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for _, writer in slow:
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ")
        while len(server.connections) < 300:
            await asyncio.sleep(0.01)
        assert sweeper.close_overdue(server.connections) == 0
        clock.now = 20.0
        assert sweeper.close_overdue(server.connections) == 300
        for reader, writer in slow:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), 30)
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).endswith(b"ok")
        writer.close()
        await runner.cleanup()

    asyncio.run(story())


def test_a_form_of_a_thousand_fields_is_refused() -> None:
    body = b"&".join(b"f%d=1" % number for number in range(1_000))
    with pytest.raises(InputError, match="more than 16 fields"):
        webhook.read({"Content-Type": "application/x-www-form-urlencoded"}, body)
