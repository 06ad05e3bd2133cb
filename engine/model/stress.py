"""Stress tests of running jobs: which nodes are under test, and what the test itself makes their chips report.

The codes of a test's own findings are withheld on nodes under test (people see them, nothing follows): its result is
told by the processes that run it, and what it finds isolates the node then.
Source: component/clusterd/pkg/application/faultmanager/cmprocess/stresstest.
"""

from __future__ import annotations

from typing import Final

import msgspec

from engine.model.cluster import DeviceReport
from engine.model.faults import NETWORK, code_key
from engine.model.levels import IN_SERVICE
from engine.model.recovery.conversation import Conversation
from engine.model.recovery.standing import ABANDONED_MS
from engine.model.recovery.words import State

#: What chips under stress report: a fault was found that isolates, or one that makes the chip sub-healthy.
CODES: Final = frozenset({"80818C05", "80818C06"})
STRESS: Final = "stress"
#: States in which an operation is carried out on a job.
_OPERATING: Final = frozenset({
    State.PAUSE, State.WAIT_PAUSE, State.STRESS_TEST, State.WAIT_STRESS_TEST, State.CONTINUE, State.WAIT_CONTINUE,
})  # fmt: skip


class UnderTest(msgspec.Struct, frozen=True):
    """The nodes that a job's stress test runs on; its record is believed until ``until`` (Unix ms)."""

    nodes: tuple[str, ...]
    until: int


def under_test(talk: Conversation) -> UnderTest | None:
    """The test of a conversation, None when there is none."""
    operation = talk.operation
    if operation is None or operation.kind != STRESS or talk.state not in _OPERATING or not operation.tested:
        return None
    return UnderTest(operation.tested, max(talk.since, talk.deadline or 0) + ABANDONED_MS)


def of_test(test: UnderTest | None, node: str, code: str) -> bool:
    """Whether a code is what a test itself makes the chips of a node report."""
    return test is not None and node in test.nodes and code_key(code) in CODES


def hidden(report: DeviceReport) -> DeviceReport:
    """The report with what a stress test makes chips report set apart; the same object when there is nothing of it."""
    found = tuple(fault for fault in report.faults if code_key(fault.code) in CODES)
    if not found:
        return report
    kept = tuple(fault for fault in report.faults if code_key(fault.code) not in CODES)
    touched = {fault.chip for fault in found}
    bad = {fault.chip for fault in kept if fault.kind != NETWORK and fault.level not in IN_SERVICE}
    well = sum(1 << chip for chip in touched - bad if chip >= 0 and not report.manual >> chip & 1)
    return msgspec.structs.replace(report, faults=kept, unhealthy=report.unhealthy & ~well, withheld=found)


__all__ = ["CODES", "STRESS", "UnderTest", "hidden", "of_test", "under_test"]
