"""Which file serves which kind of accelerator."""

from __future__ import annotations

from belay.agents.training.train.native.devices import Device


def device_for(kind: str) -> Device | None:
    """The device of that kind; None for CPU and for kinds that need nothing of their own."""
    if kind == "cuda":
        from belay.agents.training.train.native.nccl import Nccl

        return Nccl()
    if kind == "npu":
        from belay.agents.training.train.native.npu import Npu

        return Npu()
    return None
