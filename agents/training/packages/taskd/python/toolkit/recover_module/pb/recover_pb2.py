"""Messages of the recovery service."""

from belay.engine.wire.clusterd.recover_pb2 import (
    ClientInfo,
    FaultRank,
    ProcessFaultRequest,
    ProcessManageSignal,
    RecoverStatusRequest,
    RecoverStrategyRequest,
    Status,
    StopCompleteRequest,
)

__all__ = [
    "ClientInfo", "FaultRank", "ProcessFaultRequest", "ProcessManageSignal", "RecoverStatusRequest",
    "RecoverStrategyRequest", "Status", "StopCompleteRequest",
]  # fmt: skip
