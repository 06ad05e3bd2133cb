"""Requests to end: signals, a closed terminal, and closed output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Whether this process was asked to end. Use it as a context manager, in the main thread.

    SIGHUP counts, and so does a terminal that disappears without one, as it does for a job in the background whose
    shell was killed. A process that ignores SIGHUP (nohup) survives it.
    """

    def __init__(self) -> None:
        self.insist: Callable[[], None] | None = None
        """Called on a further signal during the end."""
        self._asked = False
        self._before: dict[int, object] = {}
        self._terminal: int | None = None

    def __enter__(self) -> StopSignals:
        survives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        for number in _SIGNALS:
            if not (survives and number == signal.SIGHUP):
                self._before[number] = signal.signal(number, self._take)
        if not survives:
            with contextlib.suppress(OSError):  # there is none
                self._terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    @property
    def asked(self) -> bool:
        """Whether to end now."""
        return self._asked or self._terminal_gone()

    def say(self, line: str) -> None:
        """Print a line; a closed output is a request to end, and later lines are dropped."""
        try:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        except OSError:
            self._asked = True
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the rest of the process

    def _take(self, _: int, __: FrameType | None) -> None:
        if self._asked and self.insist is not None:
            self.insist()
        self._asked = True

    def _terminal_gone(self) -> bool:
        if self._terminal is None:
            return False
        poll = select.poll()
        poll.register(self._terminal, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))
