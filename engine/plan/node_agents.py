"""Who acts on a node: Belay's agent, or MindCluster's device plugin that is still there (docs/migrating.md).

An order is for an agent. Where none lives the device plugin resets by its own rules and shows it in its report
(``-Recovering``), so Belay orders no reset there and keeps no chip for one.
"""

from __future__ import annotations

from typing import Final

from belay.engine.model.cluster import AgentReport
from belay.engine.plan.facts import Facts
from belay.engine.plan.node_view import NodeView

#: An agent whose report is older is silent: three heartbeats.
AGENT_STALE_MS: Final = 180_000
_PLUGIN_NAMESPACE: Final = "kube-system"
_PLUGIN_LABEL: Final = ("name", "ascend-device-plugin-ds")


def taking_orders(facts: Facts, view: NodeView) -> AgentReport | None:
    """The living agent that carries out the node's orders; None if there is none."""
    role = _device_role(facts)
    agent = facts.observed.agents.get(view.node.name)
    if role == "off" or agent is None or _silent(facts, agent):
        return None

    # Never do two reset the chips of one node: as long as the device plugin is there, the decision is its own.
    return agent if role == "on" or not _plugin_runs(view) else None


def has_left(facts: Facts, view: NodeView) -> bool:
    """Whether no agent can still carry out an order that stands: it was never there, or another reports in its place.

    An agent that is merely silent may be carrying it out.
    """
    agent = facts.observed.agents.get(view.node.name)
    if agent is None or _device_role(facts) == "off":
        return True
    if not _silent(facts, agent):
        return False
    # The agent writes both reports, so a device report that goes on without it is another's.
    replaced = view.report is not None and view.report.update_time * 1000 > agent.time_ms + AGENT_STALE_MS
    return replaced or _plugin_runs(view)


def _device_role(facts: Facts) -> str:
    return "on" if facts.desired.every_role else facts.desired.settings.roles.device_report


def _silent(facts: Facts, agent: AgentReport) -> bool:
    return facts.now_ms - agent.time_ms > AGENT_STALE_MS


def _plugin_runs(view: NodeView) -> bool:
    """Whether a pod of MindCluster's device plugin runs on the node."""
    key, value = _PLUGIN_LABEL
    return any(
        pod.namespace == _PLUGIN_NAMESPACE and pod.phase == "Running" and pod.labels.get(key) == value
        for pod in view.pods
    )
