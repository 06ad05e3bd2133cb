"""What must hold for any world: no reset in use, budgets kept, one answer for one input."""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.actions import EvictPod, IsolateChip, ResetChips
from belay.engine.model.cluster import Observed, Pod
from belay.engine.model.history import History
from belay.engine.model.levels import CHIP_LEVELS
from tests.worlds import NOW, agent, decide, desired, document, fault, node, observed, pod, report

NODES = 4
CODES = ("80C98001", "80DF8402", "81078603", "80A18008", "FFFF0001")
KINDS = ("CardUnhealthy", "CardUnhealthy", "CardNetworkUnhealthy", "PublicFault")

faults = st.builds(
    fault,
    st.integers(0, 7),
    st.sampled_from(CODES),
    st.sampled_from(CHIP_LEVELS[1:]),
    kind=st.sampled_from(KINDS),
    at=st.integers(0, 3600).map(lambda ago: NOW - ago),
)


@st.composite
def worlds(draw: st.DrawFn) -> Observed:
    """A few nodes with faults, jobs on disjoint chips, and agents that see some processes."""
    pods: list[Pod] = []
    reports, agents = [], []
    for i in range(NODES):
        found = draw(st.lists(faults, max_size=3))
        network = [f.chip for f in found if f.kind == "CardNetworkUnhealthy"]
        age = draw(st.sampled_from([2, 2, 2, 700]))
        reports.append(report(f"n{i}", faults=found, network=network, update_time=NOW - age))
        taken = draw(st.integers(0, 255))
        job = draw(st.integers(0, 2))
        chips = [c for c in range(8) if taken >> c & 1]
        if chips:
            pods.append(
                pod(
                    f"j{job}-{i}",
                    node=f"n{i}",
                    chips=chips,
                    owner=("AscendJob", f"j{job}"),
                    labels={"fault-scheduling": draw(st.sampled_from(["force", "grace", "off"]))},
                    rank=i,
                    deleting=draw(st.sampled_from([None, None, NOW - 3])),
                )
            )
        if draw(st.booleans()):
            agents.append(agent(f"n{i}", processes=draw(st.dictionaries(st.integers(0, 7), st.just(1), max_size=1))))
    return observed([node(f"n{i}") for i in range(NODES)], reports, pods, agents=agents)


BUDGET = desired(
    document(
        "SafetyBudget",
        "default",
        limits=[
            {"actions": ["EvictPod"], "per": "cluster", "max": 1, "window": "10m"},
            {"actions": ["ResetChips"], "per": "pool", "max": 2, "window": "1h"},
        ],
    )
)
SLOW = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(worlds())
def test_nothing_in_use_is_reset_and_budgets_hold(snapshot: Observed) -> None:
    scope = decide(snapshot, BUDGET)
    for action in scope.actions:
        if not isinstance(action, ResetChips):
            continue
        chips = {int(name.rpartition("-")[2]) for name in action.chips}
        held = {int(c.rpartition("-")[2]) for p in snapshot.pods.values() if p.node == action.node for c in p.chips}
        assert not chips & held, "a chip of a live pod is reset"
        seen = snapshot.agents.get(action.node)
        assert seen is None or not any(seen.chips[c].processes for c in chips), "a chip with a process is reset"
        resettable = scope.nodes[action.node].resettable  # by the chip's own plane, whatever its network says
        assert any(resettable >> c & 1 for c in chips), "a group without a fault that a reset heals is reset"
    assert len({a.budget_unit for a in scope.actions if isinstance(a, EvictPod)}) <= 1
    assert sum(isinstance(a, ResetChips) for a in scope.actions) <= 2
    done = {a.budget_unit for a in scope.actions if isinstance(a, EvictPod)}
    put_off = {d.action.budget_unit for d in scope.deferred if isinstance(d.action, EvictPod)}
    assert not done & put_off, "a gang is evicted in part"


@SLOW
@given(worlds())
def test_one_input_has_one_answer_and_chips_out_are_never_free(snapshot: Observed) -> None:
    one, two = decide(snapshot, BUDGET), decide(snapshot, BUDGET)
    assert one.actions == two.actions and one.memory == two.memory and one.chips == two.chips
    ordered = {(a.node, name) for a in one.actions if isinstance(a, IsolateChip) for name in a.chips}
    for name, view in one.nodes.items():
        assert not any((name, view.chip(c)) in ordered for c in range(8) if view.free >> c & 1)


@SLOW
@given(worlds())
def test_with_faults_gone_everything_returns_within_one_fresh_report(snapshot: Observed) -> None:
    quiet = desired(document("FaultPolicy", "q", frequency=[
        {"codes": list(CODES), "times": 100, "window": "1m", "level": "ManuallySeparateNPU"}
    ]))  # fmt: skip
    first = decide(snapshot, quiet)
    reset = {a.node for a in first.actions if isinstance(a, ResetChips)}
    later = NOW + 120
    clean = observed(
        snapshot.nodes.values(),
        [report(n, update_time=later - 1) for n in snapshot.nodes],
        history=History(
            nodes={n: m for n, m in first.memory.frozen("").nodes.items() if n not in reset},
            policy_revision=first.memory.policy_revision,
        ),
    )
    second = decide(clean, quiet, now=later)
    assert all(view.free == 0xFF for name, view in second.nodes.items() if name not in reset)
    assert not [a for a in second.actions if isinstance(a, EvictPod | ResetChips | IsolateChip)]
    third = decide(msgspec.structs.replace(clean, history=second.memory.frozen("")), quiet, now=later + 1)
    assert third.actions == []
