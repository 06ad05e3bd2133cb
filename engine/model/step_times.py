"""How long training steps take: what agents measure of each rank, and what is found slow.

A window is ``WINDOW_STEPS`` steps in a row, numbered by the job: its figures are medians over the steps, so that one
long step (a checkpoint, garbage collection) does not move them. All times are microseconds of one step.

Sources: component/ascend-faultdiag-online/pkg/algo_src/slownode (step times and times of parallel groups by rank,
results by kind of slowness); pkg/service/servicefunc/slownode/cluster/callback_processor.go and
pkg/service/serviceapi/netfaultapi/netfault_api.go (fault codes).
"""

from __future__ import annotations

import zlib
from enum import StrEnum
from typing import Final

import msgspec

WINDOW_STEPS: Final = 50
"""Steps of one window."""
RESOURCE: Final = "fd-online"
"""Sender of the public faults, as MindCluster's fault diagnosis names itself."""


class Slowness(StrEnum):
    """What is slow. The value stands in faults and messages."""

    COMPUTATION = "computation"
    DATA_LOADING = "data loading"
    COMMUNICATION = "communication"


class GroupTime(msgspec.Struct, frozen=True):
    """Time of one rank in the collectives of one parallel group.

    ``kind`` is the group's name in ``parallel_group.json`` (``tp``, ``dp``, ``pp``, ``cp``, ``exp``, …), ``ranks`` are
    its global ranks in the order of the file.
    """

    kind: str
    ranks: tuple[int, ...]
    time: int


class StepWindow(msgspec.Struct, frozen=True):
    """One rank's medians over one window.

    ``number`` is the first step divided by ``WINDOW_STEPS``; ``steps`` were measured; ``step`` is a whole step,
    ``work`` what is left of it without collectives, loading of data and checkpoints; ``data`` is the loading of data.
    """

    rank: int
    number: int
    steps: int
    step: int
    work: int
    data: int
    groups: tuple[GroupTime, ...] = ()


class NodeSteps(msgspec.Struct, frozen=True):
    """The newest windows of the ranks of one job on one node."""

    node: str
    job: str
    windows: tuple[StepWindow, ...]


class SlownessSettings(msgspec.Struct, frozen=True):
    """When something is slow.

    Args:
        degradation: smallest excess over the peers, as a share of their work or step (0.03: 3 %).
        sigmas: the excess must also be this many standard deviations of the peers' spread.
        windows: consecutive windows in which it must last, before it counts and before it ends.
    """

    degradation: float = 0.03
    sigmas: float = 4.0
    windows: int = 3


class SlowFinding(msgspec.Struct, frozen=True, order=True):
    """Something slow in one job.

    ``ranks`` are the slow rank, or the ranks of a slow parallel group (``group`` is its kind, else empty). ``excess``
    is a share of the peers' work (computation; of half a step where that is more) or of a step: 0.05 means 5 %.
    ``time`` and ``peers`` are microseconds of a step: measured, and the median of ``compared`` peers; ``since`` is the
    first window of the run that was too slow.
    """

    kind: Slowness
    ranks: tuple[int, ...]
    group: str
    excess: float
    time: int
    peers: int
    compared: int
    threshold: float
    since: int

    @property
    def key(self) -> str:
        """Names the finding for as long as it lasts."""
        kind = self.kind.replace(" ", "-")
        if not self.group:
            return f"{kind}.rank.{self.ranks[0]}"
        members = ",".join(map(str, self.ranks)).encode()
        return f"{kind}.{self.group}.{self.ranks[0]}.{zlib.crc32(members):08x}"


def explained(found: SlowFinding) -> str:
    """The finding with its figures, in one sentence."""
    what = {
        Slowness.COMPUTATION: "computes",
        Slowness.DATA_LOADING: "waits for its data",
        Slowness.COMMUNICATION: "communicates",
    }[found.kind]
    who = f"rank {found.ranks[0]}"
    peers = "ranks with the same work"
    share = "more " if found.kind is Slowness.COMPUTATION else "of a step more "
    if found.group and len(found.ranks) > 1:
        who, peers = f"group {found.group} of ranks {_listed(found.ranks)}", f"groups {found.group} like it"
    elif found.group:
        peers = f"groups {found.group} without it"
    return (
        f"{who} {what} {found.time / 1000:.1f} ms of each step, {found.compared} {peers} {found.peers / 1000:.1f} ms: "
        f"{found.excess:.1%} {share}(limit {found.threshold:.1%}), since step {found.since * WINDOW_STEPS}"
    )


def _listed(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return f"{shown} and {len(ranks) - 8} more" if len(ranks) > 8 else shown


__all__ = [
    "RESOURCE",
    "WINDOW_STEPS",
    "GroupTime",
    "NodeSteps",
    "SlowFinding",
    "Slowness",
    "SlownessSettings",
    "StepWindow",
    "explained",
]
