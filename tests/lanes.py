"""How tests share the workers of pytest-xdist: tests on real time in two lanes of their own, the others beside them.

A test that starts processes and waits for them uses little of a processor, and fails where it gets none in time. One
that computes needs a whole one, and does not mind when. So the first `LANES` workers take the tests on real time, first
of all and a module at a time (what a module starts is started once); the other workers compute, with lower priority.
A worker that runs dry helps the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

LANES = 2
"""Workers for tests on real time: on two processors more of them would be in each other's way."""
NICENESS = 5
"""Of workers that compute, and of what they start."""
MARKS = ("e2e", "real_time", "xdist_group")
FIXTURES = ("kubeconfig", "own_kubeconfig", "redis_process", "cluster")
"""They start a server, or run one beside the test."""
LONGEST = (
    "real-node", "console", "test_taskd_torchrun", "training", "test_demo", "test_sandbox_training", "tft",
    "test_taskd_server",
    "test_reconcile", "test_readme", "kubeconfig", "test_kvlinks_loop", "test_grpc_real", "test_watchdog", "test_chaos",
    "test_tasks", "netns", "test_api_differential", "test_kubectl_sandbox", "inference-real", "kubectl-real",
    "test_running", "test_signed_orders", "test_signed_orders_real",
)  # fmt: skip
"""Groups of more than ten seconds, the longest first: no lane ends long after the other."""
SHARED = "kubeconfig"
"""The fixture that is started once for all its tests: they run on one worker."""


def on_real_time(item: pytest.Item) -> bool:
    """Whether a test waits for processes or for the clock of the machine."""
    return any(item.get_closest_marker(mark) for mark in MARKS) or any(name in _fixtures(item) for name in FIXTURES)


def group(items: list[pytest.Item]) -> None:
    """Tests on real time run in the order of their module, on one worker; a group of their own is kept."""
    for item in items:
        if on_real_time(item) and item.get_closest_marker("xdist_group") is None:
            module = item.nodeid.partition("::")[0].rpartition("/")[2].removesuffix(".py")
            item.add_marker(pytest.mark.xdist_group(SHARED if SHARED in _fixtures(item) else module))


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return item.fixturenames if isinstance(item, pytest.Function) else ()


def group_of(nodeid: str) -> str:
    """The group that pytest-xdist wrote at the end of a test's id; empty where it has none."""
    return nodeid.rpartition("@")[2] if nodeid.rfind("@") > nodeid.rfind("]") else ""


def is_lane(worker: str) -> bool:
    """Whether a worker of this name (``gw0``, ``gw1``, ...) takes tests on real time first."""
    return worker.startswith("gw") and int(worker[2:]) < LANES


def give_way(worker: str) -> None:
    """Lower this process's priority, unless it is a lane or no worker."""
    if worker and not is_lane(worker):
        os.nice(NICENESS)


class Lanes(LoadScopeScheduling):
    """Two queues: groups for the lanes, single tests for the others."""

    def _split_scope(self, nodeid: str) -> str:
        name = group_of(nodeid)
        return f"@{name}" if name else nodeid

    def _assign_work_unit(self, node: WorkerController) -> None:
        lane = is_lane(node.gateway.id)
        unit = next((f"@{name}" for name in LONGEST if f"@{name}" in self.workqueue), "") if lane else ""
        suits = (unit for unit in self.workqueue if unit.startswith("@") is lane)
        self.workqueue.move_to_end(unit or next(suits, next(iter(self.workqueue))), last=False)
        # what is done is forgotten: pending tests are counted again at every report
        kept = self.assigned_work[node]
        for unit in [unit for unit, tests in kept.items() if all(tests.values())]:
            del kept[unit]
        super()._assign_work_unit(node)
