"""Options and rules for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import Scheduling

from tests import lanes, reruns
from tests.kube_server import api_server, kubeconfig, own_kubeconfig
from tests.planted import planted_secrets, pytest_runtest_protocol
from tests.write_recorder import recorded_writes

__all__ = [
    "api_server",
    "kubeconfig",
    "own_kubeconfig",
    "planted_secrets",
    "pytest_runtest_protocol",
    "recorded_writes",
]

# how long an example takes says how busy the machine is
settings.register_profile("belay", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("belay")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden narratives from what happens now")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """`--dist loadgroup` with lanes for tests on real time."""
    return lanes.Lanes(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_configure(config: pytest.Config) -> None:
    """A shell without job control starts jobs in the background deaf to Ctrl-C, and so would be what tests start."""
    # what commands print must not depend on how wide and how busy the machine is
    os.environ.pop("COLUMNS", None)
    os.environ["BELAY_PROGRESS"] = "off"
    config.pluginmanager.register(reruns, "belay-reruns")
    lanes.give_way(os.environ.get("PYTEST_XDIST_WORKER", ""))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # and under nohup they would be deaf to the end of their terminal, which workers respect
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are rewritten; never in CI."""
    return bool(request.config.getoption("--update-golden")) and not os.environ.get("CI")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Give tests on real time their group, and let `xdist_group` hold: xdist 3.8 writes a test's group where pytest 9
    no longer reads a test's id, and tests of one group, which share a port or a runtime, would run side by side."""
    lanes.group(items)
    yield
    for item in items:
        grouped = getattr(item, "_nodeid", None)
        if grouped is not None and grouped != item.nodeid and hasattr(item, "_id"):
            item._id = type(item._id).parse(grouped)
