"""Names of the Leases in belay-system by which Belay's processes know who decides."""

from __future__ import annotations

from typing import Final

RECOVERY: Final = "belay-recovery"
"""Held by the server that serves jobs."""
SHARD_PREFIX: Final = "belay-shard-"
"""``belay-shard-<shard>``: held by the shard's writer."""
CONTROLLER_PREFIX: Final = "belay-controller-"
"""``belay-controller-<shard>``: held by the controller that follows Git and the cluster."""
