"""Answers that go on: drawn again in place on a terminal, as a stream of changes elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, TextIO, TypeVar

from belay.engine.cli import output
from belay.engine.errors import INTERRUPTED
from belay.engine.kube import Kube, KubeError
from belay.engine.kube.one_shot import CALL_WITHIN
from belay.engine.model.wording import counted
from belay.engine.observe.live import with_kube

T = TypeVar("T")
Read = Callable[[Kube], Awaitable[T]]
#: Seconds between drawings of a screen: times on it grow.
_TICK: Final = 1.0
#: A reading that took long is followed by a pause of as long: a large cluster is asked half of the time at most.
_SHARE: Final = 1.0
#: Seconds after which a stream says again that no pass comes.
_NOTE_SECONDS: Final = 60.0
_LEAVE: Final = ("q", "Q", "\x03")


def follow(
    kubeconfig: str | None,
    read: Read[T],
    paint: Callable[[T, TextIO], None],
    *,
    every: float,
    within: float = CALL_WITHIN,
    on_key: Callable[[str], None] | None = None,
    keys: str = "",
    context: str | None = None,
) -> None:
    """Read a cluster every so many seconds and show it until interrupted, or until ``q`` is typed on a terminal.

    On a terminal the screen is drawn again in place; elsewhere the answer is printed again whenever it differs.
    ``paint`` prints an answer; ``on_key`` is called with any other key,
    which ``keys`` explains. A cluster that stops answering is waited for.

    Raises:
        BelayError: no cluster is configured, or it does not answer the first time.
    """

    async def run(kube: Kube) -> None:
        if not in_place():
            await _print_changes(kube, read, paint, every)
            return
        with ended_by_signals(), Screen() as screen:
            await _redraw(screen, kube, read, paint, every, on_key, keys)

    with_kube(kubeconfig, run, within, context)


def stream(
    kubeconfig: str | None, read: Read[T], take: Callable[[T], None], *, every: float, context: str | None = None
) -> None:
    """Read a cluster every so many seconds and hand over each reading, until interrupted.

    Raises:
        BelayError: no cluster is configured, or it does not answer the first time.
    """

    async def run(kube: Kube) -> None:
        async for value in _readings(kube, read, every):
            take(value)
            sys.stdout.flush()

    with_kube(kubeconfig, run, context=context)


class MissingPassNotes:
    """When a stream of changes says that no pass comes: at once, every minute while it lasts, and when it is over."""

    def __init__(self) -> None:
        self._said: float | None = None

    def due(self, note: str, now: float) -> str:
        """What to say after a reading at ``now`` (Unix seconds), whose note is empty while passes come."""
        if not note:
            over, self._said = self._said is not None, None
            return "Passes come again." if over else ""
        if self._said is not None and now - self._said < _NOTE_SECONDS:
            return ""
        self._said = now
        return note


def in_place() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


class Screen:
    """The terminal's other screen, drawn as a whole; the shell's own comes back at the end, however it comes.

    Keys reach the program at once and are not shown.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stderr=False)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Screen:
        self._stack.enter_context(_single_keys())
        self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def draw(self, paint: Callable[[TextIO], None], last: str) -> None:
        """Draw what ``paint`` prints, as far as it fits, over one last line."""
        from rich.text import Text

        columns, rows = self._console.size
        frame = output.ScreenText(columns, colours=output.coloured(sys.stdout))
        paint(frame)
        lines = frame.getvalue().rstrip("\n").split("\n")
        room = max(1, rows - 2)
        if len(lines) > room:
            more = len(lines) - room
            lines, last = lines[:room], f"{counted(more, 'more line')} below · {last}"
        body = "\n".join([*lines, *[""] * (room - len(lines)), "", last[:columns]])
        self._live.update(Text.from_ansi(body, no_wrap=True, overflow="crop", end=""), refresh=True)

    async def key(self, seconds: float) -> str:
        """The key typed within so many seconds; empty without one."""
        return await asyncio.to_thread(_typed, seconds)


async def _redraw(
    screen: Screen,
    kube: Kube,
    read: Read[T],
    paint: Callable[[T, TextIO], None],
    every: float,
    on_key: Callable[[str], None] | None,
    keys: str,
) -> None:
    value, problem = await read(kube), ""
    due = time.monotonic() + every
    while True:
        shown = value
        said = f"waiting for the cluster: {output.plain(problem)}" if problem else f"q ends{keys}"
        screen.draw(lambda frame, shown=shown: paint(shown, frame), f"{time.strftime('%H:%M:%S')} · {said}")  # type: ignore[misc]
        typed = await screen.key(max(0.05, min(_TICK, due - time.monotonic())))
        if typed in _LEAVE:
            return
        if typed and on_key is not None:
            on_key(typed)
        begin = time.monotonic()
        if begin < due:
            continue
        try:
            value, problem = await read(kube), ""
        except KubeError as error:
            problem = str(error)
        spent = time.monotonic() - begin
        due = time.monotonic() + max(every, spent * _SHARE)


async def _print_changes(kube: Kube, read: Read[T], paint: Callable[[T, TextIO], None], every: float) -> None:
    shown: T | None = None
    async for value in _readings(kube, read, every):
        if value == shown:
            continue
        if shown is not None:
            sys.stdout.write("\n")
        paint(value, sys.stdout)
        sys.stdout.flush()
        shown = value


async def _readings(kube: Kube, read: Read[T], every: float) -> AsyncIterator[T]:
    """Readings without end; a cluster that does not answer after the first one is waited for, and said once."""
    first, problem = True, ""
    while True:
        begin = time.monotonic()
        try:
            value = await read(kube)
        except KubeError as error:
            if first:
                raise
            if str(error) != problem:
                problem = str(error)
                sys.stderr.write(f"waiting for the cluster: {output.plain(problem)}\n")
        else:
            first, problem = False, ""
            yield value
        await asyncio.sleep(max(every, (time.monotonic() - begin) * _SHARE))


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, a request to end or a closed terminal cancels the running task, and the process ends after its clean-up.

    The task is cancelled by its event loop: an exception that is raised where a signal happens to arrive is lost in
    a destructor or a callback of a weak reference, which importing a module runs.

    Raises:
        SystemExit: a signal came; its status is the one that a shell gives for that signal.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    came: list[int] = []

    def end(number: int) -> None:
        came.append(number)
        task.cancel()

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    except asyncio.CancelledError:
        if not came:
            raise
        raise SystemExit(INTERRUPTED - signal.SIGINT + came[0]) from None
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """Keys without Return and without echo, where standard input is a terminal."""
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _typed(seconds: float) -> str:
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    number = sys.stdin.fileno()
    if not select.select([number], [], [], seconds)[0]:
        return ""
    data = os.read(number, 64)
    # arrows and the like are several bytes and mean nothing here
    return data.decode("ascii", "replace") if len(data) == 1 else ""
