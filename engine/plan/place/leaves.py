"""Which node hangs at which leaf switch, and which gangs run under which: counted once a pass, then kept up to date."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from engine.model.switches import Switches
from engine.plan.place.bench import Bench
from engine.wire import switches as wire

#: Stands for nodes under no switch.
NOWHERE = -1


class Board:
    """``place``: (switch id, position) of nodes under a switch, ``under`` the nodes of each switch by position,
    ``spread`` the switches of every gang with chips (``NOWHERE`` for nodes under none)."""

    def __init__(self, bench: Bench, switches: Switches) -> None:
        self.spread: dict[str, Counter[int]] = {}
        self._bench = bench
        self._mark = 0
        self._counted: dict[str, list[str]] = {}
        self._states: dict[int, tuple[int, bool]] = {}
        by_address: dict[str, str] = {}
        for name, view in bench.views.items():
            if view.node.internal_ip:
                by_address.setdefault(view.node.internal_ip, name)
        self.place: dict[str, tuple[int, int]] = {
            by_address[server.address]: (switch.id, server.slice)
            for switch in switches.switches
            for server in switch.servers
            if server.address in by_address
        }
        self.under: dict[int, list[str]] = {}
        for name, (switch, _) in self.place.items():
            self.under.setdefault(switch, []).append(name)
        _, self._mark = bench.touched(0)
        self._count(bench.views)

    def refresh(self) -> None:
        """Counts again the nodes that were touched since the last look."""
        names, self._mark = self._bench.touched(self._mark)
        self._count(names)

    def state(self, switch: int, leaving: Collection[str]) -> tuple[int, bool]:
        """(kind, unhealthy) that running pods made of a switch; pods in ``leaving`` do not count."""
        if leaving:
            return wire.state(self._notes(switch, leaving))
        found = self._states.get(switch)
        if found is None:
            found = self._states[switch] = wire.state(self._notes(switch, leaving))
        return found

    def _notes(self, switch: int, leaving: Collection[str]) -> list[Mapping[str, str]]:
        """What the pods with chips under a switch were told, in the order of their names."""
        pods = [pod for name in self.under.get(switch, ()) for pod in self._bench.views[name].pods if pod.count]
        pods.sort(key=lambda pod: pod.key)
        return [self._bench.given.get(pod.key) or pod.annotations for pod in pods if pod.key not in leaving]

    def _count(self, names: Iterable[str]) -> None:
        gang_of = self._bench.scope.gang_of
        for name in names:
            switch = self.place.get(name, (NOWHERE, 0))[0]
            self._states.pop(switch, None)
            for gang in self._counted.get(name, ()):
                at = self.spread[gang]
                at[switch] -= 1
                if not at[switch]:
                    del at[switch]
            found = [gang_of.get(pod.key, "") for pod in self._bench.views[name].pods if pod.count]
            self._counted[name] = [gang for gang in found if gang]
            for gang in self._counted[name]:
                self.spread.setdefault(gang, Counter())[switch] += 1
