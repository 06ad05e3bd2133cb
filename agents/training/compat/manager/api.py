"""init_taskd_manager and start_taskd_manager for the `manager.py` of a job (docs 06_api/07_taskd of MindCluster)."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import MutableMapping
from typing import Any

from belay.agents.training.clusterd.state import JobSettings
from belay.agents.training.compat import logs
from belay.agents.training.compat.manager.service import ManagerService

log = logging.getLogger(__name__)

MAX_NODES, MAX_WORLD = 5000, 100_000

_lock = threading.Lock()
_service: ManagerService | None = None
_settings: JobSettings | None = None
_enabled = False


def init_taskd_manager(config: Any) -> bool:
    """Accept the job: ``job_id``, ``node_nums``, ``proc_per_node``; False, with the reason in the log, when one is
    wrong.

    ``fault_recover`` and ``taskd_enable`` of the dict are set to ``on`` by PROCESS_RECOVER and TASKD_PROCESS_ENABLE. A
    process has one manager; a second call changes nothing and returns True.
    """
    global _settings, _enabled
    logs.to_file("manager.log")
    try:
        if not isinstance(config, MutableMapping):
            raise TypeError(f"config is a {type(config).__name__}, not a dict")
        if os.environ.get("PROCESS_RECOVER") == "on":
            config["fault_recover"] = "on"
        if os.environ.get("TASKD_PROCESS_ENABLE") != "off":
            config["taskd_enable"] = "on"
        settings = JobSettings(
            job=_text(config, "job_id"),
            nodes=_count(config, "node_nums", MAX_NODES),
            per_node=_count(config, "proc_per_node", MAX_WORLD),
            recovery=config.get("fault_recover") == "on",
        )
        if settings.world > MAX_WORLD:
            raise ValueError(
                f"node_nums × proc_per_node is {settings.world}, at most {MAX_WORLD} processes are managed"
            )
    except (TypeError, ValueError) as error:
        log.error("init_taskd_manager: %s", error)
        return False
    with _lock:
        if _settings is None:
            _settings, _enabled = settings, config.get("taskd_enable") == "on"
        elif _settings != settings:
            log.warning("this process already manages job %s; the second manager is ignored", _settings.job)
    return True


def start_taskd_manager() -> bool:
    """Manage until the end of the process. False before init, or when the port is in use."""
    global _service
    with _lock:
        if _settings is None:
            log.error("start_taskd_manager: call init_taskd_manager first")
            return False
        if _service is not None:
            log.error("start_taskd_manager: the manager is already running")
            return False
        try:
            service = ManagerService(_settings, controller=_enabled)
            service.start()
        except (OSError, ValueError, TimeoutError) as error:
            log.error("start_taskd_manager: %s", error)
            return False
        _service = service
    try:
        service.run()
    finally:
        with _lock:
            _service = None
    return True


def _text(config: MutableMapping[str, Any], name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or not value or len(value) > 256:
        raise ValueError(f"{name} is {value!r:.40}, a text of 1 to 256 characters is needed (MINDX_TASK_ID)")
    return value


def _count(config: MutableMapping[str, Any], name: str, limit: int) -> int:
    value = config.get(name)
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= limit:
        raise ValueError(f"{name} is {value!r:.40}, a number from 1 to {limit} is needed")
    return number
