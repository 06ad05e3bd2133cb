"""What `belay review` reads of CI and of forges, and `belay import` of artefacts."""

from __future__ import annotations

import gzip
from typing import Final

from belay.engine.cli.acts.requests import requests_in
from belay.engine.cli.artefacts import files_of
from belay.engine.cli.forge_calls import ForgeError
from belay.engine.cli.review import ci
from belay.engine.cli.review.comment import code
from belay.engine.cli.review.forges import comments_in
from belay.engine.errors import InputError
from tests.fuzz.harness import Form, Harness


def _event(data: bytes) -> None:
    assert ci.number_in(data) > 0


def _answer(data: bytes) -> None:
    for one in comments_in(data):
        shown = code(one.body or "") + code(one.by)
        assert "|" not in shown and "\n" not in shown
        shown.encode()


def _request(data: bytes) -> None:
    for one in requests_in(data):
        assert isinstance(one.number, int) and isinstance(one.title, str)


def _artefact(data: bytes) -> None:
    """Seeds are plain tar, so that headers can be changed."""
    packed = data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1, mtime=0)
    for path in files_of(packed, "a.tar.gz"):
        assert not path.startswith("/") and ".." not in path.split("/"), path


HARNESSES: Final = (
    Harness("ci-event", _event, ("engine/cli/review/ci.py",), allowed=(InputError,)),
    Harness("forge-answer", _answer, ("engine/cli/review/forges.py",), allowed=(ForgeError,)),
    Harness(
        "forge-request", _request, ("engine/cli/acts/requests.py", "engine/cli/forge_calls.py"), allowed=(ForgeError,)
    ),
    Harness("artefact", _artefact, ("engine/cli/artefacts.py",), allowed=(InputError,), form=Form.BYTES),
)
