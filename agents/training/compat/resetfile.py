"""The job's reset file in the container: whether the processes of this pod may start, and must restart.

Format and rules: component/taskd agent, ConfigMap `reset-config-<job>` mounted at /user/restore/reset/config.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path("/user/restore/reset/config/reset.json")
MAX_BYTES: Final = 4 << 20


class ResetState(NamedTuple):
    """The content of the file; a missing file means that there is no fault."""

    flushing: bool = False
    ranks: frozenset[int] = frozenset()
    retry_time: int = 0
    restart_process: bool = False
    graceful_exit: bool = False
    statuses: tuple[tuple[int, str], ...] = ()
    """Rank and status (``fault``, ``unrecovered``, ``recovered``), in order of ranks."""

    def broken(self, own: Collection[int]) -> frozenset[int]:
        """Those of these ranks that the file names, and not as recovered."""
        recovered = {rank for rank, status in self.statuses if status == "recovered"}
        return (self.ranks - recovered) & frozenset(own)

    def may_start(self, own: Collection[int]) -> bool:
        """Whether the processes of these ranks may start: no faults are being collected, and none of them is broken."""
        return not self.flushing and not self.broken(own)


def read(file: Path = FILE) -> ResetState:
    """Read the file. Raises ValueError with the file's name and the problem."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return ResetState()
    if len(data) > MAX_BYTES:
        raise ValueError(f"{file}: larger than {MAX_BYTES >> 20} MiB")
    try:
        body = json.loads(data or b"{}")
        listed = body.get("RankList") or []
        return ResetState(
            flushing=bool(body.get("FaultFlushing")),
            ranks=frozenset(int(entry["RankId"]) for entry in listed),
            retry_time=int(body.get("RetryTime") or 0),
            restart_process=bool(body.get("RestartFaultProcess")),
            graceful_exit=bool(body.get("GracefulExit")),
            statuses=tuple(sorted((int(entry["RankId"]), str(entry.get("Status", ""))[:32]) for entry in listed)),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{file}: not a reset file: {error}"[:300]) from error
