"""The exporter's flags, under the names and in the ranges of MindCluster's (component/npu-exporter/cmd/npu-exporter).

Belay's own, which the original does not have: ``-metricsTLSCert``, ``-metricsTLSKey`` and ``-metricsClientCA`` (TLS
for /metrics, and client certificates), ``-trustedScrapers`` (networks that no per-address limit binds), ``-configDir``,
``-hccnTool``, ``-driver``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from belay.agents.common.log import Log
from belay.agents.drivers.tools import hccn
from belay.agents.exporter.groups import FOLDER
from belay.agents.serving.limits import Limits, Network

MOST_TELEGRAF: Final = 11
PROMETHEUS, TELEGRAF = "Prometheus", "Telegraf"
MODES: Final = ("docker", "containerd", "isula")
_RATE = re.compile(r"([1-9]\d{0,2})/([1-9]\d{0,2})")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_log = Log("exporter")


class FlagError(ValueError):
    """A flag is unknown or out of its range; the text names it and what is allowed."""


class ExporterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags; field names are snake case of the flags."""

    ip: str = ""
    port: int = 8082
    update_time: int = 0
    container_mode: Literal["docker", "containerd", "isula"] = "docker"
    containerd: str = ""
    endpoint: str = ""
    concurrency: int = 5
    limit_ip_req: str = "20/1"
    limit_ip_conn: int = 5
    limit_total_conn: int = 20
    cache_size: int = 102_400
    platform: Literal["Prometheus", "Telegraf"] = "Prometheus"
    poll_interval: float = 1.0
    profiling_time: int = 200
    hccs_bw_profiling_time: int = 200
    device_reset_timeout: int = 600
    text_metrics_file_path: str = ""
    enable_legacy_metrics: bool = False
    log_file: str = ""
    log_level: int = 0
    max_age: int = 7
    max_backups: int = 30
    version: bool = False
    enable_healthz: bool = False
    healthz_address: int = 11_251
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    metrics_tls_cert: str = ""
    metrics_tls_key: str = ""
    metrics_client_ca: str = ""
    trusted_scrapers: tuple[Network, ...] = ()
    config_dir: str = str(FOLDER)
    hccn_tool: str = hccn.PATH
    driver: str = "dcmi"

    def limits(self) -> Limits:
        """The limits of requests and connections."""
        requests, seconds = self.limit_ip_req.split("/")
        return Limits(
            concurrency=self.concurrency,
            spacing=int(seconds) / int(requests),
            per_address=self.limit_ip_conn,
            total=self.limit_total_conn,
            addresses=self.cache_size,
            trusted=self.trusted_scrapers,
        )


Parse = Callable[[str, str], Any]


def _number(least: int, most: int) -> Parse:
    def parse(flag: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise FlagError(f"-{flag}: {text[:64]!r} is not an integer; use {least} to {most}") from None
        if not least <= value <= most:
            raise FlagError(f"-{flag}: {value} is out of range; use {least} to {most}")
        return value

    return parse


def _text(flag: str, text: str) -> str:
    return text


def _bool(flag: str, text: str) -> bool:
    if text.lower() in ("1", "t", "true"):
        return True
    if text.lower() in ("0", "f", "false"):
        return False
    raise FlagError(f"-{flag}: {text[:64]!r} is neither true nor false")


def _address(flag: str, text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise FlagError(f"-{flag}: {text[:64]!r} is no IPv4 or IPv6 address") from None
    return text


def _socket(flag: str, text: str) -> str:
    if ".sock" not in text:
        raise FlagError(f"-{flag}: {text[:128]!r} is not a socket; its name must contain .sock")
    return text if text.startswith("unix://") else f"unix://{text}"


def _rate(flag: str, text: str) -> str:
    if not _RATE.fullmatch(text):
        raise FlagError(f"-{flag}: {text[:64]!r} is no rate; use REQUESTS/SECONDS, 1 to 999 each, such as 20/1")
    return text


def _mode(flag: str, text: str) -> str:
    if text in MODES:
        return text
    _log.warning("unknown container mode, docker holds", mode=text)
    return "docker"


def _update(flag: str, text: str) -> int:
    try:
        return int(_number(1, 60)(flag, text))
    except FlagError as error:
        if text != "0":
            _log.warning("updateTime is passed over", error=error)
        return 0


def _platform(flag: str, text: str) -> str:
    if text not in (PROMETHEUS, TELEGRAF):
        raise FlagError(f"-{flag}: {text[:64]!r} is unknown; use {PROMETHEUS} or {TELEGRAF}")
    return text


def duration(flag: str, text: str) -> float:
    """A Go duration (``1s``, ``1m30s``) in seconds."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise FlagError(f"-{flag}: {text[:64]!r} is not a duration; use one such as 1s or 500ms")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= 86_400:
        raise FlagError(f"-{flag}: {text[:64]!r} is out of range; use more than 0 and at most 24h")
    return float(seconds)


def _networks(flag: str, text: str) -> tuple[Network, ...]:
    found = []
    for part in text.split(","):
        try:
            found.append(ipaddress.ip_network(part.strip(), strict=False))
        except ValueError:
            raise FlagError(f"-{flag}: {part.strip()[:64]!r} is no network; use one such as 10.0.0.0/8") from None
    return tuple(found)


_FLAGS: Final[dict[str, tuple[str, Parse]]] = {
    "ip": ("ip", _address),
    "port": ("port", _number(1025, 40_000)),
    "updateTime": ("update_time", _update),
    "containerMode": ("container_mode", _mode),
    "containerd": ("containerd", _socket),
    "endpoint": ("endpoint", _socket),
    "concurrency": ("concurrency", _number(1, 512)),
    "limitIPReq": ("limit_ip_req", _rate),
    "limitIPConn": ("limit_ip_conn", _number(1, 128)),
    "limitTotalConn": ("limit_total_conn", _number(1, 512)),
    "cacheSize": ("cache_size", _number(1, 1_024_000)),
    "platform": ("platform", _platform),
    "poll_interval": ("poll_interval", duration),
    "profilingTime": ("profiling_time", _number(1, 2000)),
    "hccsBWProfilingTime": ("hccs_bw_profiling_time", _number(1, 1000)),
    "deviceResetTimeout": ("device_reset_timeout", _number(10, 600)),
    "textMetricsFilePath": ("text_metrics_file_path", _text),
    "enableLegacyMetrics": ("enable_legacy_metrics", _bool),
    "logFile": ("log_file", _text),
    "logLevel": ("log_level", _number(-1, 3)),
    "maxAge": ("max_age", _number(7, 700)),
    "maxBackups": ("max_backups", _number(1, 180)),
    "version": ("version", _bool),
    "enable-healthz": ("enable_healthz", _bool),
    "healthz-address": ("healthz_address", _number(1025, 65_535)),
    "tls-cert-file": ("tls_cert_file", _text),
    "tls-private-key-file": ("tls_private_key_file", _text),
    "metricsTLSCert": ("metrics_tls_cert", _text),
    "metricsTLSKey": ("metrics_tls_key", _text),
    "metricsClientCA": ("metrics_client_ca", _text),
    "trustedScrapers": ("trusted_scrapers", _networks),
    "configDir": ("config_dir", _text),
    "hccnTool": ("hccn_tool", _text),
    "driver": ("driver", _text),
}
#: What each flag means, for the reference (docs/reference/agent.md).
MEANINGS: Final = {
    "ip": "the address to listen on; needed unless Telegraf reads",
    "port": "the port to listen on, 1025 to 40000",
    "updateTime": "seconds between two readings; 0: the intervals of pluginConfiguration.json and the groups",
    "containerMode": "which runtime holds the containers: docker, containerd or isula",
    "containerd": "socket of containerd; empty: where the runtime puts it",
    "endpoint": "socket of the container runtime interface; empty: where the runtime puts it",
    "concurrency": "scrapes answered at one time, 1 to 512",
    "limitIPReq": "requests per seconds that one address may send, as N/SECONDS",
    "limitIPConn": "connections that one address may hold, 1 to 128",
    "limitTotalConn": "connections in all, 1 to 512",
    "cacheSize": "addresses whose requests are counted, 1 to 1024000",
    "platform": "who reads: Prometheus by HTTP, or Telegraf from standard output",
    "poll_interval": "Telegraf only: time between two outputs, such as 1s",
    "profilingTime": "milliseconds over which PCIe bandwidth is measured, 1 to 2000",
    "hccsBWProfilingTime": "milliseconds over which HCCS bandwidth is measured, 1 to 1000",
    "deviceResetTimeout": "seconds to wait at the start for cards that are not back yet, 10 to 600",
    "textMetricsFilePath": "files of metrics that people write, shown beside the others; by commas",
    "enableLegacyMetrics": "show metrics under their names of before, too",
    "logFile": "write the log to this file too; empty: standard error only",
    "logLevel": "-1 debug, 0 info, 1 warning, 2 error, 3 critical",
    "maxAge": "days to keep old log files, 7 to 700",
    "maxBackups": "how many old log files to keep, 1 to 180",
    "version": "print the version and end",
    "enable-healthz": "answer /healthz on -healthz-address",
    "healthz-address": "port of the probe, 1025 to 65535",
    "tls-cert-file": "certificate of the probe",
    "tls-private-key-file": "key of the probe's certificate",
    "metricsTLSCert": "certificate of /metrics: it is then served by TLS",
    "metricsTLSKey": "key of the certificate of /metrics",
    "metricsClientCA": "authorities of scrapers: a client certificate is then needed",
    "trustedScrapers": "networks that only the total limits bind, by commas",
    "configDir": "folder of metricConfiguration.json and pluginConfiguration.json",
    "hccnTool": "path of hccn_tool, which reads network ports",
    "driver": "dcmi[:FILE], npu_smi[:FILE] or simulated[:MODEL]",
}
FLAG_NAMES: Final = tuple(_FLAGS)
_BOOLS: Final = frozenset({"enableLegacyMetrics", "version", "enable-healthz"})
_TELEGRAF: Final = frozenset({
    "updateTime", "platform", "poll_interval", "profilingTime", "hccsBWProfilingTime", "deviceResetTimeout",
    "textMetricsFilePath", "logFile", "logLevel", "maxAge", "maxBackups",
})  # fmt: skip
_OWN: Final = frozenset({"configDir", "hccnTool", "driver"})
FLAGS: Final = tuple(_FLAGS)


def usage() -> str:
    """Every flag with its default, a line each; those that Telegraf takes are marked."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(ExporterSettings)}
    lines = []
    for flag, (name, _) in _FLAGS.items():
        default = defaults[name]
        shown = str(default).lower() if isinstance(default, bool) else "" if default == () else default
        lines.append(f"  -{flag}={shown}{'   (Telegraf too)' if flag in _TELEGRAF else ''}")
    return "\n".join(lines)


def parse(arguments: Sequence[str]) -> ExporterSettings:
    """Flags as Go's: ``-name=value``, ``-name value``, one dash or two. Raises FlagError."""
    given = _pairs(arguments)
    fields = {_FLAGS[flag][0]: _FLAGS[flag][1](flag, text) for flag, text in given.items()}
    settings = ExporterSettings(**fields)
    if settings.version:
        return settings
    if settings.platform == TELEGRAF:
        _telegraf(given)
    else:
        if "poll_interval" in given:
            raise FlagError("-poll_interval: is for Telegraf only; leave it out or use -platform=Telegraf")
        if not settings.ip:
            raise FlagError("-ip: is needed: the address to listen on, such as 0.0.0.0")
    for one, other, names in (
        (settings.tls_cert_file, settings.tls_private_key_file, "--tls-cert-file and --tls-private-key-file"),
        (settings.metrics_tls_cert, settings.metrics_tls_key, "-metricsTLSCert and -metricsTLSKey"),
    ):
        if bool(one) != bool(other):
            raise FlagError(f"{names}: give both or none")
    if settings.metrics_client_ca and not settings.metrics_tls_cert:
        raise FlagError("-metricsClientCA: needs -metricsTLSCert and -metricsTLSKey")
    return settings


def _telegraf(given: dict[str, str]) -> None:
    if wrong := sorted(set(given) - _TELEGRAF - _OWN):
        raise FlagError(f"-{wrong[0]}: is not known with Telegraf; use {', '.join(sorted(_TELEGRAF))}")
    if len(set(given) - _OWN) > MOST_TELEGRAF:
        raise FlagError(f"with Telegraf at most {MOST_TELEGRAF} arguments")


def _pairs(arguments: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") and not equals:
            raise FlagError(f"{word[:64]!r} is not a flag; flags are -name=value")
        if name not in _FLAGS:
            raise FlagError(f"-{name[:64]}: is not a flag; flags are {', '.join(_FLAGS)}")
        if not equals:
            if name in _BOOLS:
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise FlagError(f"-{name}: needs a value")
        found[name] = value
    return found
