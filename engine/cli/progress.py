"""Progress of long work on standard error: after two seconds a line that moves on a terminal, elsewhere one plain line.

The answer on standard output is the same with and without it. Work that ends sooner shows nothing, and nothing does
where BELAY_PROGRESS is ``off``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

#: Seconds that work may take before it is said that it goes on.
PATIENCE: Final = 2.0
SWITCH: Final = "BELAY_PROGRESS"

Step = Callable[..., None]


@contextlib.contextmanager
def progress(
    label: str, total: float | None = None, *, unit: str = "", plain: bool = True, patience: float = PATIENCE
) -> Iterator[Step]:
    """Within, the work ``label`` is under way, of ``total`` steps (None: unknown).

    Yields ``step(count=1, note=None)``, which any thread may call: so many steps are done, and perhaps what comes now.
    ``unit`` ``B`` counts bytes. Without ``plain`` only a terminal shows it.
    """
    meter = _Meter(label, total, unit, plain)
    timer = threading.Timer(patience, meter.appear)
    timer.daemon = True
    if os.environ.get(SWITCH, "").casefold() != "off":
        timer.start()
    try:
        yield meter.step
    finally:
        timer.cancel()
        meter.leave()


class _Meter:
    """What one piece of work shows; nothing until it appears."""

    def __init__(self, label: str, total: float | None, unit: str, plain: bool) -> None:
        self._label, self._total, self._unit, self._plain = label, total, unit, plain
        self._done, self._note = 0, ""
        self._bar: Any = None
        self._task: Any = None
        self._over = False
        self._guard = threading.Lock()

    def step(self, count: int = 1, note: str | None = None) -> None:
        with self._guard:
            self._done += count
            self._note = self._note if note is None else note
            if self._bar is not None:
                self._bar.update(self._task, completed=self._done, note=self._note)

    def appear(self) -> None:
        with self._guard, contextlib.suppress(OSError, ValueError):  # standard error may be closed
            if self._over:
                return
            if sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", ""):
                self._bar, self._task = self._drawn()
                self._bar.start()
            elif self._plain:
                sys.stderr.write(f"{self._label} …\n")
                sys.stderr.flush()

    def leave(self) -> None:
        with self._guard, contextlib.suppress(OSError, ValueError):
            self._over = True
            if self._bar is not None:
                self._bar.stop()

    def _drawn(self) -> tuple[Any, Any]:
        from rich import progress as parts
        from rich.console import Console

        columns: list[Any] = [parts.TextColumn("{task.description}", markup=False)]
        if self._total is not None:
            columns += [parts.BarColumn(bar_width=24), parts.TaskProgressColumn()]
            columns.append(parts.DownloadColumn(binary_units=True) if self._unit == "B" else parts.MofNCompleteColumn())
        else:
            columns.insert(0, parts.SpinnerColumn("line"))
        columns += [parts.TimeElapsedColumn(), parts.TextColumn("{task.fields[note]}", markup=False)]
        bar = parts.Progress(*columns, console=Console(stderr=True, highlight=False), transient=True)
        return bar, bar.add_task(self._label, total=self._total, completed=self._done, note=self._note)
