"""Stories of faults (`belay inject --timeline`) in the world of memory, through the agents' own detection.

What the hardware does is written as a timeline; what NodeD and the device plugin make of it comes from
``belay.agents.node.detect``; what follows is the real planner's. The story that comes out has every change of a chip's
or node's state and every action, with its second.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

from belay.agents.drivers.surroundings import Alarm, Client, SwitchFault
from belay.agents.node import detect
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.surroundings_monitor import default_tables
from belay.engine.model.actions import kind_of
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.faults import CARD, NETWORK, level_of
from belay.engine.model.plan import Plan
from belay.engine.sandbox.play import public_message
from belay.engine.sandbox.timeline import SUB_HEALTH_CODE, SandboxEvent, parse
from belay.engine.wire import nodeinfo, publicinfo
from belay.engine.wire.gojson import go_json
from tests.golden.stories import sample_files
from tests.simworld import A2, INFER, Node, World

_PLANES = shipped_policy().rules.planes
NODE_TABLE, SWITCH_TABLE = default_tables(_PLANES["node"], _PLANES["switch"])()


def story(text: str) -> tuple[SandboxEvent, ...]:
    """A timeline from its rows."""
    return parse(f"timeline:\n{text}".encode(), "story")


@cache
def _level(kind: str, code: str) -> str:
    return level_of(shipped_policy().rules, kind, code, "")[0]


class FaultWorld(World):
    """The sample cluster, to which a story happens."""

    def __init__(self, seed: int = 0, files: dict[str, bytes] | None = None) -> None:
        self.alarms: dict[str, list[Alarm]] = {}
        self.switches: dict[str, list[SwitchFault]] = {}
        self.passing: list[tuple[str, int, str]] = []
        self.lost: dict[str, bool] = {}
        self.states: dict[str, str] = {}
        self.began = 0.0
        nodes = [Node(f"node-{i}", labels=A2) for i in range(1, 9)]
        nodes.append(Node("infer-1", chips=8, kind="Ascend310P", labels=INFER))
        super().__init__(sample_files() if files is None else files, nodes, seed=seed)

    def report(self, node: Node) -> None:
        """The node's reports, its switch's with them; a node that is silent writes none."""
        if self.lost.get(node.name):
            return
        super().report(node)
        if node.name in self.switches:
            key = ObjectKey("v1", "ConfigMap", "kube-system", f"mindx-dl-deviceinfo-{node.name}")
            body = copy.deepcopy(self.objects[key])
            info = detect.switch_info(self.switches[node.name], SWITCH_TABLE, int(self.now))
            body["data"]["SwitchInfoCfg"] = go_json(info)
            self.put(body)

    def play(self, events: Sequence[SandboxEvent], *, tick: float = 10.0, ceiling: int = 400) -> Plan:
        """Let the story happen with a pass every ``tick`` seconds at least, then go on until all is quiet."""
        self.began, self.story = self.now, []
        for event in events:
            while self.now < self.began + event.at:
                self._pass(min(tick, self.began + event.at - self.now))
            self.happen(event)
        self._pass(0.0)
        quiet, last = 0, ""
        for _ in range(ceiling):
            result = self._pass(61.0)
            here = self._fingerprint()
            quiet = quiet + 1 if not result.actions and here == last else 0
            last = here
            if quiet == 2:
                return result
        raise AssertionError(f"not quiet after {ceiling} passes: {self.story[-10:]}")

    def _pass(self, seconds: float) -> Plan:
        if seconds:
            self.pass_time(seconds)
        result = self.step()
        for node, chip, code in self.passing:
            self.nodes[node].faults.get(chip, {}).pop(code, None)
        self.passing.clear()
        self._tell(result)
        return result

    def _tell(self, result: Plan) -> None:
        at = f"[{self.now - self.began:5.0f}s]"
        now = {
            f"{c.node}/{c.chip}": f"{c.state} {c.level}" + (f" ({', '.join(c.codes)})" if c.codes else "")
            for c in result.chips
            if c.state != "healthy" or c.codes
        }
        now |= {
            n.node: f"{n.state} {n.level}" + (f" ({', '.join(n.codes)})" if n.codes else "")
            for n in result.nodes
            if n.state != "healthy"
        }
        for name in sorted({*now, *self.states}):
            if now.get(name) != self.states.get(name):
                self.story.append(f"{at} {name} is {now.get(name, 'healthy')}")
        self.states = now
        self.story += [f"{at} {kind_of(action)} {action.message}" for action in result.actions]

    def happen(self, event: SandboxEvent) -> None:
        """One event, as the simulated driver and the simulated surroundings would let it happen."""
        node = self.nodes.get(event.node)
        gone = event.assertion == "recover"
        if event.what == "pod":
            self._fail(event)
            return
        if event.what == "public":
            message = public_message(event, int(self.now * 1000))
            self.put(publicinfo.build("cluster-system", f"story-{event.value}-{event.node}", message))
            return
        assert node is not None
        if event.what in ("code", "subHealth", "drop", "hang"):
            self._code(node, event, gone)
        elif event.what == "network":
            plane = node.network.setdefault(event.chip or 0, {})
            plane.pop(event.value, None)
            if not gone:
                plane[event.value] = (int(self.now * 1000), _level(NETWORK, event.value))
        elif event.what == "ready":
            self.readiness(node, event.value)
        elif event.what == "silent":
            self.lost[node.name] = event.value
        elif event.what == "resetFails":
            node.reset_fails = event.value
        elif event.what == "ping":
            self._stands(node, "pingmesh", detect.PING_CODE, (event.chip or 0,), event.value == "lost")
        elif event.what == "storage":
            client = Client(process=not gone)
            found = detect.StorageWatch().update(node.name, {event.value: client}, node.chips, 0)
            sender, code, _ = detect.STORAGE[event.value]
            self._stands(node, sender, code, tuple(range(node.chips)), bool(found))
        elif event.what == "switch":
            rows = self.switches.setdefault(node.name, [])
            place = (event.value, event.more.get("switchChip", 0), event.more.get("switchPort", 0))
            self.switches[node.name] = [r for r in rows if (r.code, r.chip, r.port) != place]
            if not gone:
                self.switches[node.name].append(SwitchFault(*place, int(self.now * 1000)))
        elif event.what == "hardware":
            self._hardware(node, event, gone)
        self.report(node)

    def _code(self, node: Node, event: SandboxEvent, gone: bool) -> None:
        code = {"subHealth": SUB_HEALTH_CODE, "drop": "40F84E00", "hang": detect.HANG_CODE}.get(
            event.what, str(event.value).upper()
        )
        there = event.value if event.what != "code" else not gone
        codes = node.faults.setdefault(event.chip or 0, {})
        codes.pop(code, None)
        if there:
            codes[code] = (int(self.now * 1000), _level(CARD, code))
        if event.assertion == "once":
            self.passing.append((node.name, event.chip or 0, code))

    def _stands(self, node: Node, sender: str, code: str, chips: tuple[int, ...], there: bool) -> None:
        fault = detect.ActiveFault(sender, detect.fault_id(node.name, f"{code}/{chips}"), code, chips)
        now_ms = int(self.now * 1000)
        body = detect.message(node.name, sender, [(fault, "occur" if there else "recover", now_ms)], now_ms)
        self.put(publicinfo.build("cluster-system", f"{sender.lower()}-fault-{node.name}", body))

    def _hardware(self, node: Node, event: SandboxEvent, gone: bool) -> None:
        alarm = Alarm(event.more.get("device", "CPU"), event.more.get("deviceId", 1), event.value)
        rows = [row for row in self.alarms.get(node.name, []) if row != alarm] + ([] if gone else [alarm])
        self.alarms[node.name] = rows
        devices, status = detect.hardware(rows, NODE_TABLE)
        node.hardware = max((d.level for d in devices), default="", key=("", *_NODE_LEVELS).index)
        body = nodeinfo.build(node.name, devices, status, self.now)
        if devices:
            self.put(body)
        else:
            self.delete(ObjectKey("v1", "ConfigMap", "mindx-dl", f"mindx-dl-nodeinfo-{node.name}"))

    def _fail(self, event: SandboxEvent) -> None:
        namespace, _, name = event.value.partition("/")
        pod = copy.deepcopy(self.objects[ObjectKey("v1", "Pod", namespace, name)])
        code = event.more.get("exit", 1)
        pod["status"]["phase"] = "Failed"
        pod["status"]["containerStatuses"] = [
            {**status, "ready": False, "state": {"terminated": {"exitCode": code}}}
            for status in pod["status"].get("containerStatuses", [])
        ]
        self.put(pod)


_NODE_LEVELS = ("NotHandleFault", "PreSeparateFault", "SeparateFault")
