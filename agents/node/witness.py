"""Who else can tell that a chip is in use: asked one by one right before anything destructive happens.

The agent knows the node's pods and the driver's processes by itself. What only a part of the node knows (kubelet's pod
resources, its device checkpoint, containers that run without Kubernetes) comes from a witness of its own. A witness
that cannot say is a reason to wait, never to go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class WitnessError(Exception):
    """The witness cannot say now who is on the chips; the text is bounded and fit for a report."""


class Witness(Protocol):
    """One source of facts about who holds chips."""

    @property
    def name(self) -> str:
        """What is asked, as people know it, e.g. ``kubelet pod resources``."""
        ...

    async def holders(self, chips: Sequence[int]) -> Mapping[int, str]:
        """Return who holds which of the chips (physical ids), read now. Raises WitnessError."""
        ...
