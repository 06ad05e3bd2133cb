"""A second try for tests that a busy machine can fail: counted, and named at the end of the run.

A test on real time (tests/lanes.py), or of a module that starts processes or threads or opens sockets, depends on when
the machine runs what. Such a test that fails is run once more, with all fixtures but the session's made again. Both
failures are a failure; one is a line of the summary, with the first failure's last words. The same holds for any test
that a time limit ended (``TimeoutError``, ``subprocess.TimeoutExpired``): limits keep a run from hanging and are no
results. All others compute and fail at once. A worker runs no more than `MOST` tests again: more is no bad luck.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.lanes import on_real_time

SCHEDULED = ("grpc", "multiprocessing", "signal", "socket", "subprocess", "threading")
"""A test module that imports one of these waits for what the machine runs beside it."""
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
    """Run a test; one that depends on the machine and failed, and any that a time limit ended, once more."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = next((report for report in reports if report.failed), None)
    if failed is not None and len(_again) < MOST and (scheduled(item) or last_words(failed).startswith(LIMITS)):
        _again.append(item.nodeid)
        # what is started once for a module may be what failed: only what the session shares is kept
        item.session._setupstate.teardown_exact(item.session)  # type: ignore[arg-type]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        reports[-1].user_properties.append((NOTE, f"{failed.when}: {last_words(failed)}"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def scheduled(item: pytest.Item) -> bool:
    """Whether a test's result depends on when the machine runs its processes and threads."""
    return on_real_time(item) or imports_any(getattr(item, "module", None))


def imports_any(module: object) -> bool:
    """Whether a module has one of `SCHEDULED` under its own name."""
    return any(
        isinstance(found := getattr(module, name, None), ModuleType) and found.__name__ == name for name in SCHEDULED
    )


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
        terminalreporter.section("tests that failed once and were run again", yellow=True)
        for note in _notes:
            terminalreporter.line(note, yellow=True)
