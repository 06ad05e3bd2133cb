"""init_taskd_agent, start_taskd_agent, register_func (docs 06_api/07_taskd of MindCluster)."""

from __future__ import annotations

import functools
import importlib
import ipaddress
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final

from belay.agents.training.compat import logs
from belay.agents.training.compat.taskd import bus_proxy
from belay.agents.training.compat.taskd.bus_agent import BusAgent
from belay.agents.training.compat.taskd.processes import Function, Processes
from belay.agents.training.compat.taskd.proxy_api import init_taskd_proxy

log = logging.getLogger(__name__)

PYTORCH, MINDSPORE = "PyTorch", "MindSpore"
_lock = threading.Lock()
_functions: dict[str, Function] = {}
_ready: Callable[[], BusAgent] | None = None
NOT_INITIALISED: Final = "call init_taskd_agent first"


def init_taskd_agent(config: Any = None, cls: Any = None) -> bool:
    """Accept the processes of a pod: Framework ``PyTorch`` with the elastic agent as ``cls``, or ``MindSpore``.

    Without ``config`` it is PyTorch. UpstreamAddr (127.0.0.1, an IP literal), UpstreamPort (9602), ServerRank (RANK or
    MS_NODE_RANK). False, with the reason in the log, when one is wrong.
    """
    global _ready
    config = {"Framework": PYTORCH} if config is None else config
    try:
        if not isinstance(config, dict):
            raise TypeError(f"config is a {type(config).__name__}, not a dict")
        framework = config.get("Framework")
        if framework not in (PYTORCH, MINDSPORE) or (framework == PYTORCH and cls is None):
            raise ValueError(f"Framework is {framework!r:.40}: PyTorch with its elastic agent, or MindSpore, is needed")
        rank = config.get("ServerRank") or os.environ.get("RANK" if framework == PYTORCH else "MS_NODE_RANK") or "0"
        if not isinstance(rank, str) or not (rank.isascii() and rank.isdigit()):
            raise ValueError(f"ServerRank is {rank!r:.40}, a number from 0 as text is needed")
        host = config.get("UpstreamAddr") or bus_proxy.HOST
        ipaddress.ip_address(host)
        port = str(config.get("UpstreamPort") or bus_proxy.port(os.environ))
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"UpstreamPort is {port[:20]!r}, a port is needed")
    except (TypeError, ValueError) as error:
        log.error("init_taskd_agent: %s", error)
        return False
    logs.to_file(f"agent-{rank}.log")
    upstream, job = bus_proxy.address(host, port), os.environ.get("MINDX_TASK_ID", "")
    with _lock:
        _functions.clear()
        _ready = functools.partial(_agent, framework, cls, rank, upstream, job)
    return True


def _agent(framework: str, cls: Any, rank: str, upstream: str, job: str) -> BusAgent:
    """The agent; for MindSpore, whose launcher starts nothing else, the pod's proxy too."""
    processes = _processes(framework, cls)
    if framework == MINDSPORE:
        init_taskd_proxy({"UpstreamAddr": os.environ.get("MS_SCHED_HOST", bus_proxy.HOST), "ServerRank": rank})
    return BusAgent(int(rank), upstream, processes, job=job)


def _processes(framework: str, cls: Any) -> Processes:
    functions = dict(_functions)
    if framework == PYTORCH:
        module = importlib.import_module("belay.agents.training.compat.taskd.torch_ranks")
        found: Processes = module.TorchProcesses(cls, functions)
        return found
    from belay.agents.training.compat.taskd.mindspore import MindSporeProcesses

    return MindSporeProcesses(functions)


def register_func(operator: str, func: Any) -> bool:
    """Register KILL_WORKER, START_ALL_WORKER, START_WORKER_LIST, MONITOR or RESTART of the framework. False before
    init."""
    with _lock:
        if _ready is None:
            log.error("register_func: %s", NOT_INITIALISED)
            return False
        _functions[operator] = func
    return True


def start_taskd_agent() -> Any:
    """Run the agent; the framework's result. None when it was not initialised."""
    with _lock:
        ready = _ready
    if ready is None:
        log.error("start_taskd_agent: %s", NOT_INITIALISED)
        return None
    return ready().run()
