"""The functions of `mindio_ttp.controller_ttp`: one controller per process, which TaskD orders. Functions that TaskD
calls return 0 on success.

Names, parameters and limits are those of mindio_ttp 7.3.0 (docs/zh/scheduling, 06_api/09_mindio).
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from belay.agents.training.compat.mindio.controller_server import ControllerServer
from belay.agents.training.compat.mindio.environment import Environment, log, start_log
from belay.agents.training.compat.mindio.processor_runner import end_process
from belay.agents.training.compat.mindio.security import context
from belay.agents.training.compat.tft.constants import MAX_RANKS
from belay.agents.training.compat.tft.controller_commands import ControllerSettings, Order

CALLBACKS = ("report_fault_ranks", "report_stop_complete", "report_strategies", "report_result")
STRATEGIES = ("exit", "dump", "retry", "recover", "continue", "downgrade", "upgrade", "migration")
ACTIONS = ("hot switch", "stop switch")
RESOLVE_TRIES = 3
MAX_WAIT = 3600


class _ControllerHost:
    """The controller of this process."""

    def __init__(self) -> None:
        self.wanted: dict[str, Any] | None = None
        self.server: ControllerServer | None = None
        self.callbacks: dict[str, Callable[..., Any]] = {}
        self.decrypt: Callable[[str], str] | None = None
        self.address = ""
        self.backup = 0


host = _ControllerHost()


def whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number in ``least..most``. Raises ValueError."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number in {least}..{most}, got {value!r:.40}")
    return value


def truth(name: str, value: Any) -> bool:
    """True or False. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r:.40}")
    return value


def tft_init_controller(
    rank: int, world_size: int, enable_local_copy: bool, enable_arf: bool = False, enable_zit: bool = False
) -> None:
    """Set the job of the controller; a second call is ignored. Raises ValueError."""
    start_log()
    whole("world_size", world_size, 1, MAX_RANKS)
    whole("rank", rank, -1, world_size - 1)
    local = truth("enable_local_copy", enable_local_copy)
    arf, zit = truth("enable_arf", enable_arf), truth("enable_zit", enable_zit)
    if Environment.read().mindspore and (local or zit):
        raise ValueError("with MindSpore neither enable_local_copy nor enable_zit can be used")
    if host.wanted is not None:
        log.info("the controller of this process is initialised already")
        return
    host.wanted = {"rank": rank, "world": world_size, "local_copy": local, "arf": arf, "zit": zit}


def resolve(address: Any) -> str:
    """The IP address of an address or host name (3 tries, 1 s apart). Raises ValueError for an unusable address,
    OSError for an unknown name.
    """
    if not isinstance(address, str) or not address:
        raise ValueError(f"the address must be a text, got {address!r:.40}")
    try:
        found = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        for attempt in range(RESOLVE_TRIES):
            try:
                found = ipaddress.ip_address(socket.getaddrinfo(address, None, proto=socket.IPPROTO_TCP)[0][4][0])
                break
            except OSError:
                if attempt + 1 == RESOLVE_TRIES:
                    raise
                time.sleep(1.0)
    if found.is_unspecified:
        raise ValueError(f"{address} cannot be reached by other hosts; bind the pod's own address (POD_IP)")
    return str(found)


def tft_start_controller(bind_ip: str, port: int, enable_tls: bool = True, tls_info: str = "") -> None:
    """Listen for processors; a second call is ignored. Raises SystemExit(2) when the address cannot be used, and
    ValueError for TLS that cannot be set up.
    """
    if host.wanted is None:
        raise RuntimeError("tft_start_controller before tft_init_controller: call that first")
    if host.server is not None:
        log.info("the controller of this process is started already")
        return
    tls: ssl.SSLContext | None = None
    if truth("enable_tls", enable_tls):
        tls = context(True, tls_info, host.decrypt)
    environment = Environment.read()
    rank = host.wanted["rank"]
    settings = ControllerSettings(
        **host.wanted, job=environment.task, clusterd=all(name in host.callbacks for name in CALLBACKS),
        backup=max(0, rank), wait_clusterd=environment.wait_clusterd, action_limit=environment.action_limit,
        stop_before_dump=environment.stop_before_dump, shifted=environment.shifted,
    )  # fmt: skip
    server = ControllerServer(settings, lambda: host.callbacks)
    try:
        bound = resolve(bind_ip)
        server.start(bound, whole("port", port, 1024, 65535), tls)
    except (OSError, ValueError) as error:
        text = f"the controller cannot listen on {bind_ip!r:.60}:{port!r:.10}: {error}"
        log.error("%s", text)
        sys.stderr.write(f"belay: {text}\n")
        raise SystemExit(2) from error
    host.server = server
    host.address = f"[{bound}]:{port}" if ":" in bound else f"{bound}:{port}"


def tft_destroy_controller() -> int:
    """End the controller; processors train on without protection. Answers 0, also when there is none."""
    server, host.server, host.wanted, host.address = host.server, None, None, ""
    if server is not None:
        server.destroy()
    return 0


def tft_query_high_availability_switch() -> bool:
    """Whether any processor is registered."""
    return host.server is not None and host.server.linked()


def tft_register_mindx_callback(action: str, func: Callable[..., Any]) -> int:
    """Register a callback of the controller to ClusterD; ClusterD takes part if all four exist at the start. 1 for an
    unknown action, or one that is no callable.
    """
    if not callable(func):
        log.error("the callback of %.40r is ignored: it must be a callable, got %s", action, type(func).__name__)
        return 1
    if action not in CALLBACKS:
        log.error("the callback of %.40r is ignored; known are %s", action, ", ".join(CALLBACKS))
        return 1
    host.callbacks[action] = func
    return 0


def tft_notify_controller_dump() -> int:
    """Save the last checkpoint and leave."""
    return _order(Order("dump"))


def tft_notify_controller_stop_train(
    fault_ranks: Mapping[int, int], stop_type: str = "stop", timeout: int | None = None
) -> int:
    """Stop training for a repair, or pause it for at most ``timeout`` seconds (None and 0: ten minutes)."""
    timeout = 0 if timeout is None else timeout
    if stop_type not in ("stop", "pause") or type(timeout) is not int or timeout < 0:
        log.error("stop_train is ignored: type %r, timeout %r", stop_type, timeout)
        return 1
    faults = _faults(fault_ranks)
    if faults is None:
        return 1
    return _order(Order("pause" if stop_type == "pause" else "stop", faults, limit=float(timeout)))


def tft_notify_controller_on_global_rank(fault_ranks: Mapping[int, int], time: int = 1) -> int:
    """Pass all faults of the job; ``time`` seconds (1..3600) may pass until a strategy is chosen."""
    faults = _faults(fault_ranks)
    if faults is None or type(time) is not int or not 1 <= time <= MAX_WAIT:
        log.error("on_global_rank is ignored: faults %.80r, time %r", fault_ranks, time)
        return 1
    return _order(Order("global", faults, limit=float(time)))


def tft_notify_controller_prepare_action(action: str, fault_ranks: Mapping[int, int] | None = None) -> int:
    """Prepare or cancel a hot switch of these ranks."""
    faults = _faults(fault_ranks)
    if action not in ACTIONS or faults is None:
        log.error("prepare_action is ignored: %.40r; known are %s", action, ", ".join(ACTIONS))
        return 1
    return _order(Order("prepare", faults, text=action))


def tft_notify_controller_change_strategy(strategy: str, params: str = "") -> int:
    """Pass the chosen strategy."""
    if strategy not in STRATEGIES or not isinstance(params, str) or len(params) > 1024:
        log.error("change_strategy is ignored: %.40r; known are %s", strategy, ", ".join(STRATEGIES))
        return 1
    return _order(Order("strategy", text=strategy, params=params))


def _faults(given: Any) -> dict[int, int] | None:
    """Faults as rank → type, also from texts of digits; None when they cannot be read."""
    try:
        return {int(rank): int(kind) for rank, kind in dict(given or {}).items()}
    except (TypeError, ValueError):
        log.error("fault ranks must map ranks to types, got %.80r", given)
        return None


def _order(order: Order) -> int:
    if host.server is None:
        log.error("%s is ignored: no controller is started in this process", order.kind)
        return 1
    host.server.order(order)
    return 0


__all__ = [
    "end_process", "tft_destroy_controller", "tft_init_controller", "tft_notify_controller_change_strategy",
    "tft_notify_controller_dump", "tft_notify_controller_on_global_rank", "tft_notify_controller_prepare_action",
    "tft_notify_controller_stop_train", "tft_query_high_availability_switch", "tft_register_mindx_callback",
    "tft_start_controller",
]  # fmt: skip
