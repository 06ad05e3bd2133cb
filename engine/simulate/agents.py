"""The agents of simulated nodes: each reads its orders, resets and partitions chips, resets in place, and reports."""

from __future__ import annotations

import random
from collections.abc import Mapping

from belay.engine.model.cluster import ResetOrder
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.simulate.objects import SimulatedObjects
from belay.engine.simulate.server import SimulatedServer
from belay.engine.wire import orders, resetinfo


class Agents(SimulatedObjects):
    """The objects of a cluster, with an agent on every server.

    ``report_every``: age in seconds below which an unchanged report is not written again.
    ``deaf``: training managers ignore their reset ConfigMap.
    """

    def __init__(self, now: float, *, seed: int = 0, report_every: float = 0.0) -> None:
        super().__init__(now)
        self.random = random.Random(seed)
        self.report_every = report_every
        self.deaf = False

    @property
    def vnpu_suffixes(self) -> Mapping[str, str]:
        """The ends of the resource names of vNPUs, by template; none without documents."""
        return {}

    def _agents(self) -> None:
        names_in_order = list(self.nodes)
        self.random.shuffle(names_in_order)
        for name in names_in_order:
            node = self.nodes[name]
            if not node.silent:
                self.agent(node)

    def agent(self, node: SimulatedServer) -> None:
        """The node's agent reads its orders if they changed."""
        standing = self.observer.orders(node.name)
        if standing is None:
            return
        if self.report_every and node.orders_seen == standing.generation:
            return
        node.orders_seen = standing.generation
        if int(self.now * 1000) <= standing.not_after_ms:
            for chip, order in sorted(standing.resets.items()):
                if order.epoch > node.done.get(chip, 0):
                    self.reset(node, order)
            if standing.vnpu_epoch > node.vnpu_done:
                node.partition(standing.vnpu_epoch, standing.vnpu_layout)
                self._offer(node)
        self.report(node)

    def _offer(self, node: SimulatedServer) -> None:
        """The device plugin offers the vNPUs and the chips without any, and kubelet counts them in the Node."""
        live = self.objects.get(ObjectKey("v1", "Node", "", node.name))
        if live is None:
            return
        counts = node.devices(self.vnpu_suffixes)
        status = live.get("status") or {}
        changed = {}
        for part in ("capacity", "allocatable"):
            known = status.get(part) or {}
            # resources of vNPUs that are gone stay at zero, as kubelet leaves them
            gone = {name: "0" for name in known if name.startswith(f"{node.resource}-")}
            changed[part] = {**known, **gone, **{name: str(count) for name, count in counts.items()}}
        self.put({**live, "status": {**status, **changed}})

    def reset(self, node: SimulatedServer, order: ResetOrder) -> None:
        """The agent carries out one reset order."""
        taken = self.owners(node.name)
        if order.online is not None:
            self._heal_under(node, order, taken)
            return
        node.reset(order, [c for c in order.group if node.device_name(c) in taken], self.now)

    def _heal_under(self, node: SimulatedServer, order: ResetOrder, taken: Mapping[str, str]) -> None:
        """An in-place reset: the job's managers stop the processes first, then the chips are reset."""
        assert order.online is not None
        if self.now * 1000 < order.not_before_ms:
            return
        names = [node.device_name(chip) for chip in order.group]
        users = {taken[name] for name in names if name in taken}
        namespace, _, name = order.online.pod.partition("/")
        pod = self.objects.get(ObjectKey("v1", "Pod", namespace, name))
        if pod is None or pod["metadata"].get("uid") != order.online.uid or len(users) > 1:
            for chip in order.group:
                node.done[chip], node.results[chip] = order.epoch, "refused: in use by others"
            return
        if not self._stopped(namespace):
            for chip in order.group:
                node.done[chip], node.results[chip] = order.epoch, "failed: 8 processes did not end in 60 s"
            return
        node.reset(order, (), self.now)

    def _stopped(self, namespace: str) -> bool:
        """Whether a job of the namespace has an order to stop ranks, and managers that follow it."""
        return not self.deaf and any(
            key.namespace == namespace
            and key.name.startswith(resetinfo.PREFIX)
            and '"Status":"unrecovered"' in str((obj.get("data") or {}).get(resetinfo.RESET_KEY))
            for key, obj in self.objects.items()
            if key.kind == "ConfigMap"
        )

    def report(self, node: SimulatedServer) -> None:
        """The node writes its device-info and its agent's report."""
        taken = self.owners(node.name)
        node.reported = self.now
        self.put(node.device_report(taken, self.now))
        body = node.agent_report(taken, self.now)
        self.put(orders.build_report(body, node.prefix, {"name": "simulated"}))
