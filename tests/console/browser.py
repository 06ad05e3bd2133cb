"""A browser for tests: Debian's chromium without a network beyond this machine, and what went wrong on its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests import needs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = (
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # no name is looked up and no other machine reached
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE = 60_000
"""Milliseconds for which a page may lack what a test waits for."""
SIZES = {
    "wide": {"width": 1440, "height": 900},
    "narrow": {"width": 390, "height": 844},
    "small": {"width": 960, "height": 600},
}


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test is skipped, or fails in CI, where there is none."""
    path = shutil.which("chromium")
    if path is None:
        needs.lacking("no chromium: run make test-packages")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        needs.lacking("playwright is not installed: run make venv")
    flags = [*FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Problems:
    """What a context's pages complained about, and which addresses they wanted beyond ``addresses``."""

    def __init__(self, context: BrowserContext, *addresses: str) -> None:
        self.found: list[str] = []
        self._addresses = addresses
        self.expected = ""
        """Part of a complaint that the test provokes."""
        context.on("console", lambda message: message.type == "error" and self._note(self._said(message)))
        context.on("weberror", lambda error: self._note(str(error.error)))
        context.on("request", lambda request: self._requested(request.url))

    def _note(self, text: str) -> None:
        if not self.expected or self.expected not in text:
            self.found.append(text)

    @staticmethod
    def _said(message: Any) -> str:
        return f"{message.text} {message.location.get('url', '')}"

    def _requested(self, url: str) -> None:
        if not url.startswith((*self._addresses, "data:", "blob:")):
            self.found.append(f"the page asked for {url}")


def context_of(browser: Browser, size: str = "wide", scheme: Any = "light", **more: Any) -> BrowserContext:
    """A fresh profile; times are shown in UTC."""
    about = {"viewport": SIZES[size], "color_scheme": scheme, "reduced_motion": "reduce", **more}
    context = browser.new_context(timezone_id="UTC", locale="en-GB", **about)
    context.set_default_timeout(PATIENCE)
    return context


def opened(page: Page, address: str, place: str) -> Page:
    """The page at a place of the console, once it shows the cluster."""
    page.goto(f"{address}/console/#{place}")
    page.wait_for_selector("main[aria-busy=false]")
    return page
