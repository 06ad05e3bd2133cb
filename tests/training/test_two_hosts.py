"""Hosts in network namespaces that elect their coordinator: its host is lost in a recovery, and the cable is pulled."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import needs, netns
from tests.training.two_hosts import TwoHosts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("training"),
    pytest.mark.timeout(600),
]


def test_the_coordinators_host_is_lost_in_a_recovery_then_the_cable_is_pulled(tmp_path: Path) -> None:
    needs.torch()
    if why := netns.missing():
        needs.lacking(f"no network namespaces: {why}")
    hosts = TwoHosts(tmp_path, 0, 60, 0.05, 0, elected=True, nproc=2)
    try:
        assert hosts.trained(time.monotonic(), 1, 150) is not None, hosts.errors()
        first = hosts.leader()
        hosts.kill(3 - 2 * first)
        hosts.lose(first)
        assert hosts.trained(time.monotonic(), hosts.newest(), 150) is not None, hosts.errors()

        hosts.cable.unplug(1)
        hosts.kill(0)
        hosts.cable.mend()
        assert hosts.trained(time.monotonic(), hosts.newest(), 150) is not None, hosts.errors()

        assert hosts.end(150) == [0, 0], hosts.errors()
        assert hosts.left(5) == []
        # ranks of DDP hold the same weights at the same step, however often it was done
        digests: dict[int, set[str]] = {}
        for rank in range(hosts.ranks):
            for one in hosts.steps(rank):
                digests.setdefault(one.step, set()).add(one.digest)
        assert sorted(digests) == list(range(60))
        assert [step for step, found in digests.items() if len(found) > 1] == []
    finally:
        hosts.close()
