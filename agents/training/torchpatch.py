"""Torch's elastic agent, taught to wait: workers start when faults are gathered and do not name their pod.

`torch.distributed.elastic` restarts workers at once when one fails. While the cluster decides, the reset file says so;
workers that start then would join a group that is about to change.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from agents.training import resetfile

log = logging.getLogger(__name__)

LIMIT: Final = 900.0
"""Seconds after which workers start whatever the file says: an agent never waits for ever."""
PERIOD: Final = 1.0
_MARK: Final = "_belay_waits"


def patch_torch_methods(
    *, file: Path = resetfile.FILE, limit: float = LIMIT, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Let the elastic agent of torch wait before it initialises workers. A second call changes nothing.

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
    """Wait until the reset file lets these ranks start; False when the time was up."""
    waited = 0.0
    while waited < limit:
        try:
            if resetfile.read(file).may_start([rank for rank in own if rank >= 0]):
                return True
        except ValueError as error:
            # a file that is being replaced is whole again in a moment
            log.warning("%s", error)
        sleep(PERIOD)
        waited += PERIOD
    log.warning("workers start after %.0f s although the reset file names them", limit)
    return False


__all__ = ["patch_torch_methods", "wait_until_allowed"]
