"""The leaf switch of every node, and the gangs that run under every switch: counted once a pass, then kept up to
date. A gang whose resource claims are allocated there counts before its pods are bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from belay.engine.model.cluster import Pod
from belay.engine.model.switches import Switches
from belay.engine.plan.node_view import NodeView
from belay.engine.wire import switches as wire

#: Stands for nodes under no switch.
NOWHERE = -1


class SwitchOccupancy:
    """The switches of a pass.

    ``position_of``: (switch id, position) of each node under a switch; ``nodes_of``: the nodes of each switch by
    position; ``switches_of``: pods per switch of every gang with chips (``NOWHERE`` for nodes under none).

    Args:
        views: the nodes; their pods change while a pass places.
        gang_of: the gang's key of each pod's key.
        pod_annotations: annotations that pods placed in this pass get, by pod key.
        changed_nodes: the nodes that changed since a mark, and the next mark; the first mark is 0.
        promised: pods that wait for their binding to a node, with the annotations that they get there, by node.
    """

    def __init__(
        self,
        views: Mapping[str, NodeView],
        switches: Switches,
        gang_of: Mapping[str, str],
        pod_annotations: Mapping[str, Mapping[str, str]],
        changed_nodes: Callable[[int], tuple[list[str], int]],
        promised: Mapping[str, list[tuple[Pod, Mapping[str, str]]]],
    ) -> None:
        self.switches_of: dict[str, Counter[int]] = {}
        self._views = views
        self._gang_of = gang_of
        self._pod_annotations = pod_annotations
        self._changed_nodes = changed_nodes
        self._promised = promised
        self._mark = 0
        self._counted: dict[str, list[str]] = {}
        self._states: dict[int, tuple[int, bool]] = {}
        by_address: dict[str, str] = {}
        for name, view in views.items():
            if view.node.internal_ip:
                by_address.setdefault(view.node.internal_ip, name)
        self.position_of: dict[str, tuple[int, int]] = {
            by_address[server.address]: (switch.id, server.slice)
            for switch in switches.switches
            for server in switch.servers
            if server.address in by_address
        }
        self.nodes_of: dict[int, list[str]] = {}
        for name, (switch, _) in self.position_of.items():
            self.nodes_of.setdefault(switch, []).append(name)
        _, self._mark = changed_nodes(0)
        self._count(views)

    def refresh(self) -> None:
        """Count the nodes that changed since the last call again."""
        names, self._mark = self._changed_nodes(self._mark)
        self._count(names)

    def state(self, switch: int, without: Collection[str]) -> tuple[int, bool]:
        """(kind, unhealthy) of a switch by its pods; those in ``without`` do not count."""
        if without:
            return wire.state(self._annotations(switch, without))
        found = self._states.get(switch)
        if found is None:
            found = self._states[switch] = wire.state(self._annotations(switch, without))
        return found

    def _annotations(self, switch: int, without: Collection[str]) -> list[Mapping[str, str]]:
        """The annotations of the pods with chips under a switch, sorted by pod key."""
        found: dict[str, Mapping[str, str]] = {}
        for name in self.nodes_of.get(switch, ()):
            found.update((pod.key, notes) for pod, notes in self._promised.get(name, ()))
            for pod in self._views[name].pods:
                if pod.count:
                    found[pod.key] = self._pod_annotations.get(pod.key) or pod.annotations
        return [found[key] for key in sorted(found) if key not in without]

    def _count(self, names: Iterable[str]) -> None:
        for name in names:
            switch = self.position_of.get(name, (NOWHERE, 0))[0]
            self._states.pop(switch, None)
            for gang in self._counted.get(name, ()):
                at = self.switches_of[gang]
                at[switch] -= 1
                if not at[switch]:
                    del at[switch]
            pods = {pod.key for pod in self._views[name].pods if pod.count}
            pods.update(pod.key for pod, _ in self._promised.get(name, ()))
            self._counted[name] = [gang for key in sorted(pods) if (gang := self._gang_of.get(key, ""))]
            for gang in self._counted[name]:
                self.switches_of.setdefault(gang, Counter())[switch] += 1
