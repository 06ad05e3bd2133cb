"""Notifications of servers: one message of two over a restart, on an API server; `belay notify test` and its path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.kube import CONFIGMAP
from belay.engine.serve.console.changes import ChangeStream
from belay.engine.serve.console.routes import Console
from belay.engine.serve.console.viewers import AccessRules, Viewers
from belay.engine.serve.engine_client import EngineClient
from belay.engine.serve.http import HttpServer
from belay.engine.serve.notify.delivery import NetworkDelivery
from belay.engine.serve.notify.ledger_map import LedgerMap
from belay.engine.serve.notify.routes import HEADER, PATH
from belay.engine.serve.notify.service import NotificationService
from belay.engine.wire import names
from tests.loop_world import Cluster
from tests.notify_world import NotifyWorld, policy
from tests.receivers import HttpReceiver

FAULTS = {"events": ["Fault"], "atLeast": "RestartNPU"}


class Replicas:
    """Servers that share a cluster's ledger and send over the network; they look at the same moment."""

    def __init__(self, cluster: Cluster, world: NotifyWorld, delivery: NetworkDelivery) -> None:
        self._cluster, self._world, self._delivery = cluster, world, delivery
        self.servers = [self.server("server-0"), self.server("server-1")]

    def server(self, name: str) -> NotificationService:
        world = self._world
        made = NotificationService(
            LedgerMap(self._cluster.kube), self._delivery, name, wall=lambda: world.now, clock=lambda: world.now
        )
        for one in world.policies:
            made.take_policy(one["metadata"]["name"], one)
        return made

    def go_on(self, seconds: float) -> None:
        until = self._world.now + seconds
        while self._world.now < until:
            self._world.passes(5)
            for server in self.servers:
                for key, data in self._world.status.items():
                    server.take(key, data)
            self._cluster.run(self._look())

    async def _look(self) -> None:
        await asyncio.gather(*(server.look() for server in self.servers))


@pytest.mark.real_time
def test_two_servers_and_those_that_follow_them_send_each_message_once(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    world = NotifyWorld(policy(FAULTS, receivers=[{"name": "chat", "type": "Slack", "url": {"secret": "url"}}]))
    try:
        with HttpReceiver() as http:
            (tmp_path / "url").write_text(f"http://{http.address}/hook")
            replicas = Replicas(cluster, world, NetworkDelivery(tmp_path, http.address, {}))
            replicas.go_on(10)
            world.fault("node-1", 3)
            replicas.go_on(60)
            assert len(http.taken) == 1
            kept = cluster.get(CONFIGMAP, names.NOTIFY, names.SYSTEM)
            assert kept is not None
            ledger = msgspec.json.decode(kept["data"]["ledger.json"])
            assert [entry["route"] for entry in ledger["entries"]] == ["on-call/rule-0/chat"]

            replicas.servers = [replicas.server("server-2"), replicas.server("server-3")]
            replicas.go_on(60)
            assert len(http.taken) == 1, "their ledger says that it was sent"
            world.fault("node-1", 3)
            replicas.go_on(60)
            assert len(http.taken) == 2 and "over: chip node-1/3" in http.taken[1].json["text"]
    finally:
        cluster.close()


Ask = Callable[[TestClient[Any, Any], NotifyWorld], Coroutine[Any, Any, None]]


def served(world: NotifyWorld, ask: Ask, *, free: bool = True) -> None:
    """Ask a server of the world over HTTP."""

    async def run() -> None:
        console = Console(ChangeStream(), Viewers(AccessRules(free=free), None))
        server = HttpServer(Mock(spec=EngineClient), shard="main", console=console, notify=world.notifiers[0])
        async with TestClient(TestServer(server.application())) as client:
            await ask(client, world)

    asyncio.run(run())


CHATS = [{"name": name, "type": "Slack", "url": {"secret": name}} for name in ("chat", "night")]


def test_belay_notify_test_says_what_each_receiver_answers() -> None:
    async def ask(client: TestClient[Any, Any], world: NotifyWorld) -> None:
        def belay(*words: str) -> Any:
            words = ("notify", "test", *words, "--server", str(client.make_url("")))
            return CliRunner().invoke(main, words, env={"KUBECONFIG": "/dev/null"})

        ended = await asyncio.to_thread(belay)
        assert ended.exit_code == 0 and ended.stdout.count("took the test message") == 2
        assert [to for to, _ in world.inboxes.taken] == ["chat", "night"]
        sent = world.inboxes.taken[0][1]
        assert sent.title == "Belay: test message" and "receiver chat" in sent.items[0].text

        ended = await asyncio.to_thread(belay, "night")
        assert ended.exit_code != 0 and "a test was sent just now" in ended.stderr and "Try again in" in ended.stderr
        assert len(world.inboxes.taken) == 2

    served(NotifyWorld(policy(FAULTS, receivers=CHATS)), ask)


def test_belay_notify_test_ends_with_1_where_a_receiver_takes_nothing() -> None:
    async def ask(client: TestClient[Any, Any], world: NotifyWorld) -> None:
        world.inboxes.down = {"night"}

        def belay() -> Any:
            words = ("notify", "test", "on-call/night", "-o", "json", "--server", str(client.make_url("")))
            return CliRunner().invoke(main, words, env={"KUBECONFIG": "/dev/null"})

        ended = await asyncio.to_thread(belay)
        assert ended.exit_code == 1
        (row,) = msgspec.json.decode(ended.stdout)["receivers"]
        assert row == {"receiver": "on-call/night", "type": "Slack", "problem": "it answers 503: maintenance"}

    served(NotifyWorld(policy(FAULTS, receivers=CHATS)), ask)


def test_an_unknown_receiver_is_named_and_pages_of_other_sites_send_nothing() -> None:
    async def ask(client: TestClient[Any, Any], world: NotifyWorld) -> None:
        assert (await client.post(PATH)).status == 403
        assert (await client.get(PATH, headers={HEADER: "test"})).status == 405
        answer = await client.post(PATH, params={"receiver": "nowhere"}, headers={HEADER: "test"})
        assert answer.status == 404 and "has such a receiver" in (await answer.json())["error"]
        words = ("notify", "test", "nowhere", "--server", str(client.make_url("")))
        ended = await asyncio.to_thread(CliRunner().invoke, main, words, env={"KUBECONFIG": "/dev/null"})
        assert ended.exit_code == 2 and ended.stderr.startswith("belay: no NotificationPolicy in force has such")
        # what found nothing to send is no reason to wait
        answer = await client.post(PATH, params={"receiver": "chat"}, headers={HEADER: "test"})
        assert answer.status == 200 and len(world.inboxes.taken) == 1

    served(NotifyWorld(policy(FAULTS, receivers=CHATS)), ask)


def test_who_may_not_look_may_not_send_either() -> None:
    async def ask(client: TestClient[Any, Any], world: NotifyWorld) -> None:
        answer = await client.post(PATH, headers={HEADER: "test"})
        assert answer.status == 401 and world.inboxes.tries == 0

    served(NotifyWorld(policy(FAULTS, receivers=CHATS)), ask, free=False)
