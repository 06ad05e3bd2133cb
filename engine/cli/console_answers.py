"""The process that answers the console's questions: one request after another, until its standard input ends.

`python -m belay.engine.cli.console_answers`, started by the console with bounds on its memory. The answers are those of
the verbs: `belay explain`, `belay plan`, `belay simulate`. It writes nothing but answers.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from belay.engine.cli.console_moments import Moments, MomentSource, about
from belay.engine.errors import BelayError
from belay.engine.log import redact
from belay.engine.serve.console.answers import LENGTH, MEMORY_VARIABLE, AnswerHead
from belay.engine.serve.console.texts import cleaned, line, name

MAX_REQUEST: Final = 2 * 1024 * 1024
MOST_LINES: Final = 2_000
PLAYED: Final = 0.5
"""Share of the time left to an answer in which a what-if begins passes, the reading of the cluster included."""
AFTER: Final = 3
"""Times the longest pass so far that must be left: for one pass more, its document, and the answer of them all."""
_KINDS: Final = ("chip", "code", "job", "node", "pod")


class Question(msgspec.Struct, frozen=True, rename="camel"):
    """One request: what is asked about which moment. ``repository``, ``path`` and ``data`` say where Git is,
    ``ends`` when the answer is due, on the clock of `time.monotonic` (0: without limit).
    """

    ask: str
    source: MomentSource = MomentSource("live")
    kind: str = ""
    name: str = ""
    branch: str = ""
    base: str = ""
    changes: list[dict[str, Any]] = []
    horizon: float = 600.0
    ends: float = 0.0
    repository: str = ""
    path: str = ""
    data: str = ""


class WhatIfDeadline:
    """Called before each pass of a what-if: True when the what-if must end now, so that its answer comes in time.

    ``ends`` is when the answer is due, in seconds of ``clock``. Make it before the cluster is read: the reading counts.
    """

    def __init__(self, ends: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._ends, self._clock = ends, clock
        self._played = clock() + PLAYED * (ends - clock())
        self._last: float | None = None
        self._longest = 0.0

    def __call__(self) -> bool:
        now = self._clock()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now
        return now > self._played or now + AFTER * self._longest > self._ends


class NotFoundError(BelayError):
    """What is asked about does not exist."""

    code = "NoSuchObject"


def main() -> int:
    """Answer until the end of the input."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may reach the answers
    limit = int(os.environ.get(MEMORY_VARIABLE, "0"))
    if limit:
        # what it writes to, not what libraries and allocators reserve: that is ten times as much and takes no memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write("1000")  # where memory ends, this process goes and not the server
    os.nice(5)  # the server, which shares the machine, comes first
    moments = Moments()
    while (question := _framed(sys.stdin.buffer)) is not None:
        head, body = answer(question, moments)
        for part in (msgspec.json.encode(head), body):
            answers.write(LENGTH.pack(len(part)) + part)
        answers.flush()
        if head.status == 507:
            return 1
    return 0


def answer(data: bytes, moments: Moments) -> tuple[AnswerHead, bytes]:
    """The answer to one request; never raises."""
    try:
        question = msgspec.json.decode(data, type=Question)
        seek = _ASKED[question.ask]
    except (msgspec.DecodeError, KeyError, UnicodeError, RecursionError) as error:
        return AnswerHead(400, line(f"the question is not understood: {error}")), b""
    try:
        return AnswerHead(200), seek(question, moments)
    except NotFoundError as error:
        return AnswerHead(404, line(error), line(error.hint)), b""
    except BelayError as error:
        return AnswerHead(400, line(error), ""), b""
    except MemoryError:
        return AnswerHead(507, "the cluster is too large for the memory that an answer may take"), b""
    # whatever a plan of a strange cluster raises: the next question has nothing to do with it
    except Exception as error:
        text = redact(f"{type(error).__name__}: {error}")
        # where it was raised goes to the server's log; the server counts it
        places = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in _frames(error)]
        sys.stderr.write(f"question not answered: {line(text)} in {line(' < '.join(places))}\n")
        return AnswerHead(500, line(f"internal error: {text}")), b""


def _document(question: Question, moments: Moments) -> bytes:
    from belay.engine.serve.console.document import Builder
    from belay.engine.serve.console.planned import document_of

    moment = moments.read(question.source)
    document = document_of(
        moment.plan, moment.observed, moment.desired,
        builder=Builder(), shard=moment.shard, identity=moment.identity, findings=moment.findings,
    )  # fmt: skip
    return document.encoded()


def _explain(question: Question, moments: Moments) -> bytes:
    from belay.engine.cli.explanation import explain
    from belay.engine.cli.narrative import narrate
    from belay.engine.errors import InputError

    moment = moments.read(question.source)
    if question.kind not in _KINDS:
        raise NotFoundError(f"{question.kind[:40]!r} is none of {', '.join(_KINDS)}")
    plan = about(moment, question.name) if question.kind in ("job", "pod") else moment.plan
    try:
        facts = explain(question.kind, question.name, plan, moment.observed, moment.desired)
    except InputError as error:
        raise NotFoundError(str(error)) from error
    plain = msgspec.to_builtins(facts, str_keys=True)
    out = io.StringIO()
    narrate(question.kind, plain, out, None)  # the page shows the answer for longer than "4s ago" is true
    text = [line(row, 500, indented=True) for row in out.getvalue().splitlines()[:MOST_LINES]]
    return msgspec.json.encode(
        {
            "kind": question.kind, "name": name(question.name), "at": moment.identity or None,
            "text": text, "facts": cleaned(plain),
        }
    )  # fmt: skip


def _branches(question: Question, moments: Moments) -> bytes:
    from belay.engine.cli.console_plans import branches

    return msgspec.json.encode(branches(question.repository, question.path, question.data, question.base))


def _log(question: Question, moments: Moments) -> bytes:
    from belay.engine.cli.console_plans import commits

    return msgspec.json.encode(commits(question.repository, question.path, question.data, question.base))


def _plan(question: Question, moments: Moments) -> bytes:
    from belay.engine.cli.console_plans import branch_plan

    moment = moments.read(question.source)
    place = (question.repository, question.path, question.data)
    return msgspec.json.encode(branch_plan(moment, question.branch, *place))


def _what_if(question: Question, moments: Moments) -> bytes:
    from belay.engine.cli.console_what_if import what_if

    deadline = WhatIfDeadline(question.ends) if question.ends else None
    moment = moments.read(question.source)
    place = (question.repository, question.path, question.data)
    return msgspec.json.encode(what_if(moment, question.changes, question.horizon, *place, deadline))


_ASKED: Final[dict[str, Callable[[Question, Moments], bytes]]] = {
    "document": _document, "explain": _explain, "branches": _branches, "log": _log, "plan": _plan,
    "whatIf": _what_if,
}  # fmt: skip


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Where an error was raised, innermost first."""
    return traceback.extract_tb(error.__traceback__)[::-1][:_FRAMES]


_FRAMES: Final = 6


def _framed(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    return stream.read(length) if length <= MAX_REQUEST else None


if __name__ == "__main__":
    sys.exit(main())
