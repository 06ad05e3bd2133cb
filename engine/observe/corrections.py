"""What a snapshot corrects of what was read: pods' chips by their physical names, reports without the faults of tests.

An object that needs no correction, or the same as before, stays the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from belay.engine.model import stress
from belay.engine.model.cluster import DeviceReport, Pod


class PhysicalChips:
    """Chips of pods by physical name; on Ascend950 annotations use logic ids."""

    def __init__(self) -> None:
        self._offered: dict[str, dict[str, str]] = {}
        self._renamed: dict[str, tuple[Pod, dict[str, str], Pod]] = {}

    def put_node(self, name: str, offered: dict[str, str]) -> None:
        """The physical names of a node's chips by the names that annotations use; empty if they are the same."""
        if offered:
            self._offered[name] = offered
        else:
            self._offered.pop(name, None)

    def forget_node(self, name: str) -> None:
        """A node is gone."""
        self._offered.pop(name, None)

    def forget_pod(self, key: str) -> None:
        """A pod is gone."""
        self._renamed.pop(key, None)

    def of(self, pods: Mapping[str, Pod]) -> dict[str, Pod]:
        """The pods, with their chips by physical name."""
        found = dict(pods)
        for key, pod in pods.items() if self._offered else ():
            offered = self._offered.get(pod.node)
            if offered is not None and pod.chips:
                known = self._renamed.get(key)
                if known is None or known[0] is not pod or known[1] is not offered:
                    chips = tuple(offered.get(chip, chip) for chip in pod.chips)
                    known = self._renamed[key] = (pod, offered, msgspec.structs.replace(pod, chips=chips))
                found[key] = known[2]
        return found


class NodesUnderTest:
    """Stress tests that run, and the reports of the nodes under test without the faults that the tests cause."""

    def __init__(self) -> None:
        self._tests: dict[str, stress.StressTest] = {}
        self._masked: dict[str, tuple[DeviceReport, DeviceReport]] = {}

    def put(self, name: str, test: stress.StressTest | None) -> None:
        """The test that a conversation holds; None where it holds none, or is gone."""
        if test is None:
            self._tests.pop(name, None)
        else:
            self._tests[name] = test

    def without_test_faults(self, reports: dict[str, DeviceReport]) -> dict[str, DeviceReport]:
        """The reports, those of nodes under test without such faults. A report stays the same object during its
        test.
        """
        if not self._tests and not self._masked:
            return reports
        masked: dict[str, tuple[DeviceReport, DeviceReport]] = {}
        for node, until in _nodes(self._tests.values()):
            report = reports.get(node)
            if report is None or report.update_time * 1000 > until:
                continue  # the server that ran the test is gone
            known = masked.get(node) or self._masked.get(node)
            if known is None or known[0] is not report:
                known = (report, stress.without_test_faults(report))
            masked[node] = known
        self._masked = masked
        return reports | {node: found for node, (_, found) in masked.items()}


def _nodes(tests: Iterable[stress.StressTest]) -> list[tuple[str, int]]:
    return [(node, test.until) for test in tests for node in test.nodes]
