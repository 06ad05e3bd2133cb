"""DLRecoverManager and its reports (docs/zh/scheduling/06_api/06_elastic_agent.md)."""

from belay.agents.training.clusterd.recovery_client import (
    ElasticRecoverManager as DLRecoverManager,
)
from belay.agents.training.clusterd.recovery_client import (
    report_process_fault,
    report_recover_status,
    report_recover_strategy,
    report_stop_complete,
)
from mindx_elastic import pb  # type: ignore[import-not-found]
from mindx_elastic.pb import ClientInfo, Status  # type: ignore[import-not-found]

__all__ = [
    "ClientInfo", "DLRecoverManager", "Status", "pb", "report_process_fault", "report_recover_status",
    "report_recover_strategy", "report_stop_complete",
]  # fmt: skip
