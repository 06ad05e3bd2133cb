"""Faults in the middle of a migration: at each step of docs/migrating.md, over nodes with MindCluster's device plugin.

Random histories. Wherever the device plugin reports, the engine never leaves fewer free chips than that report alone,
which is what Volcano would see; where an agent has taken over, every chip is back once its faults are over.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from belay.engine.model.actions import EvictPod, IsolateChip, ReleaseChip, ResetChips
from belay.engine.model.chip_masks import ids_of, mask_of
from belay.engine.model.cluster import AgentReport, DeviceReport, Observed, Orders, Pod
from belay.engine.model.history import History
from belay.engine.model.levels import IN_SERVICE, MANUALLY_SEPARATE, PRE_SEPARATE, RESETTABLE, worst
from belay.engine.wire import deviceinfo
from tests.steps import Steps
from tests.worlds import NOW, agent, decide, desired, node, observed, orders, pod, reset_order

CHIPS: Final = range(8)
LINK: Final = "81078603"
REPEATED: Final = "80C98008"
#: Code → level, as the shipped table has them; the link's rises after 20 s, for 60 s beyond its end.
LEVELS: Final = {
    "80C98001": "RestartNPU", "8C03A000": "RestartNPU", "80C98002": "RestartBusiness", REPEATED: "RestartRequest",
    "80E3A201": "SeparateNPU", "80CD8003": "PreSeparateNPU", "80E21007": "NotHandleFault", LINK: "NotHandleFault",
}  # fmt: skip
COMPONENTS: Final = {
    "volcano": ("volcano-system", {"app": "volcano-scheduler"}),
    "clusterd": ("mindx-dl", {"app": "clusterd"}),
}
#: Step of docs/migrating.md → components of MindCluster that still run, and whether node "moving" has the agent: never
#: (``plugin``), all the time, or until the middle of the history, when the device plugin comes back.
STEPS: Final = {
    "before": (("volcano", "clusterd"), "plugin"),
    "1 scheduling": (("clusterd",), "plugin"),
    "2 clusterd": ((), "plugin"),
    "3 one node": ((), "agent"),
    "3 and back": ((), "back"),
}


@dataclass
class Server:
    """One node: its chips' codes, and what MindCluster's device plugin (or the agent in its place) reports of them."""

    name: str
    own_resets: bool = True
    labelled: bool = True
    codes: dict[tuple[int, str], float] = field(default_factory=dict)
    ended: dict[tuple[int, str], float] = field(default_factory=dict)
    times: dict[tuple[int, str], int] = field(default_factory=dict)
    manual: set[int] = field(default_factory=set)
    idle_since: float = NOW
    resetting_until: float = 0.0
    done: dict[int, tuple[int, str]] = field(default_factory=dict)
    silent_since: float = 0.0

    def raise_code(self, chip: int, code: str, now: float) -> None:
        if (chip, code) in self.codes:
            return
        self.codes[chip, code] = now
        if code == REPEATED:
            self.times[chip, code] = self.times.get((chip, code), 0) + 1
            if self.times[chip, code] >= 2:
                self.manual.add(chip)
                self.times[chip, code] = 0

    def heal(self, chip: int, code: str, now: float) -> None:
        since = self.codes.pop((chip, code), None)
        if since is not None and code == LINK and now - since > 20:
            self.ended[chip, code] = now

    def settle(self, now: float, used: int) -> None:
        """The plugin's own reset: a minute after all chips are unused and one is ill, for half a minute."""
        self.ended = {key: at for key, at in self.ended.items() if now - at <= 60 and key not in self.codes}
        if used or not self.own_resets:
            self.idle_since = now
        ill = any(LEVELS[code] in RESETTABLE for _, code in self.codes)
        if ill and now - self.idle_since > 60 and not self.resetting_until:
            self.resetting_until = now + 30
        if self.resetting_until and now >= self.resetting_until:
            self.resetting_until, self.idle_since = 0.0, now
            for chip, code in list(self.codes):
                self.heal(chip, code, now)

    def shown(self, chip: int, now: float, network: bool) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for (owner, code), since in {**self.ended, **self.codes}.items():
            if owner != chip or (code == LINK) != network:
                continue
            lasting = code == LINK and ((owner, code) in self.ended or now - since > 20)
            level = PRE_SEPARATE if lasting else LEVELS[code]
            found[code] = (round(since * 1000), level)
        if chip in self.manual and not network:
            since = found.get(REPEATED, (round(now * 1000), ""))[0]
            found[REPEATED] = (since, MANUALLY_SEPARATE)
        return found

    def report(self, now: float, used: int) -> DeviceReport:
        out, net, elements = [], [], []
        for chip in CHIPS:
            for network, kind in ((False, "CardUnhealthy"), (True, "CardNetworkUnhealthy")):
                shown = self.shown(chip, now, network)
                level = worst(*(level for _, level in shown.values()))
                if shown:
                    elements.append(deviceinfo.fault_element(kind, f"Ascend910-{chip}", shown, level))
                spared = level in IN_SERVICE or (level == PRE_SEPARATE and used >> chip & 1)
                if network:
                    net += [chip] if level == PRE_SEPARATE else []
                else:
                    out += [] if spared else [chip]
        recovering = list(CHIPS) if self.resetting_until else []
        free = [chip for chip in CHIPS if chip not in out and chip not in recovering and not used >> chip & 1]
        names = {"": free, "-Unhealthy": out, "-NetworkUnhealthy": net, "-Recovering": recovering}
        lists = {
            f"huawei.com/Ascend910{key}": ",".join(f"Ascend910-{c}" for c in chips) for key, chips in names.items()
        }
        lists["huawei.com/Ascend910-Fault"] = json.dumps(elements)
        manual = [f"Ascend910-{chip}" for chip in sorted(self.manual)]
        return deviceinfo.parse(deviceinfo.build(self.name, device_list=lists, update_time=int(now), manual=manual))


class MigrationHistory:
    """One random history of a step; ``run`` gives each moment as (now, server, used chips, what the engine decided)."""

    def __init__(self, step: str, seed: int) -> None:
        self.random = random.Random(f"{step}/{seed}")
        self.components, self.who = STEPS[step]
        self.servers = [Server("staying", labelled=self.random.random() < 0.5), Server("moving")]
        self.pods: dict[str, Pod] = {}
        self.standing: dict[str, Orders] = {}
        self.memory = History()
        self.declared = desired()

    def agent_on(self, server: Server, now: float) -> bool:
        return server.name == "moving" and (self.who == "agent" or (self.who == "back" and now < NOW + 300))

    def run(self) -> Iterator[tuple[float, Server, int, Steps]]:
        now = NOW
        while now < NOW + 800:
            now += self.random.choice((1, 2, 5, 17))
            if now < NOW + 500:
                self._happen(now)
            else:
                for server in self.servers:
                    for chip, code in list(server.codes):
                        server.heal(chip, code, now)
            for server in self.servers:
                server.own_resets = not self.agent_on(server, now)
                server.settle(now, self._used(server))
            scope = decide(self._observed(now), self.declared, now=now)
            self.memory = scope.memory.frozen("")
            for server in self.servers:
                yield now, server, self._used(server), scope
            self._act(scope, now)

    def _happen(self, now: float) -> None:
        server, chip = self.random.choice(self.servers), self.random.choice(CHIPS)
        match self.random.randrange(8):
            case 0 | 1:
                server.raise_code(chip, self.random.choice(sorted(LEVELS)), now)
            case 2 | 3 | 4 if server.codes:
                server.heal(*self.random.choice(sorted(server.codes)), now)
            case 5:
                server.manual.clear()
            case 6 if not self._used(server) >> chip & 1 and not server.resetting_until:
                name = f"p{len(self.pods)}-{round(now)}"
                one = pod(name, node=server.name, chips=[chip], created=now)
                self.pods[one.key] = one
            case 7 if self.pods:
                self.pods.pop(self.random.choice(sorted(self.pods)))

    def _used(self, server: Server) -> int:
        return mask_of([int(p.chips[0].rpartition("-")[2]) for p in self.pods.values() if p.node == server.name])

    def _observed(self, now: float) -> Observed:
        plugins = {
            name: pod(name, namespace=space, node="staying", labels=labels, count=0)
            for name, (space, labels) in COMPONENTS.items()
            if name in self.components
        }
        agents: list[AgentReport] = []
        for server in self.servers:
            if self.agent_on(server, now):
                server.silent_since = now
                agents.append(agent(server.name, done=server.done, orders_seen=9999, at=now))
                continue
            if server.silent_since:
                agents.append(agent(server.name, done=server.done, at=server.silent_since))
            if server.labelled:
                labels = {"name": "ascend-device-plugin-ds"}
                one = pod(f"dp-{server.name}", namespace="kube-system", node=server.name, labels=labels, count=0)
                plugins[one.key] = one
        return observed(
            [node(s.name) for s in self.servers],
            [s.report(now, self._used(s)) for s in self.servers],
            [*self.pods.values(), *plugins.values()],
            agents=agents,
            standing=self.standing.values(),
            history=self.memory,
        )

    def _act(self, scope: Steps, now: float) -> None:
        """Pods go, orders are written; an agent answers a reset at once."""
        for action in scope.actions:
            match action:
                case EvictPod(namespace=space, pod=name):
                    self.pods.pop(f"{space}/{name}", None)
                case ResetChips(node=name, chips=chips, epoch=epoch):
                    group = [int(chip.rpartition("-")[2]) for chip in chips]
                    self._reset(next(s for s in self.servers if s.name == name), group, epoch, now)
                case IsolateChip(node=name) | ReleaseChip(node=name):
                    old = self.standing.get(name)
                    isolate = dict(old.isolate) if old else {}
                    for chip in action.chips:
                        index = int(chip.rpartition("-")[2])
                        if isinstance(action, IsolateChip):
                            isolate[index] = action.level
                        else:
                            isolate.pop(index, None)
                    self.standing[name] = orders(name, isolate=isolate, resets=old.resets if old else {}, issued=now)

    def _reset(self, server: Server, group: list[int], epoch: int, now: float) -> None:
        assert self.agent_on(server, now), "a reset is ordered where no agent is"
        old = self.standing.get(server.name)
        resets = (dict(old.resets) if old else {}) | {chip: reset_order(epoch, group) for chip in group}
        self.standing[server.name] = orders(
            server.name, isolate=dict(old.isolate) if old else {}, resets=resets, issued=now
        )
        if self._used(server) & mask_of(group):
            return
        for chip, code in list(server.codes):
            if chip in group and code != LINK and self.random.random() < 0.8:  # a reset mends no link
                server.heal(chip, code, now)
        server.done |= dict.fromkeys(group, (epoch, "ok"))


def history(seed: int) -> int:
    """Play the history of a seed, whose step is the seed's too; returns how many moments it had.

    Raises:
        AssertionError: chips are kept that the device plugin calls free, or are not free once all is over.
    """
    move = MigrationHistory(list(STEPS)[seed % len(STEPS)], seed)
    moments = 0
    for now, server, used, scope in move.run():
        moments += 1
        view, report = scope.nodes[server.name], server.report(now, used)
        if move.agent_on(server, now):
            continue
        alone = mask_of(list(CHIPS)) & ~(report.unhealthy | report.recovering | used)
        lost = ids_of(alone & ~view.free)
        assert not lost, f"{now - NOW:.0f} s: chips {lost} of {server.name}, {view.chip_state}, {view.chip_codes}"
        # a link that is down takes no new distributed job from the start, before its 20 s have passed
        down = mask_of([chip for chip, code in server.codes if code == LINK])
        held = ids_of((view.network or 0) & ~(report.network_unhealthy or 0) & ~down)
        assert not held, f"{now - NOW:.0f} s: the network of {held} of {server.name} is held"

    for server in move.servers:
        view = scope.nodes[server.name]
        assert view.free | view.used | mask_of(sorted(server.manual)) == 0xFF, f"at the end: {server.name} {view}"
    return moments
