"""The complete start of the older client: registration, MindIO's controller, signals (TaskD's recover module)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from belay.agents.training.clusterd.client import ClientInfo, server_address
from belay.agents.training.clusterd.controller import MindIO
from belay.agents.training.clusterd.recovery_client import DLRecoverManager, callbacks, register_with_retries
from belay.agents.training.compat.manager.service import mindio_controller

log = logging.getLogger(__name__)

SWITCH_SECONDS: Final = 600.0


def init_grpc_process(frame: str = "pytorch", *, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Init, start MindIO's controller, wait up to 600 s for the first training process, register, follow signals.

    Blocks while the job is followed. False, with the reason in the log, when it cannot begin.
    """
    try:
        manager = DLRecoverManager(ClientInfo(os.environ.get("MINDX_TASK_ID", "")), server_address(), secure_conn=False)
        if not manager.init_clusterd():
            return False
        controller = mindio_controller(callbacks(), os.environ)
    except (ImportError, ValueError, RuntimeError) as error:
        log.error("process recovery does not start: %s", error)
        return False
    assert isinstance(controller, MindIO)
    waited = 0.0
    while not controller.high_availability():
        if waited >= SWITCH_SECONDS:
            log.error("no training process joined MindIO's controller within %.0f s", SWITCH_SECONDS)
            return False
        sleep(1.0)
        waited += 1.0
    if not register_with_retries(manager):
        log.error("the recovery service does not register job %s", manager.client.info.job_id)
        return False
    manager.start_subscribe(frame)
    return True


def init_grpc_client(frame: str = "pytorch") -> threading.Thread:
    """`init_grpc_process` in a thread of its own."""
    thread = threading.Thread(target=init_grpc_process, args=(frame,), name="recover-client", daemon=True)
    thread.start()
    return thread
