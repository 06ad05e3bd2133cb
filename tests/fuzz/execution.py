"""One input through one parser: errors, steps, log lines and output are judged; the lines that it reached come back.

Steps are lines of Python run in ``engine`` and ``agents``, so the limit holds on a slow machine as well. What runs
long inside a library or in C is ended by the limit of processor time, which kills the process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, Final

from belay.engine.log import MAX_LINE_BYTES, JsonFormatter
from tests.fuzz.harness import Harness

ROOT: Final = Path(__file__).parent.parent.parent
CPU_SECONDS: Final = 60.0
"""Processor time for one input; most take less than a millisecond."""
MAX_OUTPUT: Final = 64 << 10
"""Bytes that one input may print."""
BELAY: Final = str(ROOT / "src" / "belay")
_OURS: Final = (f"{BELAY}/engine/", f"{BELAY}/agents/")


class TooManySteps(BaseException):
    """The parser ran more lines than an input of this length may cost."""


class Finding(Exception):
    """An input broke the rules; ``where`` names the finding, ``text`` explains."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(where)
        self.where = where
        self.text = text


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines, self.longest = 0, 0
        self.tracebacks: list[tuple[str, str]] = []
        self._format = JsonFormatter("fuzz")

    def begin(self) -> None:
        """Forget the lines of earlier inputs."""
        self.lines, self.longest = 0, 0
        self.tracebacks.clear()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        line = self._format.format(record)
        self.longest = max(self.longest, len(line))
        if record.exc_info and record.exc_info[1] is not None and '"traceback"' in line and len(self.tracebacks) < 3:
            self.tracebacks.append((_where(record.exc_info[1]), _short(record.exc_info[1])))


class Execution:
    """Runs inputs of one harness in this process, which it takes over: log, tracing and timers."""

    def __init__(self, harness: Harness, traced: bool = True) -> None:
        self._harness = harness
        self._traced = traced
        self._ours: dict[int, int] = {}
        self._log = _Log()
        self._steps = 0
        self._limit = 0
        self._reached: set[int] = set()
        self.files: set[str] = set()
        """Modules with a function that was entered, relative to the root of the repository."""
        root = logging.getLogger()
        root.handlers[:] = [self._log]
        root.setLevel(logging.INFO)
        logging.captureWarnings(True)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)

    def run(self, data: bytes) -> set[int]:
        """Feed one input; numbers of the lines that it reached.

        Raises:
            Finding: the input broke a rule.
        """
        harness = self._harness
        self._steps, self._reached = 0, set()
        self._log.begin()
        self._limit = harness.steps + harness.steps_per_byte * len(data)
        before = _printed()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        if self._traced:
            sys.settrace(self._enter)
        try:
            harness.feed(data)
        except harness.allowed as error:
            if len(str(error)) > 8192:
                raise Finding(f"long message of {type(error).__name__}", f"{len(str(error))} characters") from None
        except TooManySteps as error:
            raise Finding(f"steps at {_where(error)}", f"more than {self._limit} for {len(data)} bytes") from None
        except MemoryError as error:
            raise Finding(f"MemoryError at {_where(error)}", "out of memory") from None
        except (Exception, SystemExit) as error:
            raise Finding(f"{type(error).__name__} at {_where(error)}", _short(error)) from None
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_PROF, 0)
        if self._log.tracebacks:
            where, text = self._log.tracebacks[0]
            raise Finding(f"traceback in the log from {where}", text)
        if self._log.longest > MAX_LINE_BYTES:
            raise Finding("log line", f"{self._log.longest} bytes, the limit is {MAX_LINE_BYTES}")
        if self._log.lines > harness.log_lines:
            raise Finding("log lines", f"{self._log.lines} lines, the limit is {harness.log_lines}")
        if _printed() - before > MAX_OUTPUT:
            raise Finding("output", f"{_printed() - before} bytes printed, the limit is {MAX_OUTPUT}")
        return self._reached

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        number = self._ours.get(id(code))
        if number is None:
            ours = code.co_filename.startswith(_OURS)
            number = self._ours[id(code)] = (len(self._ours) + 1) << 16 if ours else 0
        if not number:
            return None
        if code.co_name != "<module>":
            self.files.add(code.co_filename)
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._steps += 1
            if self._steps > self._limit:
                sys.settrace(None)
                raise TooManySteps
            self._reached.add(self._ours[id(frame.f_code)] + frame.f_lineno)
        return self._line


def _printed() -> int:
    """How many bytes this process printed, where its output is a file."""
    return sum(os.fstat(stream).st_size for stream in (1, 2))


def _where(error: BaseException) -> str:
    """The innermost line of ours in a traceback."""
    frames = traceback.extract_tb(error.__traceback__, limit=-400)
    ours = [frame for frame in frames if frame.filename.startswith(_OURS)] or frames
    if not ours:
        return "an unknown place"
    return f"{ours[-1].filename.removeprefix(f'{BELAY}/')}:{ours[-1].lineno}"


def _short(error: BaseException) -> str:
    lines = traceback.format_exception(error, limit=-12)
    return "".join(lines)[-6000:]


__all__ = ["BELAY", "ROOT", "Execution", "Finding"]
