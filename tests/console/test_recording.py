"""A recording of 10,000 nodes, written by Belay's own recorder, in `belay console` and a real browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import console_recordings
from tests.console.browser import Problems, context_of, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("console"), pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[2]
NODES, MOMENTS = 10_000, 2
VIEWS = ("recovery", "queue", "git", "whatif", "faults", "time")


@pytest.fixture
def address(tmp_path: Path, browser: Browser) -> Iterator[str]:
    """Of `belay console` on such a recording. The browser comes first: without one nothing is made."""
    console_recordings.write(NODES, MOMENTS, tmp_path / "passes", jobs=100)
    command = [sys.executable, "-m", "belay.engine.cli", "console", "--recording", str(tmp_path / "passes")]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if found := re.search(r"console: (http://127\.0\.0\.1:\d+)/console/", line):
                yield found[1]
                return
        pytest.fail(f"belay console ended:\n{printed}")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_the_slider_goes_through_a_recording_of_ten_thousand_nodes(browser: Browser, address: str) -> None:
    context = context_of(browser)
    problems = Problems(context, address)
    page = opened(context.new_page(), address, "/map?select=chip/node-00003/2")
    aside = page.get_by_role("complementary", name="Selected: chip/node-00003/2").or_(page.locator("aside.inspector"))
    aside.get_by_text("isolated", exact=True).first.wait_for()
    stage = page.locator(".stage[data-moment]")
    newest = stage.get_attribute("data-moment")
    # one step back the chip was well; the whole document of then is drawn
    page.locator(".timebar input[type=range]:enabled").wait_for()
    page.locator(".stage").focus()
    page.keyboard.press(",")
    page.keyboard.press(",")
    page.wait_for_function("newest => document.querySelector('.stage').dataset.moment !== newest", arg=newest)
    aside.get_by_text("isolated", exact=True).first.wait_for(state="detached")
    assert page.evaluate("location.hash").count("at=r") == 1
    page.keyboard.press(".")
    page.wait_for_function("newest => document.querySelector('.stage').dataset.moment === newest", arg=newest)
    for view in VIEWS:
        page.evaluate("view => { location.hash = '#/' + view }", view)
        page.locator(f"nav a[href^='#/{view}'][aria-current=page]").wait_for()
        assert page.get_by_text("This view failed").count() == 0
        assert page.evaluate("document.querySelectorAll('main *').length") < 6_000
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert problems.found == []
