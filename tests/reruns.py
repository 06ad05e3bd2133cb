"""A second try for the few tests that a busy machine can fail: marked, counted, and named at the end of the run.

``@pytest.mark.flaky_under_load("why")`` is for end-to-end tests of real processes in real time, whose result no bound
makes independent of the machine. Such a test that fails is run once more. Both failures are a failure; one is a line
of the summary, with the first failure's last words. The same holds for any test that a time limit ended
(``TimeoutError``, ``subprocess.TimeoutExpired``): limits keep a run from hanging and are no results. A worker runs no
more than `MOST` tests again: more is no bad luck.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.runner import runtestprotocol

MARK = "flaky_under_load"
MOST = 3
"""Of one worker in one run."""
NOTE = "run again after"
LIMITS = (
    "TimeoutError",
    "subprocess.TimeoutExpired",
    "asyncio.exceptions.TimeoutError",
    "concurrent.futures._base.TimeoutError",
)
"""How the failure of a test that a time limit ended begins."""

_again: list[str] = []
"""Tests that this worker ran again."""
_notes: list[str] = []
"""What reports of all workers said."""


@pytest.hookimpl
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test; a marked one that failed, and any that a time limit ended, once more."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = next((report for report in reports if report.failed), None)
    marked = item.get_closest_marker(MARK) is not None
    if failed is not None and len(_again) < MOST and (marked or last_words(failed).startswith(LIMITS)):
        _again.append(item.nodeid)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        reports[-1].user_properties.append((NOTE, f"{failed.when}: {last_words(failed)}"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def last_words(report: pytest.TestReport) -> str:
    """The line that says why a report failed, at most 300 characters."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if crash is not None else lines[-1])[:300] if lines else "no message"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what reports say of second tries; with workers this runs in the process that prints, too."""
    _notes.extend(f"{report.nodeid}: {text}" for name, text in report.user_properties if name == NOTE)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name what was run again: a test that is named often needs mending."""
    if _notes:
        terminalreporter.section(f"tests that failed once and were run again ({MARK}, time limits)", yellow=True)
        for note in _notes:
            terminalreporter.line(note, yellow=True)
