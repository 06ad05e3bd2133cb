"""The fault tables in force: the shipped ones, the cluster's ConfigMaps over them, the repository's over both."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from belay.engine.documents import SHIPPED, Declared, Desired
from belay.engine.documents.fault_tables import FaultTable
from belay.engine.model.cluster import Observed
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, ObjectKey
from belay.engine.model.faults import code_key
from belay.engine.model.hardware_faults import ManualPolicy
from belay.engine.model.plan_cache import CacheKey, Memo, PlanCache
from belay.engine.wire import faultconfig
from belay.engine.wire.errors import WireError
from belay.engine.wire.faultconfig import FaultConfig, Grace, Rule

ParsedConfig = tuple[FaultConfig, tuple[WireError, ...]]
_CONFIG_MAPS: Final = (faultconfig.DEVICE, faultconfig.NODE, faultconfig.CLUSTER)
_KEYS: Final = tuple(ObjectKey("v1", "ConfigMap", namespace, name) for namespace, name in _CONFIG_MAPS)
_EMPTY: Final = FaultConfig()
_READ: Final = CacheKey("fault configuration of the cluster", Memo[ParsedConfig], limit=8)
_OVERLAID: Final = CacheKey("declarations over fault configuration", Memo[Desired], limit=4)


def tables_in_force(desired: Desired, observed: Observed, cache: PlanCache) -> Desired:
    """The declarations with the fault tables of the cluster laid under the repository's own ones."""
    config, _ = _read(observed, cache)
    if not _tables(config):
        return desired
    return cache[_OVERLAID].of(id(desired), (desired, config), lambda: _overlay(desired, config))


def manual_policy(observed: Observed, cache: PlanCache) -> ManualPolicy | None:
    """ClusterD's rule for isolating chips that fail too often; None while the cluster has none."""
    return _read(observed, cache)[0].manual


def grace(observed: Observed, cache: PlanCache) -> Grace:
    """How long each stage of a reset under a job may take (``GraceTolerance``)."""
    return _read(observed, cache)[0].grace


def diagnostics(desired: Desired, observed: Observed, cache: PlanCache) -> list[Diagnostic]:
    """Errors in the ConfigMaps, and their tables that the repository's own ones override."""
    config, problems = _read(observed, cache)
    out = [Diagnostic("error", p.object, "", 0, 0, p.field, p.message, PassCode.UNREADABLE) for p in problems]
    for plane in sorted(_tables(config)):
        own = _own(desired, plane)
        if own is not None:
            origin = own.origin
            text = f"the repository's own table of plane {plane} stays in force over the cluster's ConfigMap"
            name = f"FaultTable/{own.document.name}"
            place = (origin.file, origin.line, origin.column)
            out.append(Diagnostic("info", name, *place, "spec", text, PassCode.TABLE_OVERRIDDEN))
    return out


def _read(observed: Observed, cache: PlanCache) -> ParsedConfig:
    bodies = [observed.objects[key] for key in _KEYS if key in observed.objects]
    return cache[_READ].of("config", bodies, lambda: faultconfig.read(bodies)) if bodies else (_EMPTY, ())


def _own(desired: Desired, plane: str) -> Declared[FaultTable] | None:
    """The repository's own table of a plane."""
    for name in sorted(desired.fault_tables):
        item = desired.fault_tables[name]
        if item.document.spec.plane == plane and not item.origin.file.startswith(SHIPPED):
            return item
    return None


def _tables(config: FaultConfig) -> dict[str, faultconfig.Levels | None]:
    """The levels in the ConfigMaps, by plane; None where only rules change."""
    out: dict[str, faultconfig.Levels | None] = {
        plane: levels
        for plane, levels in (("switch", config.switch), ("node", config.node), ("public", config.public))
        if levels is not None
    }
    if config.chip is not None or config.frequency is not None:
        out["chip"] = config.chip
    return out


def _overlay(desired: Desired, config: FaultConfig) -> Desired:
    tables = dict(desired.fault_tables)
    for plane, levels in sorted(_tables(config).items()):
        shipped = desired.tables.get(plane)
        if shipped is None or _own(desired, plane) is not None:
            continue
        name = next(n for n in sorted(tables) if tables[n].document is shipped)
        spec = shipped.model_dump(mode="json", by_alias=True)
        spec = _merged_table(spec, plane, levels, config)
        tables[name] = Declared(FaultTable.model_validate(spec), tables[name].origin)
    return dataclasses.replace(desired, fault_tables=tables)


def _merged_table(
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
