"""The flags of MindCluster's device plugin under their own names, as settings of the agent.

Source: component/ascend-device-plugin/main.go. Go's spellings are accepted: ``-volcanoType``, ``-volcanoType=true``,
``--shareDevCount=1``. Ranges are those of the original; a value out of range is refused, not clamped.
"""

from __future__ import annotations

import argparse
import logging
import logging.handlers
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from belay.agents.common.log import JsonLines
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.settings import Settings
from belay.engine.model.faults import Duration
from belay.engine.wire.policy import NodePolicy

LINK_DOWN: Final = "81078603"
LOG_BYTES: Final = 20 << 20
#: Levels of the original → Python's.
LOG_LEVELS: Final = {-1: "DEBUG", 0: "INFO", 1: "WARNING", 2: "ERROR", 3: "CRITICAL"}


class Flag(NamedTuple):
    """One flag: the parser of its text, and its purpose."""

    name: str
    kind: Callable[[str], Any]
    help: str


def boolean(text: str) -> bool:
    """Parse a boolean as Go does."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def between(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of integers in a range."""

    def read(text: str) -> int:
        digits = text.removeprefix("-")
        if not digits.isascii() or not digits.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {low} to {high}")
        return int(text)

    return read


def hot_reset(text: str) -> int:
    """Parse a hot-reset mode: -1 off, 0 inference, 2 training and inference while no pod uses the chips."""
    value = between(-1, 2)(text)
    if value == 1:
        raise argparse.ArgumentTypeError("1 (online training) is retired; use 2, or -1 to switch resets off")
    return value


FLAGS: Final = (
    Flag("fdFlag", boolean, "edge management (FusionDirector): ids begin with davinci-mini-"),
    Flag("edgeLogFile", str, "log file used with -fdFlag"),
    Flag("volcanoType", boolean, "give the chips that the scheduler chose"),
    Flag("presetVirtualDevice", boolean, "true: vNPUs exist before pods; false: they are cut as pods need them"),
    Flag("use310PMixedInsert", boolean, "servers with 300V, 300V Pro and 300I Pro cards"),
    Flag("shareDevCount", between(1, 100), "how many containers share a chip"),
    Flag("softShareDevConfigDir", str, "folder of the vCANN runtime's shared memory; switches soft sharing on"),
    Flag("useSingleDieMode", boolean, "dies of A3 chips are given out one by one"),
    Flag("hotReset", hot_reset, "-1: no resets; 0 or 2: as ordered, and by the agent itself while no engine is there"),
    Flag("linkdownTimeout", between(1, 30), "seconds that a lost link may last before it is a fault"),
    Flag("listWatchPeriod", between(3, 1800), "seconds between two looks at the chips' health"),
    Flag("autoStowing", boolean, "retired: chips that are well again always return"),
    Flag("enableSlowNode", boolean, "give containers the settings of the degradation diagnosis"),
    Flag("dealWatchHandler", boolean, "always so: what a broken watch missed is listed again"),
    Flag("checkCachedPods", boolean, "always so: pods are listed again whenever a watch ends"),
    Flag("getPodFromKubelet", boolean, "read the node's pods from kubelet, not from the API server"),
    Flag("thirdPartyScanDelay", between(0, 86400), "seconds from a failed reset on a super pod to a rescan"),
    Flag("deviceResetTimeout", between(10, 600), "seconds to wait at the start for cards that are not back yet"),
    Flag("logLevel", between(-1, 3), "-1 debug, 0 info, 1 warning, 2 error, 3 critical"),
    Flag("logFile", str, "write the log to this file too"),
    Flag("maxAge", between(7, 700), "days to keep old log files"),
    Flag("maxBackups", between(1, 180), "how many old log files to keep"),
)


def add(parser: argparse.ArgumentParser) -> None:
    """Add every flag, and the one that enables the device plugin."""
    group = parser.add_argument_group("device plugin", "flags of MindCluster's device plugin, under its names")
    group.add_argument("--device-plugin", action="store_true", help="serve kubelet: offer chips and give them to pods")
    group.add_argument("--kubelet-dir", default="", metavar="DIR", help="kubelet's folder of device plugin sockets")
    group.add_argument("--pod-resources", default="", metavar="FILE", help="kubelet's pod resources socket")
    for flag in FLAGS:
        extra: dict[str, Any] = {"nargs": "?", "const": True} if flag.kind is boolean else {}
        group.add_argument(
            f"-{flag.name}", f"--{flag.name}", dest=flag.name, type=flag.kind, default=None, help=flag.help, **extra
        )


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags that were given, by name."""
    return {flag.name: value for flag in FLAGS if (value := getattr(options, flag.name, None)) is not None}


def plugin_settings(options: argparse.Namespace, environment: Mapping[str, str] | None = None) -> PluginSettings:
    """Return the plugin's settings. Raises ValueError for incompatible flags."""
    env = os.environ if environment is None else environment
    flags = given(options)
    fields = {
        "fdFlag": "edge", "volcanoType": "volcano", "presetVirtualDevice": "preset", "use310PMixedInsert": "mixed",
        "shareDevCount": "share", "softShareDevConfigDir": "soft_share_dir", "useSingleDieMode": "single_die",
        "enableSlowNode": "slow_node", "getPodFromKubelet": "from_kubelet",
    }  # fmt: skip
    chosen: dict[str, Any] = {field: flags[name] for name, field in fields.items() if name in flags}
    if options.kubelet_dir:
        chosen["folder"] = Path(options.kubelet_dir)
    if options.pod_resources:
        chosen["pod_resources"] = Path(options.pod_resources)
    port = env.get("KUBELET_PORT", "")
    if port:
        chosen["kubelet_port"] = between(1, 65535)(port)
    if "listWatchPeriod" in flags:
        chosen["period"] = float(flags["listWatchPeriod"])
    return PluginSettings(
        host_ip=env.get("HOST_IP", ""), runtime=env.get("ASCEND_DOCKER_RUNTIME", "") == "True", **chosen
    )


def node_settings(options: argparse.Namespace, settings: Settings) -> Settings:
    """Return the agent's settings with the flags applied."""
    flags = given(options)
    changes: dict[str, Any] = {}
    if "listWatchPeriod" in flags:
        changes["poll"] = float(flags["listWatchPeriod"])
    if "deviceResetTimeout" in flags:
        changes["cards_timeout"] = float(flags["deviceResetTimeout"])
    if "thirdPartyScanDelay" in flags:
        changes["third_party_delay"] = float(flags["thirdPartyScanDelay"])
    if "hotReset" in flags:
        changes["resets"] = flags["hotReset"] >= 0
        # only the device plugin can keep pods off the chips meanwhile
        changes["own_resets"] = flags["hotReset"] >= 0 and options.device_plugin
    return msgspec.structs.replace(settings, **changes)


def policy(options: argparse.Namespace, shipped: NodePolicy) -> NodePolicy:
    """Return the agent's initial policy, with the allowed duration of a lost link."""
    seconds = given(options).get("linkdownTimeout")
    if seconds is None:
        return shipped
    rules = shipped.rules
    rule = rules.duration.get(LINK_DOWN)
    if rule is None:
        return shipped
    changed: Duration = msgspec.structs.replace(rule, timeout_ms=int(seconds) * 1000)
    return msgspec.structs.replace(
        shipped, rules=msgspec.structs.replace(rules, duration={**rules.duration, LINK_DOWN: changed})
    )


def log_level(options: argparse.Namespace) -> str:
    """Return the level for its number in the original; empty when it was not given."""
    level = given(options).get("logLevel")
    return "" if level is None else LOG_LEVELS[level]


def log_handlers(options: argparse.Namespace) -> list[logging.Handler]:
    """Return a handler for rotated log files as in the original: 20 MB each, limited in number and age in days.

    Raises OSError when the file cannot be written.
    """
    flags = given(options)
    name = flags.get("edgeLogFile") if flags.get("fdFlag") else flags.get("logFile")
    if not name:
        return []
    path = Path(name)
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    oldest = time.time() - flags.get("maxAge", 7) * 86_400
    for old in path.parent.glob(f"{path.name}.*"):
        if old.name.rpartition(".")[2].isdecimal() and old.stat().st_mtime < oldest:
            old.unlink(missing_ok=True)
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=flags.get("maxBackups", 30))
    handler.setFormatter(JsonLines())
    path.chmod(0o640)
    return [handler]
