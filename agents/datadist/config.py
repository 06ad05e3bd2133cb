"""LLMConfig: the settings of users, and the `llm.*` options that LLMDataDist.init takes.

Names and ranges are those of the public package `llm_datadist` (CANN documentation, LLMConfig).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import IntEnum

from belay.agents.datadist import channels
from belay.agents.datadist.clusters import ip_number, ip_text, whole

DEFAULT_SYNC_MILLISECONDS = 1000
UINT32_MAX = 2**32 - 1
INT32_MAX = 2**31 - 1
MAX_OPTION = 65_536  # characters of one option value


class LLMRole(IntEnum):
    """The computation of a cluster; linking and listening do not depend on it."""

    PROMPT = 1
    DECODER = 2
    MIX = 3


@dataclasses.dataclass
class LLMConfig:
    """Settings of one LLMDataDist; ``generate_options`` turns them into the text options of ``init``."""

    device_id: int | list[int] | tuple[int, ...] | None = None
    listen_ip_info: str | None = None
    sync_kv_timeout: int | str | None = None
    local_comm_res: str | None = None
    enable_switch_role: bool | None = None
    link_total_time: int | None = None
    link_retry_count: int | None = None
    rdma_traffic_class: int | None = None
    rdma_service_level: int | None = None
    buf_pool_cfg: str | None = None
    mem_pool_cfg: str | None = None
    host_mem_pool_cfg: str | None = None
    enable_cache_manager: bool | None = None
    enable_remote_cache_accessible: bool | None = None
    transfer_backend: str | None = None
    global_resource_config: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    ge_options: dict[str, str] = dataclasses.field(default_factory=dict)

    def generate_options(self) -> dict[str, str]:
        """Return the options that were set, as text.

        Raises TypeError or ValueError that names the property.
        """
        options = dict(self.ge_options)
        for field, option in OPTIONS.items():
            value = getattr(self, field)
            if value is None:
                continue
            options[option] = _CHECKS[field](field, value)
        return options

    gen_options = generate_options


OPTIONS = {
    "device_id": "ge.exec.deviceId",
    "listen_ip_info": "llm.listenIpInfo",
    "sync_kv_timeout": "llm.SyncKvCacheWaitTime",
    "local_comm_res": "llm.LocalCommRes",
    "enable_switch_role": "llm.EnableSwitchRole",
    "link_total_time": "llm.LinkTotalTime",
    "link_retry_count": "llm.LinkRetryCount",
    "rdma_traffic_class": "llm.RdmaTrafficClass",
    "rdma_service_level": "llm.RdmaServiceLevel",
    "buf_pool_cfg": "llm.BufPoolCfg",
    "mem_pool_cfg": "llm.MemPoolConfig",
    "host_mem_pool_cfg": "llm.HostMemPoolConfig",
    "enable_cache_manager": "llm.EnableCacheManager",
    "enable_remote_cache_accessible": "llm.EnableRemoteCacheAccessible",
    "transfer_backend": "llm.TransferBackend",
    "global_resource_config": "llm.GlobalResourceConfig",
    "tls_cert": channels.OPTIONS["cert"],
    "tls_key": channels.OPTIONS["key"],
    "tls_ca": channels.OPTIONS["ca"],
}


def _number(smallest: int, largest: int) -> Callable[[str, object], str]:
    """Return a check of a whole number in a range, which returns the number as text. It raises ValueError."""

    def check(name: str, value: object) -> str:
        number = whole(name, value, largest)
        if number < smallest:
            raise ValueError(f"{name} must be between {smallest} and {largest}, not {number}")
        return str(number)

    return check


def _milliseconds(name: str, value: object) -> str:
    """Check a whole number, which may be text (LLMConfig, sync_kv_timeout)."""
    text = isinstance(value, str) and value.isascii() and value.isdigit()
    return _number(1, INT32_MAX)(name, int(str(value)[:20]) if text else value)


def _device(name: str, value: object) -> str:
    """Check a chip, which may be a list of exactly one (LLMConfig, device_id)."""
    if isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise ValueError(f"{name} must name one device, not {len(value)}")
        value = value[0]
    return _number(0, INT32_MAX)(name, value)


def _flag(name: str, value: object) -> str:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return "1" if value else "0"


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    if len(value) > MAX_OPTION:
        raise ValueError(f"{name} is longer than {MAX_OPTION} characters")
    return value


def _listen(name: str, value: object) -> str:
    text = _text(name, value)
    addresses(name, text)
    return text


def addresses(name: str, text: str) -> list[tuple[str, int]]:
    """Parse `ip:port` entries joined by semicolons into (ip, port).

    Raises ValueError that names the setting and the bad entry.
    """
    found = []
    for entry in text.split(";"):
        ip, colon, port = entry.strip().rpartition(":")
        try:
            if not colon or not port.isascii() or not port.isdigit():
                raise ValueError("no port")
            found.append((ip_text(ip_number(ip)), whole("port", int(port), 65535)))
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{name}: {entry[:64]!r} is not an ip:port, for example 10.0.0.1:26000") from error
    return found


_CHECKS = {
    "device_id": _device,
    "listen_ip_info": _listen,
    "sync_kv_timeout": _milliseconds,
    "local_comm_res": _text,
    "enable_switch_role": _flag,
    "link_total_time": _number(0, UINT32_MAX),
    "link_retry_count": _number(1, 100),
    "rdma_traffic_class": _number(0, 255),
    "rdma_service_level": _number(0, 7),
    "buf_pool_cfg": _text,
    "mem_pool_cfg": _text,
    "host_mem_pool_cfg": _text,
    "enable_cache_manager": _flag,
    "enable_remote_cache_accessible": _flag,
    "transfer_backend": _text,
    "global_resource_config": _text,
    "tls_cert": _text,
    "tls_key": _text,
    "tls_ca": _text,
}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that this implementation uses, parsed from their text form.

    ``sync`` and ``link_total`` are in seconds; 0 means no limit beyond the call's own time-out: all attempts of one
    link fit into the shorter of the two. RDMA, pool and backend options belong to the native transport and are only
    checked. The role may change unless ``enable_switch_role`` says no: the published sample does not set it.
    """

    listen: tuple[tuple[str, int], ...] = ()
    sync: float = DEFAULT_SYNC_MILLISECONDS / 1000
    local_comm_res: str = ""
    switch_role: bool = True
    link_total: float = 0.0
    link_retries: int = 1
    accessible: bool = True

    @classmethod
    def read(cls, options: Mapping[str, str]) -> Options:
        """Check every known option; unknown `ge.*` and `llm.*` ones are ignored, as by the native library.

        Raises TypeError or ValueError that names the option.
        """
        if not isinstance(options, Mapping):
            raise TypeError(f"options must be a dict, not {type(options).__name__}")
        for name, value in options.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TypeError(f"option {name!r:.80} and its value must be str")
        for field, option in OPTIONS.items():
            if option in options:
                _check_text(field, option, options[option])
        listen = options.get(OPTIONS["listen_ip_info"], "")
        return cls(
            listen=tuple(addresses("llm.listenIpInfo", listen)) if listen else (),
            sync=int(options.get(OPTIONS["sync_kv_timeout"], DEFAULT_SYNC_MILLISECONDS)) / 1000,
            local_comm_res=options.get(OPTIONS["local_comm_res"], ""),
            switch_role=options.get(OPTIONS["enable_switch_role"], "1") == "1",
            link_total=float(options.get(OPTIONS["link_total_time"], "0")),
            link_retries=int(options.get(OPTIONS["link_retry_count"], "1")),
            accessible=options.get(OPTIONS["enable_remote_cache_accessible"], "1") == "1",
        )


def _check_text(field: str, option: str, text: str) -> None:
    check = _CHECKS[field]
    if check in (_text, _listen):
        check(option, text)
    elif check is _flag:
        if text not in ("0", "1"):
            raise ValueError(f"{option} must be 0 or 1, not {text[:32]!r}")
    elif not text.isascii() or not text.isdigit():
        raise ValueError(f"{option} must be a whole number, not {text[:32]!r}")
    else:
        check(option, int(text[:20]))
