"""``basic-tor-node-cm``: leaf switches and the nodes under them, for switch affinity.

Format: key ``tor_info`` with ``{"version", "tor_count", "server_list": [{"tor_id", "tor_ip", "server": [{"server_ip",
"npu_count", "slice_id"}]}]}`` and key ``tor_level``; source: component/ascend-for-volcano/plugin/tor.go and the
script lld_to_cm.py of its documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from belay.engine.model.labels import IS_HEALTHY_TOR, IS_SHARED_TOR
from belay.engine.model.switches import Switch, Switches, SwitchServer
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object

NAMESPACE: Final = "kube-system"
NAME: Final = "basic-tor-node-cm"
INFO: Final = "tor_info"
LEVEL: Final = "tor_level"
SINGLE_LAYER: Final = "single_layer"
DOUBLE_LAYER: Final = "double_layer"
#: Most nodes per switch.
MAX_WIDTH: Final = 128
MAX_SWITCHES: Final = 10_000
_WHERE: Final = f"ConfigMap/{NAMESPACE}/{NAME}"


def parse(config_map: Mapping[str, Any]) -> Switches:
    """Read and check the ConfigMap.

    Raises:
        WireError: a key is missing, not JSON or of a wrong type, or a switch, address or position occurs twice.
    """
    data = config_map.get("data")
    data = data if isinstance(data, Mapping) else {}
    level = data.get(LEVEL, DOUBLE_LAYER)
    if level not in (SINGLE_LAYER, DOUBLE_LAYER):
        raise WireError(_WHERE, f"data.{LEVEL}", f"is {level!r}, it must be {SINGLE_LAYER} or {DOUBLE_LAYER}")
    field = f"data.{INFO}"
    body = read_object(_WHERE, field, data.get(INFO))
    width = _number(body, "tor_count", field, least=1, most=MAX_WIDTH)
    rows = _rows(body, "server_list", field)
    if not rows or len(rows) > MAX_SWITCHES:
        raise WireError(_WHERE, f"{field}.server_list", f"must name 1 to {MAX_SWITCHES} switches, not {len(rows)}")
    switches = [_switch(row, f"{field}.server_list[{index}]", width) for index, row in enumerate(rows)]
    _unique(((str(switch.id), "tor_id") for switch in switches), field)
    _unique(((switch.address, "tor_ip") for switch in switches), field)
    _unique(((server.address, "server_ip") for switch in switches for server in switch.servers), field)
    return Switches(width, tuple(sorted(switches, key=lambda switch: switch.id)), level == SINGLE_LAYER)


def state(annotations: Iterable[Mapping[str, str]]) -> tuple[int, bool]:
    """(kind, unhealthy) of a switch from the annotations of the pods under it; the first that is not free decides.

    The kinds are those of annotation ``isSharedTor``: 0 free, 1 shared, 2 exclusive.
    """
    kind, unhealthy = 0, False
    for own in annotations:
        text = own.get(IS_SHARED_TOR, "")
        if kind == 0 and text in ("1", "2"):
            kind = int(text)
        unhealthy = unhealthy or own.get(IS_HEALTHY_TOR) == "1"
    return kind, unhealthy


def _switch(row: Mapping[str, Any], field: str, width: int) -> Switch:
    servers = [
        SwitchServer(
            _text(entry, "server_ip", f"{field}.server[{index}]"),
            _number(entry, "slice_id", f"{field}.server[{index}]", least=0, most=width - 1),
            _number(entry, "npu_count", f"{field}.server[{index}]", least=0, most=64) if "npu_count" in entry else 0,
        )
        for index, entry in enumerate(_rows(row, "server", field))
    ]
    _unique(((str(server.slice), "slice_id") for server in servers), field)
    ordered = tuple(sorted(servers, key=lambda server: server.slice))
    return Switch(_number(row, "tor_id", field, least=0), _text(row, "tor_ip", field), ordered)


def _rows(body: Mapping[str, Any], key: str, field: str) -> list[Mapping[str, Any]]:
    value = body.get(key)
    if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in value):
        raise WireError(_WHERE, f"{field}.{key}", "must be a list of objects")
    return value


def _number(body: Mapping[str, Any], key: str, field: str, *, least: int, most: int = 1 << 31) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        limit = f"from {least} to {most}" if most < 1 << 31 else f"of at least {least}"
        raise WireError(_WHERE, f"{field}.{key}", f"is {value!r}, it must be a whole number {limit}")
    return value


def _text(body: Mapping[str, Any], key: str, field: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise WireError(_WHERE, f"{field}.{key}", "must be an address")
    return value


def _unique(found: Any, field: str) -> None:
    seen: set[str] = set()
    for value, key in found:
        if value in seen:
            raise WireError(_WHERE, field, f"{key} {value} is given twice")
        seen.add(value)
