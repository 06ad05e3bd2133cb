"""Fault tables that operators keep in ConfigMaps: parsed as MindCluster parses them, each key separately.

``kube-system/mindx-dl-fault-config`` (faultCode.json, SwitchFaultCode.json, faultCustomization.json) and
``cluster-system/clusterd-config-cm`` (manually_separate_policy.conf; publicFaultConfiguration.json is Belay's key for
what ClusterD reads from a file in its container) each replace a whole shipped table; an invalid key leaves the shipped
table in force. ``mindx-dl/mindx-dl-node-fault-config`` (NodeDConfiguration.json) is accepted as a whole or not at all.

Sources: component/ascend-device-plugin/pkg/common/fault_code.go and upgradefault.go, component/noded/pkg/control,
component/clusterd/pkg/domain/manualfault and publicfault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from belay.engine.model import in_place_recovery
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.levels import (
    CHIP_LEVELS,
    MANUALLY_SEPARATE,
    NETWORK_LEVELS,
    NORMAL,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    SUB_HEALTH,
    FaultLevel,
    NodeLevel,
    SwitchTableLevel,
)
from belay.engine.wire import yamltext
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object

DEVICE: Final = ("kube-system", "mindx-dl-fault-config")
NODE: Final = ("mindx-dl", "mindx-dl-node-fault-config")
CLUSTER: Final = ("cluster-system", "clusterd-config-cm")
NODE_NAME: Final = "NodeDConfiguration.json"
PUBLIC_NAMES: Final = ("publicCustomization.json", "publicFaultConfiguration.json")
MANUAL_NAME: Final = "manually_separate_policy.conf"

_HANDLING: Final = frozenset(CHIP_LEVELS[1:])
_NEVER: Final = 1 << 32
_PUBLIC_LEVELS: Final = (NOT_HANDLE, SUB_HEALTH, PRE_SEPARATE, SEPARATE)
_CHIP_LISTS: Final[dict[str, str]] = {
    f"{level}Codes": level.value for level in FaultLevel if level not in (NORMAL, MANUALLY_SEPARATE)
} | {f"{level}NetworkCodes": level.value for level in FaultLevel if level in NETWORK_LEVELS}
_SWITCH_LISTS: Final[dict[str, str]] = {
    "NotHandleFaultCodes": SwitchTableLevel.NOT_HANDLE.value,
    "SubHealthFaultCodes": SwitchTableLevel.SUB_HEALTH.value,
    "RestartRequestFaultCodes": SwitchTableLevel.RESTART_REQUEST.value,
    "PreSeparateFaultCodes": SwitchTableLevel.PRE_SEPARATE.value,
    "ResetFaultCodes": SwitchTableLevel.SEPARATE.value,
    "SeparateFaultCodes": SwitchTableLevel.SEPARATE.value,
}
_NODE_LISTS: Final[dict[str, str]] = {f"{level}Codes": level.value for level in NodeLevel}
_PUBLIC_LISTS: Final[dict[str, str]] = {f"{level}Codes": level.value for level in _PUBLIC_LEVELS}
_HEX: Final = re.compile(r"[0-9A-Fa-f]{1,16}\Z")
_SWITCH: Final = re.compile(r"\[[0-9A-Za-z_.-]+(,[0-9A-Za-z_.-]+){3}\]\Z")
_NODE_CODE: Final = re.compile(r"[a-zA-Z0-9]{8}\Z")
_PUBLIC_CODE: Final = re.compile(r"[0-9A-Za-z]{9}\Z")
_MAX_CODES: Final = 20_000

Levels = dict[str, tuple[str, ...]]


class Rule(msgspec.Struct, frozen=True):
    """A frequency rule (``times``, ``window``, ``release``) or a duration rule (``timeout``, ``recover``); seconds."""

    codes: tuple[str, ...]
    level: str
    times: int = 0
    window: int = 0
    release: int | None = None
    timeout: int = 0
    recover: int = 0


class Grace(msgspec.Struct, frozen=True):
    """``GraceTolerance`` in seconds: until managers have read a change, until a reset chip has booted, and until a
    fault has healed after the last process ended.
    """

    read: int = in_place_recovery.READ_SECONDS
    boot: int = in_place_recovery.BOOT_SECONDS
    heal: int = in_place_recovery.HEAL_SECONDS


class FaultConfig(msgspec.Struct, frozen=True):
    """Overrides of the shipped tables from the cluster's ConfigMaps; None keeps the shipped part.

    ``network`` are codes that the chip table lists for the parameter plane.
    """

    chip: Levels | None = None
    network: tuple[str, ...] = ()
    switch: Levels | None = None
    node: Levels | None = None
    public: Levels | None = None
    senders: tuple[str, ...] = ()
    frequency: tuple[Rule, ...] | None = None
    duration: tuple[Rule, ...] | None = None
    manual: ManualPolicy | None = None
    grace: Grace = Grace()


class FaultConfigReader:
    """Parse one ConfigMap key by key and collect the errors."""

    def __init__(self, config_map: Mapping[str, Any]) -> None:
        metadata, data = config_map.get("metadata") or {}, config_map.get("data")
        self.where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
        self.data: Mapping[str, Any] = data if isinstance(data, dict) else {}
        self.problems: list[WireError] = []

    def record(self, field: str, message: str) -> None:
        """Record one error."""
        if len(self.problems) < 50:
            self.problems.append(WireError(self.where, field, message))

    def part(self, name: str, take: Callable[[str, dict[str, Any]], Any]) -> Any:
        """The result of ``take`` on a key's JSON object; None if the key is missing or invalid."""
        if not self.data.get(name):
            return None
        try:
            return take(f"data.{name}", read_object(self.where, f"data.{name}", self.data[name]))
        except WireError as error:
            self.record(error.field, f"{error.message}; the shipped table stays in force")
            return None

    def lists(
        self, field: str, body: Mapping[str, Any], names: Mapping[str, str], pattern: re.Pattern[str], like: str
    ) -> Levels:
        """Codes by level; unknown lists and malformed codes are left out and recorded."""
        out: dict[str, list[str]] = {level: [] for level in names.values()}
        for key in sorted(body):
            rows = body[key]
            if key not in names:
                self.record(f"{field}.{key}", f"is not a list of this table; they are {', '.join(names)}")
                continue
            if rows is None:
                continue
            if not isinstance(rows, list) or len(rows) > _MAX_CODES:
                raise WireError(self.where, f"{field}.{key}", "must be a list of codes")
            for index, code in enumerate(rows):
                if isinstance(code, str) and pattern.match(code) and len(code) <= 50:
                    out[names[key]].append(code)
                else:
                    self.record(
                        f"{field}.{key}[{index}]", f"{str(code)[:60]!r} is no code such as {like}; it is left out"
                    )
        return {level: tuple(dict.fromkeys(codes)) for level, codes in out.items()}


def read(config_maps: Iterable[Mapping[str, Any]]) -> tuple[FaultConfig, tuple[WireError, ...]]:
    """The configuration from these ConfigMaps, and their errors; other ConfigMaps are ignored."""
    config, problems = FaultConfig(), []
    for body in config_maps:
        metadata = body.get("metadata") or {}
        take = _TAKERS.get((str(metadata.get("namespace", "")), str(metadata.get("name", ""))))
        if take is not None:
            reader = FaultConfigReader(body)
            config = msgspec.structs.replace(config, **take(reader))
            problems += reader.problems
    return config, tuple(problems)


def _device(reader: FaultConfigReader) -> dict[str, Any]:
    chip = reader.part("faultCode.json", lambda field, body: reader.lists(field, body, _CHIP_LISTS, _HEX, '"80C98001"'))
    network: tuple[str, ...] = ()
    if chip is not None:
        body = read_object(reader.where, "data.faultCode.json", reader.data["faultCode.json"])
        network = tuple(
            code for key in sorted(body) if "Network" in key for code in body[key] or () if isinstance(code, str)
        )
    rules = reader.part("faultCustomization.json", lambda field, body: _rules(reader, field, body))
    return {
        "chip": chip,
        "network": network,
        "switch": reader.part(
            "SwitchFaultCode.json",
            lambda field, body: reader.lists(field, body, _SWITCH_LISTS, _SWITCH, '"[0x00f1fef5,155913,cpu,na]"'),
        ),
        "frequency": rules[0] if rules else None,
        "duration": rules[1] if rules else None,
        "grace": rules[2] if rules else Grace(),
    }


def _node(reader: FaultConfigReader) -> dict[str, Any]:
    """NodeD refuses the whole update for one bad code or one code in two lists."""
    before = len(reader.problems)

    def take(field: str, body: dict[str, Any]) -> Levels:
        lists = body.get("FaultTypeCode")
        if not isinstance(lists, dict):
            raise WireError(reader.where, f"{field}.FaultTypeCode", "must be an object with lists of codes")
        field = f"{field}.FaultTypeCode"
        found = {
            level: tuple(dict.fromkeys(code.upper() for code in codes))
            for level, codes in reader.lists(field, lists, _NODE_LISTS, _NODE_CODE, '"0100000D"').items()
        }
        owner: dict[str, str] = {}
        for level, codes in found.items():
            for code in codes:
                if owner.setdefault(code, level) != level:
                    reader.record(field, f"{code} is listed under {owner[code]} and {level}")
        if len(reader.problems) > before:
            raise WireError(reader.where, field, "has errors, so all of it is refused")
        return found

    return {"node": reader.part(NODE_NAME, take)}


def _cluster(reader: FaultConfigReader) -> dict[str, Any]:
    name = next((name for name in PUBLIC_NAMES if reader.data.get(name)), PUBLIC_NAMES[0])

    def take(field: str, body: dict[str, Any]) -> tuple[Levels, tuple[str, ...]]:
        lists, senders = body.get("publicFaultCode"), body.get("publicFaultResource")
        if not isinstance(lists, dict) or not isinstance(senders, list):
            raise WireError(reader.where, field, "must have publicFaultCode (lists) and publicFaultResource (a list)")
        found = reader.lists(f"{field}.publicFaultCode", lists, _PUBLIC_LISTS, _PUBLIC_CODE, '"220001001"')
        return found, tuple(sorted({str(sender) for sender in senders if sender}))

    public = reader.part(name, take)
    return {
        "public": public[0] if public else None,
        "senders": public[1] if public else (),
        "manual": _manual(reader) if reader.data.get(MANUAL_NAME) else None,
    }


def _manual(reader: FaultConfigReader) -> ManualPolicy | None:
    """``manually_separate_policy.conf``: a number out of range keeps its default, ``enabled`` missing means false."""
    field = f"data.{MANUAL_NAME}"
    text = reader.data[MANUAL_NAME]
    try:
        body = yamltext.load(text) if isinstance(text, str) and len(text) < 65536 else None
    except ValueError as error:
        reader.record(field, f"is not valid YAML: {error}")
        return None
    if not isinstance(body, dict):
        reader.record(field, "must be an object with enabled, separate and release")
        return None
    if body.get("enabled", False) not in (True, False):
        reader.record(f"{field}.enabled", "must be true or false; taken as false")

    def number(section: str, key: str, low: int, high: int, default: int, also: int | None = None) -> int:
        rows = body.get(section)
        value = rows.get(key, default) if isinstance(rows, dict) else default
        if type(value) is int and (low <= value <= high or value == also):
            return value
        extra = f", or {also} for never" if also is not None else ""
        reader.record(f"{field}.{section}.{key}", f"must be {low} to {high}{extra}; {default} is used")
        return default

    return ManualPolicy(
        enabled=body.get("enabled") is True,
        window_hours=number("separate", "fault_window_hours", 1, 720, 24),
        threshold=number("separate", "fault_threshold", 1, 50, 3),
        free_hours=number("release", "fault_free_hours", 1, 240, 48, -1),
    )


def _rules(
    reader: FaultConfigReader, field: str, body: Mapping[str, Any]
) -> tuple[tuple[Rule, ...], tuple[Rule, ...], Grace]:
    """``FaultFrequency`` and ``FaultDuration``; a rule that fails a check is left out, the others apply."""
    out: list[list[Rule]] = [[], []]
    for kind, (name, take) in enumerate((("FaultFrequency", _frequency), ("FaultDuration", _duration))):
        rows = body.get(name) or []
        if not isinstance(rows, list) or len(rows) > 1000:
            raise WireError(reader.where, f"{field}.{name}", "must be a list of rules")
        for index, row in enumerate(rows):
            here = f"{field}.{name}[{index}]"
            made = take(row) if isinstance(row, dict) else "must be an object"
            if isinstance(made, Rule):
                out[kind].append(made)
            else:
                reader.record(here, f"{made}; the rule is left out")
    return tuple(out[0]), tuple(out[1]), _grace(reader, field, body.get("GraceTolerance"))


_TOLERANCES: Final = (
    ("WaitProcessReadCMTime", "read", in_place_recovery.READ_RANGE),
    ("WaitDeviceResetTime", "boot", in_place_recovery.BOOT_RANGE),
    ("WaitFaultSelfHealingTime", "heal", in_place_recovery.HEAL_RANGE),
)


def _grace(reader: FaultConfigReader, field: str, body: object) -> Grace:
    """Check each time separately: a time out of range becomes its default."""
    found: dict[str, int] = {}
    stated = body if isinstance(body, dict) else {}
    for key, name, (low, high) in _TOLERANCES:
        value = stated.get(key)
        if type(value) is int and low <= value <= high:
            found[name] = value
        elif value is not None:
            reader.record(f"{field}.GraceTolerance.{key}", f"must be {low} to {high} seconds; its default is used")
    return Grace(**found)


def _event_ids(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    codes = row.get("EventId")
    if not isinstance(codes, list) or not codes or len(codes) > 1000:
        return None
    if not all(isinstance(code, str) and _HEX.match(code) for code in codes):
        return None
    return tuple(dict.fromkeys(code.upper() for code in codes))


def _frequency(row: Mapping[str, Any]) -> Rule | str:
    codes = _event_ids(row)
    times, window, level = row.get("Times"), row.get("TimeWindow"), row.get("FaultHandling")
    release = row.get("ReleaseTimeWindow") or _NEVER
    if codes is None:
        return "EventId must be a list of hexadecimal codes"
    if type(window) is not int or not 60 <= window <= 864_000:
        return "TimeWindow must be 60 to 864000 seconds"
    if type(times) is not int or not 1 <= times <= 100:
        return "Times must be 1 to 100"
    if not isinstance(level, str) or level not in _HANDLING:
        return f"FaultHandling must be a level from {NOT_HANDLE} to {MANUALLY_SEPARATE}"
    if type(release) is not int or not 60 <= release <= _NEVER:
        return "ReleaseTimeWindow must be 60 to 2^32 seconds"
    if release == _NEVER and level != MANUALLY_SEPARATE:
        return f"ReleaseTimeWindow is required, and less than 2^32, unless FaultHandling is {MANUALLY_SEPARATE}"
    return Rule(codes, level, times=times, window=window, release=None if release == _NEVER else release)


def _duration(row: Mapping[str, Any]) -> Rule | str:
    codes = _event_ids(row)
    timeout, recover, level = row.get("FaultTimeout"), row.get("RecoverTimeout"), row.get("FaultHandling")
    if codes is None:
        return "EventId must be a list of hexadecimal codes"
    if type(timeout) is not int or not 0 <= timeout <= 600:
        return "FaultTimeout must be 0 to 600 seconds"
    if type(recover) is not int or not 0 <= recover <= 86_400:
        return "RecoverTimeout must be 0 to 86400 seconds"
    if not isinstance(level, str) or level not in _HANDLING or level == MANUALLY_SEPARATE:
        return f"FaultHandling must be a level from {NOT_HANDLE} to {SEPARATE}"
    return Rule(codes, level, timeout=timeout, recover=recover)


_TAKERS: Final[dict[tuple[str, str], Callable[[FaultConfigReader], dict[str, Any]]]] = {
    DEVICE: _device,
    NODE: _node,
    CLUSTER: _cluster,
}
