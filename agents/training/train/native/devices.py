"""What a kind of accelerator needs for a repair in the process, behind one protocol; one file for each kind.

On CPU gloo's sockets are all there is (``gloo``). An accelerator runs collectives in kernels, which the host does not
wait for: it must be stopped (``free``), brought back before the next groups are made (``leave``), and waited for before
state changes (``settle``), so that no step is counted whose gradients a stopped collective left half reduced.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch.distributed import distributed_c10d as c10d

LEAVE = 60.0
"""Seconds within which collectives must have ended after they were stopped; then the process is replaced."""


class Device(Protocol):
    """One kind of accelerator in a rank."""

    def made(self) -> None:
        """Groups were made; called by the main thread, whose current device this is."""

    def free(self) -> None:
        """Stop the collectives in flight; called by the listening thread, must not block. May be called again."""

    def leave(self) -> None:
        """Make the device usable again; called by the main thread, which has left its collectives. Raises
        ``RuntimeError`` when it is not: the process is replaced then."""

    def settle(self) -> None:
        """Wait until the collectives of this step have ended; called by the main thread."""


def backends(kind: str) -> list[tuple[Any, Any]]:
    """The groups that have a backend for ``kind``, with it, those made last first."""
    import torch

    found, device = [], torch.device(kind)
    for group in reversed(list(c10d._world.pg_map)):
        try:
            found.append((group, group._get_backend(device)))
        except RuntimeError:
            # a group of gloo only
            continue
    return found
