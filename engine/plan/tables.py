"""The fault tables in force: shipped ones, the cluster's ConfigMaps over them, the repository's own over both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from engine.documents import SHIPPED, Declared, Desired
from engine.documents.fault_tables import FaultTable
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic, ObjectKey
from engine.model.faults import code_key
from engine.model.hardware import ManualPolicy
from engine.plan.memo import Memo
from engine.wire import faultconfig
from engine.wire.errors import WireError
from engine.wire.faultconfig import FaultConfig, Grace, Rule

Read = tuple[FaultConfig, tuple[WireError, ...]]
_PLACES: Final = (faultconfig.DEVICE, faultconfig.NODE, faultconfig.CLUSTER)
_KEYS: Final = tuple(ObjectKey("v1", "ConfigMap", namespace, name) for namespace, name in _PLACES)
_NOTHING: Final = FaultConfig()
_READ: Final[Memo[Read]] = Memo(8)
_LAID: Final[Memo[Desired]] = Memo(4)


def in_force(desired: Desired, observed: Observed) -> Desired:
    """The declarations with the fault tables of the cluster laid under the repository's own ones."""
    config, _ = _read(observed)
    if not _tables(config):
        return desired
    return _LAID.of(id(desired), (desired, config), lambda: _lay(desired, config))


def manual_policy(observed: Observed) -> ManualPolicy | None:
    """ClusterD's rule for isolating chips that fail too often; None while nobody wrote one."""
    return _read(observed)[0].manual


def grace(observed: Observed) -> Grace:
    """How long resets under jobs wait (``GraceTolerance``)."""
    return _read(observed)[0].grace


def notes(desired: Desired, observed: Observed) -> list[Diagnostic]:
    """What is wrong with the ConfigMaps, and which of their tables the repository's own ones hide."""
    config, problems = _read(observed)
    out = [Diagnostic("error", p.object, "", 0, 0, p.field, p.message) for p in problems]
    for plane in sorted(_tables(config)):
        own = _own(desired, plane)
        if own is not None:
            origin = own.origin
            text = f"the repository's own table of plane {plane} stays in force over the cluster's ConfigMap"
            name = f"FaultTable/{own.document.name}"
            out.append(Diagnostic("info", name, origin.file, origin.line, origin.column, "spec", text))
    return out


def _read(observed: Observed) -> Read:
    bodies = [observed.objects[key] for key in _KEYS if key in observed.objects]
    return _READ.of("config", bodies, lambda: faultconfig.read(bodies)) if bodies else (_NOTHING, ())


def _own(desired: Desired, plane: str) -> Declared[FaultTable] | None:
    """The repository's own table of a plane."""
    for name in sorted(desired.fault_tables):
        item = desired.fault_tables[name]
        if item.document.spec.plane == plane and not item.origin.file.startswith(SHIPPED):
            return item
    return None


def _tables(config: FaultConfig) -> dict[str, faultconfig.Levels | None]:
    """What the ConfigMaps say, by plane; None where only rules change."""
    out: dict[str, faultconfig.Levels | None] = {
        plane: levels
        for plane, levels in (("switch", config.switch), ("node", config.node), ("public", config.public))
        if levels is not None
    }
    if config.chip is not None or config.frequency is not None:
        out["chip"] = config.chip
    return out


def _lay(desired: Desired, config: FaultConfig) -> Desired:
    tables = dict(desired.fault_tables)
    for plane, levels in sorted(_tables(config).items()):
        shipped = desired.tables.get(plane)
        if shipped is None or _own(desired, plane) is not None:
            continue
        name = next(n for n in sorted(tables) if tables[n].document is shipped)
        spec = shipped.model_dump(mode="json", by_alias=True)
        spec = _changed(spec, plane, levels, config)
        tables[name] = Declared(FaultTable.model_validate(spec), tables[name].origin)
    return dataclasses.replace(desired, fault_tables=tables)


def _changed(
    body: dict[str, Any], plane: str, levels: faultconfig.Levels | None, config: FaultConfig
) -> dict[str, Any]:
    spec = body["spec"]
    if levels is not None:
        spec["levels"] = {level: list(codes) for level, codes in levels.items() if level in spec["severity"]}
    if plane == "public":
        spec["senders"] = list(config.senders)
    if plane == "chip":
        known: Mapping[str, Any] = {code_key(code): detail for code, detail in spec["codes"].items()}
        spec["codes"] |= {
            code: {"plane": "network"} for code in config.network if not known.get(code_key(code), {}).get("plane")
        }
        if config.frequency is not None:
            spec["frequency"] = [_frequency(rule) for rule in config.frequency]
        if config.duration is not None:
            spec["duration"] = [_duration(rule) for rule in config.duration]
    return body


def _frequency(rule: Rule) -> dict[str, Any]:
    out = {"codes": list(rule.codes), "times": rule.times, "window": f"{rule.window}s", "level": rule.level}
    return out | ({"releaseAfter": f"{rule.release}s"} if rule.release is not None else {})


def _duration(rule: Rule) -> dict[str, Any]:
    return {
        "codes": list(rule.codes), "timeout": f"{rule.timeout}s", "recover": f"{rule.recover}s", "level": rule.level,
    }  # fmt: skip
