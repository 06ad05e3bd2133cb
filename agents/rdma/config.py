"""The configuration of RDMA resources, and the table of fault codes.

Source: component/k8s-rdma-shared-dev-plugin/pkg/types/types.go, pkg/resources/core/core_manager.go,
docs/zh/scheduling/06_api/11_k8s_rdma_shared_dev_plugin.md, pkg/fault/config/fault_code.json.
"""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.engine.model.levels import SwitchTableLevel

MAX_BYTES: Final = 1 << 20
MAX_ENTRIES: Final = 64
MAX_SHARES: Final = 10_000
UPDATE: Final = 60.0
#: Prefix of resources without one, by bus.
PREFIXES: Final = {"ub": "rdma-ub", "pci": "rdma"}
_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,63}")
_PREFIX: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
CHECKS: Final = ("check_ub_port", "check_ub_lane", "check_hca_port", "check_bond_member", "check_dpu_card_drop")


#: The cards' own tool, and where a pod has the host's programs: some nodes lack the tool, so that it is no mount.
TOOL: Final = "hinicadm5"
HOST_PROGRAMS: Final = Path("/host/usr/sbin")


class ConfigError(ValueError):
    """The configuration cannot be used; the text names the file, the field and what it takes."""


class RdmaResource(msgspec.Struct, frozen=True):
    """One entry of ``configList``: ``name`` as kubelet knows it, ``shares`` = rdmaHcaMax, ``bus`` ub or pci; selectors
    are empty where anything fits.
    """

    name: str
    shares: int
    bus: str
    vendors: frozenset[str] = frozenset()
    device_ids: frozenset[str] = frozenset()
    drivers: frozenset[str] = frozenset()
    interfaces: frozenset[str] = frozenset()
    link_types: frozenset[str] = frozenset()


class FaultCode(msgspec.Struct, frozen=True):
    """A fault of the table: its code and level as ``dpuinfo-<node>`` shows them, and the check that finds it."""

    code: str
    level: str
    description: str
    check: str


_SUB_HEALTH: Final = SwitchTableLevel.SUB_HEALTH.value
FAULT_CODES: Final = (
    FaultCode(
        "21000022",
        _SUB_HEALTH,
        "RoCE device unavailable: another card and address are needed.",
        CHECKS[0],
    ),
    FaultCode(
        "21000023",
        _SUB_HEALTH,
        "Lanes of the data plane are down: the card works, slower.",
        CHECKS[1],
    ),
    FaultCode("21000024", "SeparateDPU", "Link from host to network is down: another address is needed.", CHECKS[2]),
    FaultCode(
        "22000025",
        _SUB_HEALTH,
        "One member of a bond is down: half the bandwidth is left.",
        CHECKS[3],
    ),
    FaultCode("22000026", "SeparateDPU", "A DPU card is missing.", CHECKS[4]),
)


class RdmaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``update`` is the pause between looks at the cards (s; 0: only at the start), ``faults`` that between checks (s;
    0: none). ``folder`` holds kubelet's sockets, ``sys`` and ``dev`` are the host's, ``tool`` is hinicadm5.
    """

    resources: tuple[RdmaResource, ...]
    update: float = UPDATE
    faults: float = 0.0
    codes: tuple[FaultCode, ...] = FAULT_CODES
    folder: Path = Path("/var/lib/kubelet/device-plugins")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    tool: str = TOOL


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this part."""
    group = parser.add_argument_group("RDMA cards")
    group.add_argument("--rdma-config", default="", metavar="FILE", help="offer RDMA cards as this config.json says")
    group.add_argument(
        "--rdma-fault-codes",
        default="",
        metavar="FILE",
        help="fault_code.json, the table of their faults",
    )


def chosen(options: argparse.Namespace) -> RdmaSettings | None:
    """The settings, None without ``--rdma-config``. Raises ConfigError."""
    if not options.rdma_config:
        if options.rdma_fault_codes:
            raise ConfigError("--rdma-fault-codes needs --rdma-config")
        return None
    settings = parsed(_read(Path(options.rdma_config)), options.rdma_config)
    settings = msgspec.structs.replace(settings, tool=tool())
    if options.rdma_fault_codes:
        codes = fault_codes(_read(Path(options.rdma_fault_codes)), options.rdma_fault_codes)
        settings = msgspec.structs.replace(settings, codes=codes)
    return settings


def tool(programs: Path = HOST_PROGRAMS) -> str:
    """The tool to run: that of this file system, else that of the host where a pod has its programs."""
    return TOOL if shutil.which(TOOL) or not programs.is_dir() else str(programs / TOOL)


def parsed(text: bytes, where: str) -> RdmaSettings:
    """The settings in the text of a config.json. Raises ConfigError."""
    body = _object(text, where)
    entries = body.get("configList")
    if not isinstance(entries, list) or not 1 <= len(entries) <= MAX_ENTRIES:
        raise ConfigError(f"{where}: configList is a list of 1 to {MAX_ENTRIES} resources")
    resources = tuple(_resource(entry, f"{where}: configList[{index}]") for index, entry in enumerate(entries))
    sockets = [one.name.rpartition("/")[2] for one in resources]
    for name in sockets:
        if sockets.count(name) > 1:
            raise ConfigError(f"{where}: resourceName {name!r} stands twice; names differ")
    update, faults = body.get("periodicUpdateInterval"), body.get("faultDetectPeriod")
    return RdmaSettings(
        resources=resources,
        update=UPDATE if update is None else _seconds(update, f"{where}: periodicUpdateInterval"),
        faults=0.0 if faults is None else _seconds(faults, f"{where}: faultDetectPeriod"),
    )


def fault_codes(text: bytes, where: str) -> tuple[FaultCode, ...]:
    """The table in the text of a fault_code.json. Raises ConfigError."""
    rows = _object(text, where).get("faults")
    if not isinstance(rows, list) or len(rows) > MAX_ENTRIES:
        raise ConfigError(f"{where}: faults is a list of at most {MAX_ENTRIES}")
    found = []
    for index, row in enumerate(rows):
        place = f"{where}: faults[{index}]"
        given = [row.get(key) if isinstance(row, dict) else None for key in _FIELDS]
        values = [value for value in given if isinstance(value, str) and 0 < len(value) <= 512]
        if len(values) < len(_FIELDS):
            raise ConfigError(f"{place}: {', '.join(_FIELDS)} are texts of 1 to 512 characters")
        code = FaultCode(*values)
        if code.check not in CHECKS:
            raise ConfigError(f"{place}: check_method {code.check!r:.60} is none of {', '.join(CHECKS)}")
        found.append(code)
    return tuple(found)


_FIELDS: Final = ("faultcode", "faultlevel", "description", "check_method")


def _resource(entry: Any, where: str) -> RdmaResource:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not an object")
    name, prefix, shares = entry.get("resourceName"), entry.get("resourcePrefix") or "", entry.get("rdmaHcaMax")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}.resourceName {name!r:.80}: use letters, digits and underscores, at most 63")
    if type(shares) is not int or not 0 <= shares <= MAX_SHARES:
        raise ConfigError(f"{where}.rdmaHcaMax {shares!r:.40}: use a whole number from 0 to {MAX_SHARES}")
    given = entry.get("selectors") or {}
    if not isinstance(given, dict):
        raise ConfigError(f"{where}.selectors is not an object")
    chosen = {key: _texts(given.get(key), f"{where}.selectors.{key}") for key in _SELECTORS}
    devices = _texts(entry.get("devices"), f"{where}.devices")
    if bool(devices) == any(chosen.values()):
        raise ConfigError(f"{where} needs selectors, or devices (names of interfaces), and not both")
    bus = "ub" if any("ub" in one.lower() for one in chosen["buses"]) else "pci"
    prefix = prefix or PREFIXES[bus]
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"{where}.resourcePrefix {prefix!r:.80} is not a DNS name in lower case")
    return RdmaResource(
        f"{prefix}/{name}",
        shares,
        bus,
        frozenset(map(number, chosen["vendors"])),
        frozenset(map(number, chosen["deviceIDs"])),
        frozenset(chosen["drivers"]),
        frozenset(chosen["ifNames"] or devices),
        frozenset(chosen["linkTypes"]),
    )


_SELECTORS: Final = ("buses", "vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")


def number(text: str) -> str:
    """An id as the selectors compare it: hexadecimal, without 0x, in lower case."""
    return text.strip().lower().removeprefix("0x")


def _texts(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > 256 or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{where} is a list of at most 256 texts")
    return value


def _seconds(value: Any, where: str) -> float:
    if type(value) is not int or not 0 <= value <= 86_400:
        raise ConfigError(f"{where} {value!r:.40}: use seconds, a whole number from 0 to 86400")
    return float(value)


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise ConfigError(f"{where} is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{where} is not a JSON object")
    return found


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is not a file")
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES} bytes")
    return text
