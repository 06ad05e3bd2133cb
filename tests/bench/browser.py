"""The browser of benchmarks: Debian's chromium, headless, drawn in software."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tests.bench.measure import Skipped

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


class Chromium:
    """`with Chromium() as launch:` gives a function that starts a browser.

    It is looked for when this is made, before a benchmark makes what the browser shows. Raises Skipped without
    Chromium or playwright.
    """

    def __init__(self) -> None:
        program = shutil.which("chromium")
        if program is None:
            raise Skipped("there is no chromium (make test-packages)")
        try:
            from playwright.sync_api import sync_playwright
        except ImportError as reason:
            raise Skipped(f"playwright is not installed: {reason}") from None
        self._program = program
        self._playwright = sync_playwright()

    def __enter__(self) -> Callable[[], Any]:
        playwright = self._playwright.__enter__()
        return lambda: playwright.chromium.launch(executable_path=self._program, args=FLAGS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._playwright.__exit__(kind, error, trace)


__all__ = ["Chromium"]
