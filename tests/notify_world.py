"""A cluster's status on a virtual clock, servers that notify, and receivers that take messages or do not."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from belay.engine.documents import Receiver
from belay.engine.model.times import rfc3339
from belay.engine.serve.notify.delivery import Delivery, NotSent
from belay.engine.serve.notify.ledger import Ledger, LedgerState
from belay.engine.serve.notify.ledger_map import config_map, read_state
from belay.engine.serve.notify.messages import Message
from belay.engine.serve.notify.service import NotificationService
from tests.history_world import HistoryWorld


class LedgerMemory:
    """The ledger's ConfigMap, as an API server keeps it: a write over an older version is refused."""

    def __init__(self) -> None:
        self.version, self.body, self.writes = 0, dict[str, Any](), 0

    async def read(self) -> tuple[Ledger, str]:
        return Ledger(read_state(self.body.get("data"))), str(self.version or "")

    async def write(self, ledger: Ledger, version: str) -> str | None:
        if version != str(self.version or ""):
            return None
        self.version, self.body, self.writes = self.version + 1, config_map(ledger), self.writes + 1
        return str(self.version)

    @property
    def state(self) -> LedgerState:
        return read_state(self.body.get("data"))


class Inboxes:
    """What receivers took, by name. ``down`` names those that take nothing; ``dies``: the server dies after sending."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Message]] = []
        self.tries = 0
        self.down: set[str] = set()
        self.dies = False

    async def send(self, receiver: Receiver, message: Message) -> None:
        self.tries += 1
        if receiver.name in self.down:
            raise NotSent("it answers 503: maintenance")
        self.taken.append((receiver.name, message))
        if self.dies:
            raise SystemError("the process ends here")

    def texts(self, name: str = "chat") -> list[list[str]]:
        """The sentences of each message that a receiver took, without their times."""
        return [[item.text.partition(" [")[0] for item in m.items] for to, m in self.taken if to == name]


class NotifyWorld(HistoryWorld):
    """A cluster whose servers notify. Time passes only by :meth:`goes_on`."""

    def __init__(self, *policies: dict[str, Any], servers: int = 1) -> None:
        super().__init__("sqlite://", servers=0)
        self.kept, self.inboxes = LedgerMemory(), Inboxes()
        self._delivery: Delivery = self.inboxes
        self.policies = list(policies)
        self.notifiers = [self.notifier(f"server-{number}") for number in range(servers)]

    def notifier(self, name: str = "server-0") -> NotificationService:
        """A server that starts now."""
        made = NotificationService(
            self.kept, self._delivery, name, console="https://belay.example.org/", wall=lambda: self.now,
            clock=lambda: self.now,
        )  # fmt: skip
        for policy in self.policies:
            made.take_policy(policy["metadata"]["name"], policy)
        return made

    def delivered_by(self, delivery: Delivery) -> None:
        """Messages leave by another way than to the inboxes; the servers start again."""
        self._delivery = delivery
        self.notifiers = [self.notifier(f"server-{number}") for number in range(len(self.notifiers))]

    def notice(self, *servers: NotificationService) -> None:
        """Each server (by default all) looks."""
        for server in servers or self.notifiers:
            for key in {*self.status, *server._status}:
                if server._status.get(key) != self.status.get(key):
                    server.take(key, self.status.get(key))
            for event in self.events:
                server.take_event(event)
            asyncio.run(server.look())

    def goes_on(self, seconds: float, every: float = 5.0) -> None:
        """Time passes, and the servers look now and then."""
        until = self.now + seconds
        while self.now < until:
            self.passes(min(every, until - self.now))
            self.notice()


def policy(
    *rules: dict[str, Any], receivers: list[dict[str, Any]] | None = None, name: str = "on-call"
) -> dict[str, Any]:
    """A policy with one chat, and rules that name it."""
    chat = {"name": "chat", "type": "Slack", "url": {"secret": "slack"}}
    made = [{"name": f"rule-{index}", "receivers": ["chat"], **rule} for index, rule in enumerate(rules)]
    return {
        "apiVersion": "belay.dev/v1alpha1", "kind": "NotificationPolicy", "metadata": {"name": name},
        "spec": {"receivers": receivers or [chat], "rules": made},
    }  # fmt: skip


def findings(*rows: tuple[str, str, str]) -> str:
    """``diagnostics.json`` of severity, object and message."""
    listed = [
        {
            "severity": severity,
            "object": subject,
            "file": "desired/a.yaml",
            "line": 3,
            "column": 5,
            "field": "",
            "message": text,
        }
        for severity, subject, text in rows
    ]
    return msgspec.json.encode(listed).decode()


def clock(now: float) -> str:
    """A time of the world as RFC 3339."""
    return rfc3339(now)
