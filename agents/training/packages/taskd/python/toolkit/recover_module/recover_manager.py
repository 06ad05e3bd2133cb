"""DLRecoverManager and its reports (component/taskd/taskd/python/toolkit/recover_module)."""

from belay.agents.training.clusterd.recovery_client import (
    DLRecoverManager,
    report_process_fault,
    report_recover_status,
    report_recover_strategy,
    report_stop_complete,
)
from belay.agents.training.compat.manager.recovery_start import init_grpc_client, init_grpc_process
from belay.engine.wire.clusterd import recover_pb2 as pb
from belay.engine.wire.clusterd.recover_pb2 import ClientInfo, Status

__all__ = [
    "ClientInfo", "DLRecoverManager", "Status", "init_grpc_client", "init_grpc_process", "pb", "report_process_fault",
    "report_recover_status", "report_recover_strategy", "report_stop_complete",
]  # fmt: skip
