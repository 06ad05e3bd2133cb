"""What the plugin of msrun knows of its processes and of the job's reset file, under the names that scripts and
subclasses use (component/taskd/taskd/python/framework/agent/ms_mgr of MindCluster).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from belay.agents.training.compat import resetfile

RANK_TABLE_VERSION: Final = Path("/user/serverid/devindex/config/version")
RESCHEDULED: Final = "podReschedule"
"""The restart type that comes with a new rank table."""
RUNS, DONE, NOT_STARTED = None, 0, 200


class FaultStatus(NamedTuple):
    """What the reset file says to this pod: its failed ranks, whether there are any, whether ranks of the job are not
    or no longer broken, whether the job is to be tried again, whether failed processes alone are to be restarted."""

    local_ranks: list[int]
    is_fault: bool
    is_unrecovered: bool
    is_retried: bool
    restart_fault_process: bool


class MsRunFacts:
    """The facts, each updated by the method that reads it."""

    RANK_STATUS_UNHEALTHY = "UNHEALTHY"
    RANK_STATUS_UNKNOWN = "UNKNOWN"
    RANK_STATUS_INIT = "INIT"
    RANK_STATUS_HEALTHY = "HEALTHY"
    RANK_STATUS_STOPPED = "STOPPED"
    RANK_STATUS_SUCCEEDED = "SUCCEEDED"
    Rank_Status_FAILED = "FAILED"
    FRAMEWORK_MS_NAME = "mindspore"

    def __init__(self) -> None:
        self.framework = self.FRAMEWORK_MS_NAME
        self.ms_node_rank = os.environ.get("MS_NODE_RANK")
        self.all_rank_succeed = False
        self.rank_status = ""
        self.rank_info: dict[Any, Any] = {}
        self.rank_pids: list[int] = []
        self.node_global_rank_ids: list[int] = []
        self.local_rank_to_pid: dict[int, int] = {}
        """Global rank → process, in spite of its name."""
        self.fault_ranks: list[dict[str, Any]] = []
        self.pre_fault_ranks: list[dict[str, Any]] = []
        self.retry_time = self.pre_retry_time = self.grace_exit = 0
        self.restart_type = ""
        self.restart_fault_process = False
        self.rank_table_version = 0
        self.reset_cm_path = str(resetfile.FILE)
        self.restart_type_path = str(resetfile.FILE.with_name("restartType"))
        self.rank_version_path = str(RANK_TABLE_VERSION)

    def update_rank_status(self, rank_status_dict: Mapping[Any, Mapping[str, Any]]) -> None:
        """Record an answer of msrun's MONITOR: local rank → pid, status, global_rank."""
        self.rank_info = dict(rank_status_dict)
        entries = list(rank_status_dict.values())
        self.rank_pids = [one["pid"] for one in entries]
        self.node_global_rank_ids = [one["global_rank"] for one in entries]
        self.local_rank_to_pid = dict(zip(self.node_global_rank_ids, self.rank_pids, strict=True))
        self.all_rank_succeed = all(one["status"] == DONE for one in entries)
        healthy = all(one["status"] in (RUNS, DONE, NOT_STARTED) for one in entries)
        self.rank_status = self.RANK_STATUS_HEALTHY if healthy else self.RANK_STATUS_UNHEALTHY

    def get_fault_pid_list_by_local_ranks(self, local_ranks: Iterable[int]) -> list[int]:
        """The processes of these ranks, as MONITOR named them last."""
        return [self.local_rank_to_pid[rank] for rank in local_ranks if rank in self.local_rank_to_pid]

    def update_reset_info(self) -> None:
        """Read the reset file. One that cannot be read counts as one without faults."""
        state = self._reset_state()
        self.fault_ranks = [{"RankId": rank, "Status": status} for rank, status in state.statuses]
        self.retry_time, self.grace_exit = state.retry_time, int(state.graceful_exit)
        self.restart_fault_process = state.restart_process
        self.restart_type = _text(self.restart_type_path)

    def update_pre_fault_infos(self) -> None:
        """The retry that the file asks for has been made."""
        self.pre_retry_time, self.pre_fault_ranks = self.retry_time, []

    def wait_to_start(self) -> bool:
        """Whether this pod's processes may start: no faults are being collected, and none of its ranks is named as
        broken."""
        state = self._reset_state()
        self.node_global_rank_ids = _own_ranks()
        self.pre_retry_time, self.restart_fault_process = state.retry_time, state.restart_process
        return state.may_start(self.node_global_rank_ids)

    def get_fault_status(self) -> FaultStatus:
        """Read the file again: what it says that was not dealt with before."""
        self.update_reset_info()
        news = self.fault_ranks if self.fault_ranks != self.pre_fault_ranks else []
        own = [one["RankId"] for one in news if one["Status"] == "fault" and one["RankId"] in self.node_global_rank_ids]
        others = any(one["Status"] in ("unrecovered", "recovered") for one in news)
        retried = self.retry_time > self.pre_retry_time
        return FaultStatus(own, bool(own), others, retried, self.restart_fault_process)

    def all_fault_has_recovered(self) -> bool:
        """Whether every rank that the file names is well again, and the rank table is new where pods were moved."""
        if any(one["Status"] not in ("recovered", "") for one in self.fault_ranks):
            return False
        if self.restart_type == RESCHEDULED and os.path.exists(self.rank_version_path):
            version = self.read_rank_table_version()
            if version <= self.rank_table_version:
                return False
            self.rank_table_version = version
        self.pre_retry_time, self.pre_fault_ranks = self.retry_time, self.fault_ranks
        return True

    def read_rank_table_version(self) -> int:
        """The number of the rank table in this container; -1 when it cannot be read."""
        text = _text(self.rank_version_path)
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1

    def _reset_state(self) -> resetfile.ResetState:
        try:
            return resetfile.read(Path(self.reset_cm_path))
        except ValueError:
            return resetfile.ResetState()


def _own_ranks() -> list[int]:
    """The ranks of this pod by msrun's variables; empty if they do not say."""
    count, node = os.environ.get("MS_LOCAL_WORKER", ""), os.environ.get("MS_NODE_RANK", "")
    if not (count.isdecimal() and node.isdecimal()):
        return []
    return [int(node) * int(count) + local for local in range(min(int(count), 4096))]


def local_ranks(global_ranks: Iterable[int]) -> list[int]:
    """Ranks as msrun counts them in this pod. Raises ValueError when MS_LOCAL_WORKER does not say how many there
    are."""
    count = os.environ.get("MS_LOCAL_WORKER", "")
    if not count.isdecimal() or not int(count):
        raise ValueError(f"MS_LOCAL_WORKER is {count[:20]!r}: the number of processes of this pod is needed")
    return [rank % int(count) for rank in global_ranks]


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 12).strip()
    except OSError:
        return ""
