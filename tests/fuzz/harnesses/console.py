"""What the console's server reads: its own ConfigMaps, digests of passes, questions of people."""

from __future__ import annotations

import copy
from contextlib import suppress
from functools import cache
from typing import Any, Final

import msgspec

from belay.engine.cli.console_what_if import _change, _commands
from belay.engine.cli.forecast import staged
from belay.engine.errors import InputError
from belay.engine.replay import cluster_file
from belay.engine.replay.summary import SUFFIX, read_digest
from belay.engine.serve.console import comparison
from belay.engine.serve.console.document import Builder
from belay.engine.serve.console.questions import WhatIfBody
from belay.engine.serve.records.answers import query_of
from belay.engine.serve.records.changes import LookTimes, bindings, changes, evictions
from belay.engine.serve.records.events import read_events
from belay.engine.serve.records.reading import StatusReading
from belay.engine.simulate import World
from tests.fuzz.harness import CORPUS, Form, Harness, scratch
from tests.fuzz.harnesses.documents import _sample


def _document(data: bytes) -> None:
    """ConfigMaps by name, as the API server stores them: texts."""
    try:
        found: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return
    if isinstance(found, dict) and all(map(_stored, found.values())):
        builder = Builder()
        first = builder.build(found, time=0.0)
        second = builder.build({}, time=1.0)
        bodies = [msgspec.json.decode(msgspec.json.encode(one.body())) for one in (first, second)]
        comparison.between(*bodies)


def _stored(data: Any) -> bool:
    return isinstance(data, dict) and all(isinstance(text, str) for text in data.values())


def _digest(data: bytes) -> None:
    file = scratch(data, f"a{SUFFIX}")
    found = read_digest(file.with_name("a.belay.json.gz"))
    if found is not None:
        for by in ("code", "chip", "node", "link"):
            comparison.heat(by, [comparison.SeenDigest(1.0, "main", False, found)], 0.0, 2.0)


@cache
def _staged() -> World:
    return staged(_sample(), cluster_file.objects_of((CORPUS / "cluster-file/cluster.json").read_bytes(), "cluster"))


def _asked(data: bytes) -> None:
    body = msgspec.json.decode(data, type=WhatIfBody)
    world = copy.deepcopy(_staged())
    for one in body.changes[:4]:
        _change(world, one, "change 1", [])
        _commands(one)


def _history(data: bytes) -> None:
    """Status ConfigMaps, Events and a question, each as a look of the history reads them."""
    try:
        given: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return
    if not isinstance(given, dict):
        return
    status, events, asked = (given.get(key) for key in ("status", "events", "asked"))
    if isinstance(asked, dict) and _stored(asked):
        with suppress(InputError):
            query_of(asked)
    if isinstance(status, dict) and all(map(_stored, status.values())) and isinstance(events, list):
        seen = StatusReading().read(status)
        found = read_events([one for one in events if isinstance(one, dict)])
        first = changes({}, seen, found, LookTimes(1_000, 0, bindings(found), evictions(found)))
        lasting = {span.key: span for span in first.spans if not span.ended}
        changes(lasting, StatusReading().read({}), (), LookTimes(2_000, 1_000), seen)


HARNESSES: Final = (
    Harness(
        "history-look",
        _history,
        ("engine/serve/records/reading.py", "engine/serve/records/events.py", "engine/serve/records/answers.py"),
        form=Form.JSON,
    ),
    Harness(
        "console-document",
        _document,
        ("engine/serve/console/texts.py", "engine/serve/console/repository.py", "engine/wire/clustermap.py"),
    ),
    Harness("console-digest", _digest, ("engine/replay/summary.py",)),
    Harness(
        "console-what-if",
        _asked,
        ("engine/cli/console_what_if.py",),
        (InputError, msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError),
        Form.JSON,
        steps=2_000_000,
        tries=0.2,
    ),
)
