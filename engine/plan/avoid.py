"""Which nodes a job's new pods avoid after faults: sub-healthy ones by its strategy, and where it failed before.

The refusal's wording is that of component/ascend-for-volcano/plugin/node.go.
"""

from __future__ import annotations

from typing import Final

from engine.model.levels import SUB_HEALTH
from engine.plan import victims
from engine.plan.scope import NodeView, Scope

SUB_HEALTHY_PENALTY: Final = -1
FAULT_PENALTY: Final = -64


def avoid(scope: Scope) -> None:
    """Fill ``scope.refused`` and ``scope.penalty`` for the gangs that have pods to place."""
    weak = {name: _sub_health(view) for name, view in scope.nodes.items() if view.chip_level or view.switch_sub_healthy}
    weak = {name: found for name, found in weak.items() if any(found)}
    if not weak and not any(m.fault_nodes for m in scope.memory.jobs.values()) and not scope.reschedules:
        return
    failed_now: dict[str, set[str]] = {}
    for change in scope.reschedules.values():
        failed_now.setdefault(change.gang, set()).update(change.fault_nodes)
    for key in sorted(scope.gangs):
        gang = scope.gangs[key]
        strategy = victims.strategy(gang)
        for name, (card, switch) in weak.items():
            if strategy == "ignore":
                _lower(scope, key, name, SUB_HEALTHY_PENALTY)
                continue
            scope.refused.setdefault(key, {})[name] = (
                f"NodePredicate failed, cardSubHealthy={str(card).lower()}andswitchSubHealthy={str(switch).lower()}, "
                f"but sub-healthy strategy is {strategy}"
            )
        for name in sorted({*victims.memory_of(scope, gang).fault_nodes, *failed_now.get(key, ())}):
            if name in scope.nodes:
                _lower(scope, key, name, FAULT_PENALTY)


def _lower(scope: Scope, gang: str, node: str, by: int) -> None:
    lowered = scope.penalty.setdefault(gang, {})
    lowered[node] = lowered.get(node, 0) + by


def _sub_health(view: NodeView) -> tuple[bool, bool]:
    """Whether a chip of the node is sub-healthy, and whether its switch is."""
    card = bool(view.sub_healthy) or any(level == SUB_HEALTH for level in view.chip_level.values())
    return card and view.fresh, view.switch_sub_healthy
