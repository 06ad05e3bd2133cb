"""What notifications read of others: the ledger in its ConfigMap, and the answers of receivers."""

from __future__ import annotations

from typing import Final

from belay.engine.documents import NotificationPolicy, ReceiverType
from belay.engine.serve.notify.ledger import Ledger
from belay.engine.serve.notify.ledger_map import LEDGER_KEY, config_map, read_state
from belay.engine.serve.notify.messages import message
from belay.engine.serve.notify.rules import Route, routes_of
from belay.engine.serve.notify.shapes import refusal, request
from tests.fuzz.harness import Form, Harness

_NOW: Final = 1_790_000_600_000
_ROBOTS: Final = (ReceiverType.DINGTALK, ReceiverType.FEISHU, ReceiverType.WECOM)


def _routes() -> list[Route]:
    receivers = [{"name": kind.lower(), "type": kind, "url": {"secret": "url"}} for kind in (*_ROBOTS, "Slack")]
    rule = {"name": "all", "events": ["Fault", "Finding"], "receivers": [one["name"] for one in receivers]}
    made = {
        "apiVersion": "belay.dev/v1alpha1", "kind": "NotificationPolicy", "metadata": {"name": "on-call"},
        "spec": {"receivers": receivers, "rules": [rule]},
    }  # fmt: skip
    return list(routes_of([NotificationPolicy.model_validate(made)]))


_ROUTES: Final = _routes()


def _ledger(data: bytes) -> None:
    """A ledger that a person may have changed: what it leads to is written, sent and noted."""
    ledger = Ledger(read_state({LEDGER_KEY: data.decode("utf-8", "replace")}))
    ledger.advance(_ROUTES, [], _NOW)
    for number, batch in enumerate(ledger.due(_ROUTES, _NOW)):
        ledger.claim(batch, "server-0", _NOW)
        request(batch.route.receiver.type, "https://hooks.example.org/x", message(batch, "https://b", _NOW))
        if number % 2:
            ledger.failed(batch, "it answers 503", _NOW)
        else:
            ledger.sent(batch, _NOW)
    again = read_state(config_map(ledger)["data"])
    assert len(again.entries) == len(ledger.entries), "a ledger that was written can be read"


def _answer(data: bytes) -> None:
    for kind in _ROBOTS:
        for status in (200, 400):
            assert len(refusal(kind, status, data)) < 300


HARNESSES: Final = (
    Harness("notify-ledger", _ledger, ("engine/serve/notify/ledger_map.py",), steps=1_000_000, steps_per_byte=4_000),
    Harness("notify-answer", _answer, ("engine/serve/notify/shapes.py",), form=Form.JSON, words=(b"errcode", b"code")),
)
