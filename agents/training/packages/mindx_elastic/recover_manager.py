"""DLRecoverManager and its reports (docs/zh/scheduling/06_api/06_elastic_agent.md)."""

from agents.training.manager.client import ClientInfo, Status
from agents.training.manager.recovery_client import (
    DLRecoverManager,
    report_process_fault,
    report_recover_status,
    report_recover_strategy,
    report_stop_complete,
)

__all__ = [
    "ClientInfo", "DLRecoverManager", "Status", "report_process_fault", "report_recover_status",
    "report_recover_strategy", "report_stop_complete",
]  # fmt: skip
