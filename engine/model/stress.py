"""Stress tests of running jobs: the nodes under test, and the codes that the test causes on their chips.

These codes are withheld on nodes under test (shown, without consequences): the processes that run the test report its
result, and that isolates the node.
Source: component/clusterd/pkg/application/faultmanager/cmprocess/stresstest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from belay.engine.model.cluster import DeviceReport
from belay.engine.model.faults import NETWORK, code_key
from belay.engine.model.levels import IN_SERVICE
from belay.engine.model.recovery.conversation import Conversation
from belay.engine.model.recovery.progress import ABANDONED_MS
from belay.engine.model.recovery.protocol import State

#: Codes of chips under stress: a fault that isolates the chip, and one that makes it sub-healthy.
CODES: Final = frozenset({"80818C05", "80818C06"})
STRESS: Final = "stress"
#: States in which an operation is carried out on a job.
_OPERATING: Final = frozenset({
    State.PAUSE, State.WAIT_PAUSE, State.STRESS_TEST, State.WAIT_STRESS_TEST, State.CONTINUE, State.WAIT_CONTINUE,
})  # fmt: skip


class StressTest(msgspec.Struct, frozen=True):
    """The nodes on which a job's stress test runs; its record is valid until ``until`` (Unix ms)."""

    nodes: tuple[str, ...]
    until: int


def stress_test_of(conversation: Conversation) -> StressTest | None:
    """The stress test of a conversation; None without one."""
    operation = conversation.operation
    if operation is None or operation.kind != STRESS or conversation.state not in _OPERATING or not operation.tested:
        return None
    return StressTest(operation.tested, max(conversation.since, conversation.deadline or 0) + ABANDONED_MS)


def caused_by_test(test: StressTest | None, node: str, code: str) -> bool:
    """Whether the test causes this code on the chips of a node."""
    return test is not None and node in test.nodes and code_key(code) in CODES


def without_test_faults(report: DeviceReport) -> DeviceReport:
    """The report with the codes of a stress test withheld; the same object when it has none."""
    found = tuple(fault for fault in report.faults if code_key(fault.code) in CODES)
    if not found:
        return report
    kept = tuple(fault for fault in report.faults if code_key(fault.code) not in CODES)
    touched = {fault.chip for fault in found}
    bad = {fault.chip for fault in kept if fault.kind != NETWORK and fault.level not in IN_SERVICE}
    well = sum(1 << chip for chip in touched - bad if chip >= 0 and not report.manual >> chip & 1)
    return msgspec.structs.replace(report, faults=kept, unhealthy=report.unhealthy & ~well, withheld=found)


__all__ = ["CODES", "STRESS", "StressTest", "without_test_faults", "caused_by_test", "stress_test_of"]
