"""Placement over random small worlds: one owner per chip, whole gangs, no excluded chip, the same plan every time."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.model.chip_masks import mask_of
from tests import placing, worlds
from tests.placing import POLICY, bindings, busy, chips_of, gang, scope_of

#: policy, chips per node, accelerator type, sizes that the policy knows
FAMILIES = [
    ("chip8-node8", 8, (1, 2, 3, 8)),
    ("chip4-node8", 8, (1, 2, 3, 4, 5, 8)),
    ("chip8-node16", 16, (1, 5, 8, 10, 16)),
    ("chip2-node16", 16, (2, 4, 16)),
    ("", 8, (1, 2, 4, 8)),
]
chip_sets = st.sets(st.integers(0, 15), max_size=10)


@st.composite
def histories(draw: Any) -> Any:
    """A world with random faults and running pods, and random gangs."""
    policy, chips, sizes = draw(st.sampled_from(FAMILIES))
    nodes, reports, pods, groups = [], [], [], []
    for i in range(draw(st.integers(1, 4))):
        name = f"n{i}"
        bad = {chip for chip in draw(chip_sets) if chip < chips}
        network = {chip for chip in draw(chip_sets) if chip < chips}
        taken = {chip for chip in draw(chip_sets) if chip < chips} - bad
        nodes.append(worlds.node(name, chips=chips, unschedulable=draw(st.integers(0, 9)) == 0))
        reports.append(worlds.report(name, chips=chips, unhealthy=bad, network=network))
        if taken:
            pods.append(busy(name, taken))
    for i in range(draw(st.integers(1, 4))):
        count, least = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        notes = {POLICY: policy} if policy else {}
        new, group = gang(count, draw(st.sampled_from(sizes)), name=f"g{i}", annotations=notes, least=min(count, least))
        pods += new
        groups.append(group)
    return worlds.observed(nodes, reports, pods, objects=groups)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_placement_invariants(world: Any) -> None:
    scope = scope_of(world)
    bound = bindings(scope)
    held = {name: mask_of([]) for name in world.nodes}
    for pod in world.pods.values():
        if pod.node:
            held[pod.node] |= mask_of([int(chip.rpartition("-")[2]) for chip in pod.chips])
    for name, action in bound.items():
        pod, report = world.pods[f"train/{name}"], world.reports[action.node]
        mine = mask_of(chips_of(action))
        assert mine.bit_count() == pod.count, "a pod gets as many chips as it asked for"
        assert not held[action.node] & mine, "no chip has two owners"
        held[action.node] |= mine
        assert not report.unhealthy & mine, "no excluded chip is used"
        scores = scope.scores[pod.key]
        assert scores[action.node] == max(scores.values()), "the best node is chosen"
        assert action.node == min(node for node, score in scores.items() if score == max(scores.values())), "by name"
        assert not world.nodes[action.node].unschedulable, "no cordoned node is used"
        if action.annotations["distributed-job"] == "true":
            assert not (report.network_unhealthy or 0) & mine, "distributed pods keep off a broken network"
    for key, found in scope.gangs.items():
        if key.split("/")[1] == "PodGroup":
            placed = sum(1 for pod in found.pods if pod.partition("/")[2] in bound)
            assert placed == 0 or placed >= found.min_available, "no gang is placed in part"
            waiting = {entry.name for entry in scope.pending}
            assert placed == len(found.pods) or found.name in waiting, "every waiting gang has a reason"
    again = scope_of(world).document()
    assert again.digest() == scope.document().digest(), "same world, same plan"
    assert placing.nodes_of(scope) == {name: action.node for name, action in bound.items()}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_bound_pods_stay_and_the_next_pass_binds_nothing_new(world: Any) -> None:
    bound = bindings(scope_of(world))
    pods = dict(world.pods)
    for name, action in bound.items():
        pod = pods[f"train/{name}"]
        notes = {**pod.annotations, **action.annotations}
        pods[pod.key] = placing.edited(
            pod, node=action.node, phase="Running", chips=action.chips, annotations=notes, started=worlds.NOW
        )
    after = scope_of(placing.edited(world, pods=pods))
    assert bindings(after) == {}, "what did not fit before fits no better now"
