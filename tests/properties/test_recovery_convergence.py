"""From any faulty world, with nodes that obey their orders, passes come to rest and nothing is reset too often."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import EvictPod, IsolateChip, ReleaseChip, ResetChips
from belay.engine.model.cluster import ChipFault, Observed, Orders, Pod, ResetOrder
from belay.engine.model.history import History
from belay.engine.model.levels import IN_SERVICE, PRE_SEPARATE, RESETTABLE
from tests.steps import Steps
from tests.worlds import NOW, agent, decide, fault, node, observed, pod, report

LEVELS = ("NotHandleFault", "SubHealthFault", "RestartRequest", "RestartNPU", "PreSeparateNPU", "SeparateNPU")
STEP = 30.0


class Cluster:
    """Nodes whose agents do as ordered; ``stubborn`` faults survive every reset."""

    def __init__(self, faults: dict[str, list[ChipFault]], pods: list[Pod], stubborn: bool) -> None:
        self.faults, self.pods, self.stubborn = faults, {p.key: p for p in pods}, stubborn
        self.names = sorted(faults)
        self.orders: dict[str, Orders] = {}
        self.done: dict[str, dict[int, tuple[int, str]]] = {}
        self.history = History()
        self.resets: list[tuple[float, str, int]] = []

    def snapshot(self, now: float) -> Observed:
        """What a controller would see now."""
        used = {n: {c for p in self.pods.values() if p.node == n for c in map(_chip, p.chips)} for n in self.names}
        reports = []
        for name in self.names:
            out = {
                f.chip
                for f in self.faults[name]
                if f.level not in IN_SERVICE and not (f.level == PRE_SEPARATE and f.chip in used[name])
            }
            reports.append(report(name, faults=self.faults[name], unhealthy=out, update_time=now - 1))
        return observed(
            [node(n) for n in self.names],
            reports,
            self.pods.values(),
            agents=[agent(n, done=self.done.get(n), orders_seen=99, at=now - 2) for n in self.names],
            standing=self.orders.values(),
            history=self.history,
        )

    def obey(self, scope: Steps, now: float) -> None:
        """Carry the plan out, then let the agents run their orders."""
        self.history = scope.memory.frozen("")
        for action in scope.actions:
            if isinstance(action, EvictPod):
                del self.pods[f"{action.namespace}/{action.pod}"]
            elif isinstance(action, IsolateChip | ReleaseChip):
                self._isolate(action, now)
            elif isinstance(action, ResetChips):
                self._reset(action, now)

    def _isolate(self, action: IsolateChip | ReleaseChip, now: float) -> None:
        before = self.orders.get(action.node) or _none(action.node)
        isolate = dict(before.isolate)
        for chip in map(_chip, action.chips):
            if isinstance(action, IsolateChip):
                isolate[chip] = action.level
            else:
                del isolate[chip]
        self.orders[action.node] = msgspec.structs.replace(before, isolate=isolate, generation=before.generation + 1)

    def _reset(self, action: ResetChips, now: float) -> None:
        chips = tuple(map(_chip, action.chips))
        held = {c for p in self.pods.values() if p.node == action.node for c in map(_chip, p.chips)}
        assert not held & set(chips), "a chip in use is reset"
        rows = self.done.setdefault(action.node, {})
        assert all(action.epoch > rows.get(c, (0, ""))[0] for c in chips), "an epoch is used twice"
        before = self.orders.get(action.node) or _none(action.node)
        resets = dict(before.resets) | dict.fromkeys(chips, ResetOrder(action.epoch, chips, action.reason, 0))
        self.orders[action.node] = msgspec.structs.replace(
            before, resets=resets, generation=before.generation + 1, issued_ms=int(now * 1000)
        )
        rows |= dict.fromkeys(chips, (action.epoch, "failed: boot" if self.stubborn else "ok"))
        self.resets.append((now, action.node, action.epoch))
        if not self.stubborn:
            self.faults[action.node] = [f for f in self.faults[action.node] if f.level not in RESETTABLE]


def _chip(name: str) -> int:
    return int(name.rpartition("-")[2])


def _none(name: str) -> Orders:
    return Orders(name, "1", 0, "", "", 0, 0, {}, {}, 0, {})


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Three nodes with up to two faulty chips each, and jobs on some of the chips."""
    faults, pods = {}, []
    for i in range(3):
        name = f"n{i}"
        chips = draw(st.lists(st.integers(0, 7), max_size=2, unique=True))
        faults[name] = [fault(c, f"ABCD000{c}", draw(st.sampled_from(LEVELS))) for c in chips]
        for j, (low, high) in enumerate(((0, 4), (4, 8))):
            mode = draw(st.sampled_from(["none", "force", "off"]))
            if mode != "none":
                owner = ("AscendJob", f"j{draw(st.integers(0, 2))}-{mode}")
                labels = {"fault-scheduling": mode}
                pods.append(pod(f"{owner[1]}-{i}{j}", node=name, chips=range(low, high), owner=owner, labels=labels))
    return Cluster(faults, pods, draw(st.booleans()))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(clusters())
def test_passes_come_to_rest_and_resets_stay_within_their_attempts(cluster: Cluster) -> None:
    now, quiet = NOW, 0
    for _ in range(24):
        scope = decide(cluster.snapshot(now), now=now)
        quiet = 0 if scope.actions else quiet + 1
        cluster.obey(scope, now)
        now += STEP
    assert quiet >= 8, "the passes do not come to rest"
    for name in cluster.names:
        assert sum(1 for _, where, _ in cluster.resets if where == name) <= 3, "more resets than attempts"
    final = decide(cluster.snapshot(now), now=now)
    for name, view in final.nodes.items():
        for chip in range(8):
            faulty = any(f.chip == chip and f.level not in IN_SERVICE for f in cluster.faults[name])
            if not faulty and not view.used >> chip & 1:
                assert view.free >> chip & 1, f"{name}/{chip} is clean and not schedulable"
        for key, held in cluster.pods.items():
            if held.node == name and held.labels["fault-scheduling"] == "force":
                bad = {f.chip for f in cluster.faults[name] if f.level not in (*IN_SERVICE, PRE_SEPARATE)}
                assert not bad & set(map(_chip, held.chips)), f"{key} still runs on a faulty chip"
