"""The cluster's own fault tables, read by the agent itself: in force while no engine has given it a policy.

``kube-system/mindx-dl-fault-config`` (what the device plugin reads) and ``mindx-dl/mindx-dl-node-fault-config`` (NodeD)
replace parts of the shipped tables; a part that cannot be used leaves the shipped one in force, and a ConfigMap that is
gone leaves all of them. They are watched, so a change counts at once and ``PollInterval`` has nothing to say. The last
ones are kept on disk, for an agent that restarts while the API server is away.
Sources: component/ascend-device-plugin/pkg/server/manager.go (loadFaultCode), component/noded/pkg/control.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from belay.agents.common.client import ApiServer
from belay.agents.common.log import Log
from belay.agents.node.policy import DiskCache, FaultLevels
from belay.agents.node.settings import MAX_TEXT
from belay.agents.node.state import NodeState
from belay.engine.model.faults import CodeRules, Duration, Frequency, code_key
from belay.engine.model.levels import CHIP_LEVELS, NODE_LEVELS, SwitchTableLevel
from belay.engine.wire import faultconfig
from belay.engine.wire.errors import WireError
from belay.engine.wire.faultconfig import FaultConfig, Levels, Rule
from belay.engine.wire.policy import NodePolicy

_RULE: Final = faultconfig.DEVICE[1]
_log = Log("agent")


class ClusterTables:
    """The fault tables of one cluster over the shipped ones; ``policy`` is what follows from both.

    ``wake`` is called after every change.
    """

    def __init__(
        self, base: NodePolicy, cluster: ApiServer, cache: DiskCache, state: NodeState, wake: Callable[[], None]
    ) -> None:
        self._base, self._cluster, self._cache, self._state, self._wake = base, cluster, cache, state, wake
        self._bodies: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.policy = base

    def remember(self) -> None:
        """Apply the tables kept on disk."""
        for place in (faultconfig.DEVICE, faultconfig.NODE):
            try:
                kept = self._cache.get(place[1])
            except WireError as error:
                self._state.problems[place[1]] = f"{place[1]} kept on disk is ignored: {error}"[:MAX_TEXT]
                continue
            if kept is not None:
                self._bodies[place] = kept
        self._combine()

    def follow(self, group: asyncio.TaskGroup) -> None:
        """Start to watch both ConfigMaps in a task group."""
        for place in (faultconfig.DEVICE, faultconfig.NODE):
            group.create_task(self._follow(place))

    def apply(self, judge: FaultLevels) -> None:
        """Put the tables in force."""
        if judge.policy != self.policy:
            judge.policy = self.policy

    async def _follow(self, place: tuple[str, str]) -> None:
        async for body in self._cluster.config_map(*place):
            if body is None:
                self._bodies.pop(place, None)
            else:
                self._bodies[place] = body
            self._keep(place[1], body)
            self._combine()
            self._wake()

    def _combine(self) -> None:
        config, problems = faultconfig.read([self._bodies[place] for place in sorted(self._bodies)])
        rules = rules_in_force(self._base.rules, config)
        told = self._state.problems.get("fault tables")
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            text = f"{problems[0]}{more}"[:MAX_TEXT]
            self._state.problems["fault tables"] = text
            if text != told:
                _log.warning("fault tables of the cluster have errors", node=self._state.node, error=text)
        else:
            self._state.problems.pop("fault tables", None)
        if rules != self.policy.rules:
            self.policy = msgspec.structs.replace(self._base, rules=rules)
            _log.info("fault tables of the cluster have changed", node=self._state.node, codes=len(rules.table))

    def _keep(self, name: str, body: Mapping[str, Any] | None) -> None:
        try:
            if body is None:
                self._cache.drop(name)
            else:
                self._cache.put(name, body)
            self._state.problems.pop(f"{name} copy", None)
        except OSError as error:
            self._state.problems[f"{name} copy"] = f"{name} cannot be kept on disk: {error.strerror}"


def rules_in_force(shipped: CodeRules, config: FaultConfig) -> CodeRules:
    """The shipped rules with each part replaced that the cluster's ConfigMaps hold."""
    changes: dict[str, Any] = {}
    if config.chip is not None:
        changes["table"] = _levels(config.chip, [level.value for level in CHIP_LEVELS], code_key)
    if config.frequency is not None:
        changes["frequency"] = {
            code_key(code): _frequency(rule) for rule in reversed(config.frequency) for code in rule.codes
        }
    if config.duration is not None:
        changes["duration"] = {
            code_key(code): Duration(rule.timeout * 1000, rule.recover * 1000, rule.level, _RULE)
            for rule in reversed(config.duration)
            for code in rule.codes
        }
    planes = dict(shipped.planes)
    if config.switch is not None:
        planes["switch"] = _levels(config.switch, [level.value for level in SwitchTableLevel], str)
    if config.node is not None:
        planes["node"] = _levels(config.node, list(NODE_LEVELS), str)
    if planes != shipped.planes:
        changes["planes"] = planes
    return msgspec.structs.replace(shipped, **changes)


def _levels(levels: Levels, order: list[str], key: Callable[[str], str]) -> dict[str, str]:
    """Codes by level, from low to high: a code in two lists has the higher one."""
    return {key(code): level for level in order for code in levels.get(level, ())}


def _frequency(rule: Rule) -> Frequency:
    return Frequency(rule.times, rule.window * 1000, rule.level, (rule.release or 0) * 1000, _RULE)
