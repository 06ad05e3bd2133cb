"""DLRecoverManager and its reports (docs/zh/scheduling/06_api/06_elastic_agent.md)."""

from agents.training.manager.recovery_client import (
    ElasticRecoverManager as DLRecoverManager,
)
from agents.training.manager.recovery_client import (
    report_process_fault,
    report_recover_status,
    report_recover_strategy,
    report_stop_complete,
)
from engine.wire.clusterd.recover_pb2 import ClientInfo, Status

__all__ = [
    "ClientInfo", "DLRecoverManager", "Status", "report_process_fault", "report_recover_status",
    "report_recover_strategy", "report_stop_complete",
]  # fmt: skip
