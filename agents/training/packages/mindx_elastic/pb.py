"""Messages of the recovery service by the Elastic Agent's names, with ``taskId``, ``ip`` and ``port`` of a client."""

from belay.engine.wire.clusterd import recover_pb2
from belay.engine.wire.clusterd.recover_pb2 import (
    FaultRank,
    ProcessFaultRequest,
    ProcessManageSignal,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
)


def ClientInfo(
    ip: str = "", port: int | str = "", taskId: str = "", role: str = "", *, jobId: str = ""
) -> recover_pb2.ClientInfo:
    """Who registers. On the wire a task is a job; ``ip`` and ``port`` are reserved and travel nowhere."""
    return recover_pb2.ClientInfo(jobId=taskId or jobId, role=role)


__all__ = [
    "ClientInfo", "FaultRank", "ProcessFaultRequest", "ProcessManageSignal", "RecoverStatusRequest",
    "RecoverStrategyRequest", "Status", "StopCompleteRequest",
]  # fmt: skip
