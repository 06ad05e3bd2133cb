"""init_taskd_proxy and destroy_taskd_proxy (docs 06_api/07_taskd of MindCluster)."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final

from belay.agents.training.compat import logs
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.taskd import bus_proxy

log = logging.getLogger(__name__)

#: The name of the log file holds the time at which the process began.
_BEGAN: Final = int(time.time())
_lock = threading.Lock()
_proxy: Member | None = None
_shared = False


def init_taskd_proxy(config: Any) -> bool:
    """Start the pod's proxy; all values of ``config`` are text.

    ListenAddr (127.0.0.1), ListenPort (9602), UpstreamAddr (MASTER_ADDR or 127.0.0.1; with LOCAL_PROXY_ENABLE=on always
    127.0.0.1), UpstreamPort (9601), ServerRank (RANK, MS_NODE_RANK or 0). True when it listens, or another process of
    this job and pod already does; otherwise False.
    """
    global _proxy, _shared
    try:
        rank = bus_proxy.server_rank(os.environ)
        values = _values(config, rank)
        logs.to_file(f"taskd-proxy-{values['ServerRank']}-{_BEGAN}.log")
        listen = bus_proxy.address(values["ListenAddr"], values["ListenPort"])
        upstream = bus_proxy.address(values["UpstreamAddr"], values["UpstreamPort"])
        with _lock:
            if _proxy is None:
                _proxy = bus_proxy.start(listen, upstream, values["ServerRank"], os.environ.get("MINDX_TASK_ID", ""))
                _shared = _proxy is None
    except (OSError, ValueError, TypeError, TimeoutError) as error:
        log.error("init_taskd_proxy: %s", error)
        return False
    return True


def destroy_taskd_proxy() -> bool:
    """End the proxy. False when this process has none."""
    global _proxy, _shared
    with _lock:
        found, _proxy = _proxy, None
        shared, _shared = _shared, False
    if found is not None:
        found.close()
    return found is not None or shared


def _values(config: Any, rank: str) -> dict[str, str]:
    if not isinstance(config, dict):
        raise TypeError(f"config is a {type(config).__name__}, not a dict")
    values = {
        "ListenAddr": bus_proxy.HOST,
        "ListenPort": bus_proxy.port(os.environ),
        "UpstreamAddr": os.environ.get("MASTER_ADDR") or "127.0.0.1",
        "UpstreamPort": bus_proxy.manager_port(os.environ),
        "ServerRank": rank,
    }
    for name, value in config.items():
        if not isinstance(value, str):
            raise TypeError(f"{str(name)[:40]} is a {type(value).__name__}, not text")
        if name in values and value:
            values[name] = value
    if os.environ.get("LOCAL_PROXY_ENABLE") == "on":
        values["UpstreamAddr"] = "127.0.0.1"
    for name in ("ListenPort", "UpstreamPort"):
        if not values[name].isdigit() or not 0 < int(values[name]) < 65536:
            raise ValueError(f"{name} is {values[name][:20]!r}, a port is needed")
    if not values["ServerRank"].isdigit():
        raise ValueError(f"ServerRank is {values['ServerRank'][:20]!r}, a number from 0 is needed")
    return values
