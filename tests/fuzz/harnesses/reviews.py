"""What `belay review` reads of CI and of forges."""

from __future__ import annotations

from typing import Final

from engine.cli.review import ci
from engine.cli.review.comment import code
from engine.cli.review.forges import ForgeError, comments_in
from engine.errors import InputError
from tests.fuzz.harness import Harness


def _event(data: bytes) -> None:
    assert ci.number_in(data) > 0


def _answer(data: bytes) -> None:
    for one in comments_in(data):
        shown = code(one.body or "") + code(one.by)
        assert "|" not in shown and "\n" not in shown
        shown.encode()


HARNESSES: Final = (
    Harness("ci-event", _event, ("engine/cli/review/ci.py",), allowed=(InputError,)),
    Harness("forge-answer", _answer, ("engine/cli/review/forges.py",), allowed=(ForgeError,)),
)
