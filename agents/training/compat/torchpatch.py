"""A patch of torch's elastic agent: workers start once all faults are collected and none names their pod.

`torch.distributed.elastic` restarts workers at once when one fails. The reset file shows whether faults are still
being collected; workers that start then would join a group that is about to change.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from belay.agents.training.compat import resetfile

log = logging.getLogger(__name__)

LIMIT: Final = 900.0
"""Seconds after which workers start regardless of the file, so that an agent never waits for ever."""
PERIOD: Final = 1.0
_MARK: Final = "_belay_waits"


def patch_torch_methods(
    *, file: Path = resetfile.FILE, limit: float = LIMIT, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Make torch's elastic agent wait before it initialises workers. A second call changes nothing.

    Raises ImportError when torch is not installed.
    """
    agent = importlib.import_module("torch.distributed.elastic.agent.server.api").SimpleElasticAgent
    original = agent._initialize_workers
    if getattr(original, _MARK, False):
        return

    def patched(self: Any, worker_group: Any, *args: Any, **kwargs: Any) -> Any:
        wait_until_allowed([worker.global_rank for worker in worker_group.workers], file, limit, sleep)
        return original(self, worker_group, *args, **kwargs)

    setattr(patched, _MARK, True)
    agent._initialize_workers = patched


def wait_until_allowed(own: list[int], file: Path, limit: float, sleep: Callable[[float], None]) -> bool:
    """Wait until the reset file lets these ranks start; False after ``limit`` seconds."""
    waited = 0.0
    while waited < limit:
        try:
            if resetfile.read(file).may_start([rank for rank in own if rank >= 0]):
                return True
        except ValueError as error:
            # the file is being replaced; the next read is complete
            log.warning("%s", error)
        sleep(PERIOD)
        waited += PERIOD
    log.warning("workers start after %.0f s although the reset file names them", limit)
    return False
