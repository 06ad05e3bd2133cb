"""The answers of `belay mcp`: those of the verbs that read, as documents of bounded size with their evidence.

Each question runs one verb in a process of its own. Which verbs, and which of their options, is a closed list; no
other word of the caller becomes an option.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.cli.codes import PUBLISHED_KINDS
from belay.engine.errors import BelayError, InputError, bounded
from belay.engine.log import redact

MOST_CHARS: Final = 60_000
"""Longest answer: what a model can read with room for others."""
MOST_BYTES: Final = 64 * 1024 * 1024
SECONDS: Final = 120.0
MOST_ASKED: Final = 2
"""Questions that are answered at a time; others wait."""
LONGEST_WORD: Final = 600
#: The verbs that are run, with the options that a question may set.
VERBS: Final[Mapping[str, frozenset[str]]] = {
    "explain": frozenset(),
    "get": frozenset({"--selector"}),
    "history": frozenset({"--since", "--until", "--limit", "--audit"}),
    "plan": frozenset({"--now-only", "--explain", "--desired"}),
    "report": frozenset({"--since", "--until"}),
    "status": frozenset(),
}
_INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "explain": ("--cluster", "--kubeconfig", "--desired"),
    "get": ("--cluster", "--kubeconfig", "--desired"),
    "history": ("--kubeconfig", "--server", "--database"),
    "plan": ("--cluster", "--kubeconfig", "--desired"),
    "report": ("--kubeconfig", "--server", "--database"),
    "status": ("--kubeconfig",),
}


class McpAnswers:
    """Asks the verbs. ``inputs`` are options that hold for all questions: which cluster, which server."""

    def __init__(self, inputs: Mapping[str, str]) -> None:
        self._inputs = {name: text for name, text in inputs.items() if text}
        self._asking = asyncio.Semaphore(MOST_ASKED)

    async def ask(self, verb: str, words: Sequence[str] = (), options: Mapping[str, str | bool] | None = None) -> str:
        """The answer as JSON: what the verb says with ``-o json``, and which command says it.

        Raises:
            InputError: the question is not one of these. BelayError: the verb says why it has no answer.
        """
        command = self._command(verb, words, options or {})
        async with self._asking:
            status, out, said = await _run(command)
        # 1 means that there are findings or differences, and the answer is whole
        if status not in (0, 1) or not out.strip():
            raise BelayError(bounded(redact(said.strip() or f"belay {verb} ended with {status}"), 1000))
        try:
            answer = msgspec.json.decode(out)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            answer = redact(out)
        note = bounded(redact(said.strip()), 1000)
        body = {"evidence": {"command": " ".join(["belay", *command]), **({"note": note} if note else {})}}
        return fitted(body | {"answer": answer})

    def _command(self, verb: str, words: Sequence[str], options: Mapping[str, str | bool]) -> list[str]:
        if verb not in VERBS:
            raise InputError(f"belay {bounded(verb, 40)} is not among what can be asked", hint=", ".join(sorted(VERBS)))
        words_of_options = [text for text in options.values() if isinstance(text, str) and text]
        for word in (*words, *words_of_options):
            if not word or len(word) > LONGEST_WORD or not word.isprintable():
                raise InputError(f"{bounded(word, 60)!r} is not a name or a time")
        command = [verb, "-o", "json"]
        given = {name: self._inputs[name] for name in _inputs_of(verb, words) if name in self._inputs}
        for name, value in {**given, **options}.items():
            if name not in VERBS[verb] and name not in given:
                raise InputError(f"belay {verb} takes no {bounded(name, 40)} here")
            if value is True:
                command.append(name)
            elif value:
                command.append(f"{name}={value}")
        return [*command, "--", *words] if words else command


def _inputs_of(verb: str, words: Sequence[str]) -> tuple[str, ...]:
    """The options of the server that a question takes."""
    if verb == "explain" and words and words[0] in PUBLISHED_KINDS:
        # explained as the engine published it: no clone is laid over the cluster
        return tuple(name for name in _INPUTS[verb] if name != "--desired")
    return _INPUTS[verb]


def fitted(document: dict[str, Any], most: int = MOST_CHARS) -> str:
    """The document as JSON of at most so many characters: its longest lists are cut, and what is missing is counted."""
    text = redact(_encoded(document))
    left_out: dict[str, int] = {}
    while len(text) > most:
        path, longest = _longest(document)
        if longest is None:
            # one enormous text: JSON in JSON doubles its quotes, so it is halved
            cut = {"evidence": document.get("evidence"), "cut": "the answer is too long; ask about less"}
            return _encoded(cut | {"answer": bounded(text, most // 2 - len(_encoded(cut)))})
        keep = len(longest) // 2
        left_out[path] = left_out.get(path, 0) + len(longest) - keep
        del longest[keep:]
        document["leftOut"] = left_out
        text = redact(_encoded(document))
    return text


def _longest(value: Any) -> tuple[str, list[Any] | None]:
    """The list of several items that takes most of a document, and where it stands."""
    best: tuple[int, str, list[Any] | None] = (0, "", None)
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        path, one = stack.pop()
        if isinstance(one, dict):
            stack += [(f"{path}.{key}" if path else str(key), part) for key, part in one.items()]
        elif isinstance(one, list):
            size = len(_encoded(one))
            # one that holds a longer list is cut only where its items are many
            if len(one) > 1 and size > best[0]:
                best = (size, path, one)
            stack += [(f"{path}[]", part) for part in one[:200]]
    return best[1], best[2]


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def _run(command: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a verb; it ends when the time is up or the caller gives up."""
    environment = {**os.environ, "BELAY_PROGRESS": "off", "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "belay.engine",
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS):
            out, said = await asyncio.gather(_read(process.stdout, MOST_BYTES), _read(process.stderr, 64 * 1024))
            status = await process.wait()
    except TimeoutError:
        raise BelayError(f"no answer within {SECONDS:.0f} s", hint="Ask about less.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return status, out, said


async def _read(stream: asyncio.StreamReader, most: int) -> str:
    """The beginning of a stream; the rest is read and dropped."""
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(65_536):
        if size < most:
            parts.append(part[: most - size])
            size += len(parts[-1])
    return b"".join(parts).decode("utf-8", "replace")
