"""``volcano-scheduler.conf``: the actions of Volcano's scheduler, its gang plugin's protection, ``init-params``.

Format: Volcano, pkg/scheduler/conf/scheduler_conf.go. It enables tidal scheduling
(docs/zh/scheduling/04_usage/10_tidal_scheduling of MindCluster): action ``preempt`` or ``reclaim``, and a gang plugin
with ``enablePreemptable: false`` or ``enableReclaimable: false``, so that the action may evict parts of gangs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import yaml

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.wire import yamltext
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SCHEDULER_CONFIGMAP, SCHEDULER_KEY, SCHEDULER_NAMESPACE

CONFIG_MAP: Final = ObjectKey("v1", "ConfigMap", SCHEDULER_NAMESPACE, SCHEDULER_CONFIGMAP)
#: Longest configuration in characters.
_MAX_TEXT = 262_144


class SchedulerConf(NamedTuple):
    """``actions`` is None if the configuration names none; ``breaks_gangs`` are the actions that may evict parts of a
    gang."""

    actions: tuple[str, ...] | None = None
    breaks_gangs: frozenset[str] = frozenset()

    def runs(self, action: str) -> bool:
        """Whether the configuration names the action."""
        return self.actions is not None and action in self.actions

    def excludes(self, action: str) -> bool:
        """Whether the configuration names actions, but not this one."""
        return self.actions is not None and action not in self.actions


def of(objects: Mapping[ObjectKey, Mapping[str, Any]]) -> SchedulerConf:
    """The configuration in ``volcano-system/volcano-scheduler-configmap``; an invalid one counts as empty (the
    observer reports it).
    """
    raw = objects.get(CONFIG_MAP)
    data = raw.get("data") if raw is not None else None
    text = data.get(SCHEDULER_KEY) if isinstance(data, Mapping) else None
    return parse(text) if isinstance(text, str) else SchedulerConf()


@lru_cache(maxsize=8)
def parse(text: str) -> SchedulerConf:
    """Actions and gang switches of a configuration; fields of a wrong type are ignored."""
    try:
        body = _read(text)
    except WireError:
        return SchedulerConf()
    stated = body.get("actions")
    actions = None
    if isinstance(stated, str):
        actions = tuple(name for name in (part.strip() for part in stated.split(",")) if name)
    gangs = [plugin for plugin in _plugins(body) if plugin.get("name") == "gang"]
    switches = {"preempt": "enablePreemptable", "reclaim": "enableReclaimable"}
    free = {action for action, key in switches.items() if all(str(g.get(key)).lower() == "false" for g in gangs)}
    return SchedulerConf(actions, frozenset(free))


def arguments(text: str) -> dict[str, str]:
    """The arguments of ``init-params``, as text; empty when there are none.

    Raises:
        WireError: not YAML, or too long.
    """
    configurations = _read(text).get("configurations")
    for entry in configurations if isinstance(configurations, list) else ():
        if isinstance(entry, dict) and entry.get("name") == "init-params":
            found = entry.get("arguments")
            return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
    return {}


def _read(text: str) -> dict[str, Any]:
    where, field = f"ConfigMap/{SCHEDULER_NAMESPACE}/{SCHEDULER_CONFIGMAP}", f"data.{SCHEDULER_KEY}"
    if len(text) > _MAX_TEXT:
        raise WireError(where, field, f"is {len(text)} characters long, the limit is {_MAX_TEXT}")
    try:
        body = yamltext.load(text, yaml.CBaseLoader)
    except ValueError as error:
        raise WireError(where, field, f"is not valid YAML: {error}") from error
    return body if isinstance(body, dict) else {}


def _plugins(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tiers = body.get("tiers")
    found: list[Mapping[str, Any]] = []
    for tier in tiers if isinstance(tiers, list) else ():
        plugins = tier.get("plugins") if isinstance(tier, dict) else None
        found += [plugin for plugin in plugins or () if isinstance(plugin, dict)] if isinstance(plugins, list) else []
    return found
