"""Other sources that know whether a chip is in use, asked one by one right before a destructive act.

The agent knows the node's pods and the driver's processes. Facts that only one part of the node knows (kubelet's pod
resources, its device checkpoint, containers that run without Kubernetes) come from separate witnesses. A witness that
cannot answer is a reason to wait, never to proceed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class WitnessError(Exception):
    """The witness cannot determine the users of the chips now; the text is bounded and fit for a report."""


class Witness(Protocol):
    """One source of facts about the users of chips."""

    @property
    def name(self) -> str:
        """The source's name for operators, e.g. ``kubelet pod resources``."""
        ...

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        """Return the users of each chip (physical ids), read now. Raises WitnessError."""
        ...
