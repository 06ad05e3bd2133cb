"""Every chip-level family against a reference that tries everything: feasibility, raw scores, the node and the chips.

The reference has its own copy of the published rules: which sets of chips a pod may take and how a node scores. It
enumerates all assignments on tiny clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from random import Random
from typing import Any, NamedTuple

import pytest

from tests import placing, worlds
from tests.placing import POLICY, bindings, chips_of, gang, nodes_of, scope_of
from tests.steps import Steps

Chips = frozenset[int]


def _groups(free: Chips, size: int, chips: int) -> list[Chips]:
    return [frozenset(i for i in free if first <= i < first + size) for first in range(0, chips, size)]


class Rules(NamedTuple):
    """A family: which sets are legal, what a node scores (None: the same for all), whether broken networks matter."""

    legal: Callable[[Chips, Chips, bool], bool]
    score: Callable[[Chips, int, bool, int], float]
    kind: str
    chips: int
    wants: Sequence[int]
    policy: str = ""
    selector: str = ""
    labels: dict[str, str] = {}
    node_labels: dict[str, str] = {}
    network: bool = False
    gangs: bool = True


def _any(taken: Chips, free: Chips, many: bool) -> bool:
    return True


def _base(most: int) -> Callable[[Chips, int, bool, int], float]:
    return lambda free, want, many, sick: (most - sick) * 100 - len(free)


def _one_group(size: int, chips: int) -> Callable[[Chips, Chips, bool], bool]:
    return lambda taken, free, many: any(taken <= group for group in _groups(free, size, chips))


def _ring8_score(free: Chips, want: int, many: bool, sick: int) -> float:
    table = {1: {1: 0, 2: 2, 3: 1, 4: 3}, 2: {2: 0, 3: 2, 4: 1}, 4: {4: 0}}
    rings = [len(ring) for ring in _groups(free, 4, 8)]
    best = 0 if want == 8 else min(table[want][size] for size in rings if size in table[want])
    return 8 * (8 * 4 - best) + 8 - len(free)


def _box_legal(taken: Chips, free: Chips, many: bool) -> bool:
    left = {i for i in taken if i < 8}
    if len(taken) <= 8:
        return not left or len(left) == len(taken)
    if many:
        return 2 * len(left) == len(taken)
    return all((i + 8) % 16 in taken for i in taken)


def _box_score(free: Chips, want: int, many: bool, sick: int) -> float:
    left, right = ({i % 8 for i in ring} for ring in _groups(free, 8, 16))
    if want <= 8:
        best = min(len(ring) - want for ring in (left, right) if len(ring) >= want)
    else:
        usable = 2 * (min(len(left), len(right)) if many else len(left & right))
        best = usable // 2 - want // 2
    return 16 * (16 - best) + 16 - len(free)


def _modules(taken: Chips, free: Chips, many: bool) -> bool:
    return len(taken) == 1 or all(i ^ 1 in taken for i in taken)


def _a3_score(free: Chips, want: int, many: bool, sick: int) -> float:
    broken = any(len(module) == 1 for module in _groups(free, 2, 16))
    return 16 * (32 - (len(free) - want) - (16 if want == 1 and not broken else 0))


def _mesh_legal(chips: int) -> Callable[[Chips, Chips, bool], bool]:
    def legal(taken: Chips, free: Chips, many: bool) -> bool:
        if len(taken) < 4:
            return any(taken <= mesh for mesh in _groups(free, 4, chips))
        return len(taken) % 4 != 0 or all(len(mesh & taken) in (0, 4) for mesh in _groups(free, 4, chips))

    return legal


def _mesh_score(chips: int, scale: int) -> Callable[[Chips, int, bool, int], float]:
    def score(free: Chips, want: int, many: bool, sick: int) -> float:
        if want > 4 and want % 4:
            return chips * (chips - (len(free) - want))
        available = sum(1 for mesh in _groups(free, 4, chips) if len(mesh) >= min(want, 4))
        return scale * (scale - (chips * (available - max(1, want // 4)) + len(free) - want))

    return score


def _card_score(free: Chips, want: int, many: bool, sick: int) -> float:
    table = {1: (0, 2, 1, 3), 2: (4, 0, 1, 2), 3: (4, 4, 0, 1), 4: (4, 4, 4, 0)}
    return 8 * (4 - min(table[want][len(card) - 1] for card in _groups(free, 4, 8) if card))


def _duo_card_score(free: Chips, want: int, many: bool, sick: int) -> float:
    table = {1: (0, 1), 2: (2, 0)}
    return 8 * (2 - min(table[want][len(card) - 1] for card in _groups(free, 2, 8) if card))


def _spread_legal(taken: Chips, free: Chips, many: bool) -> bool:
    """Whole cards; an odd request takes one chip more, of a half-free card where there is one."""
    alone = [i for i in taken if i ^ 1 not in taken]
    return len(alone) == len(taken) % 2


def _spread_score(free: Chips, want: int, many: bool, sick: int) -> float:
    half = any(len(card) == 1 for card in _groups(free, 2, 8))
    count = len(free)
    if want % 2 == 0:
        return 8 * (16 - (count - want + 1))
    if half:
        return 8 * (16 - (count - want + 1 if count <= 7 else 16))
    return 8 * (16 - ({1: 8, 3: 7, 5: 6, 7: 5}[want] + count // 2))


DUO = {"infer-card-type": "card-300i-duo"}
RULES = {
    "ring8": Rules(_one_group(4, 8), _ring8_score, "Ascend910", 8, (1, 2, 4), selector="module", network=True),
    "half": Rules(_any, _base(4), "Ascend910", 4, (1, 2, 4), policy="chip4-node4", network=True),
    "300T": Rules(_any, _base(8), "Ascend910", 2, (2,), policy="chip1-node2"),
    "A2": Rules(_any, _base(8), "Ascend910", 8, (1, 3, 5, 8), policy="chip8-node8", network=True),
    "A2 card": Rules(_any, _base(8), "Ascend910", 8, (1, 3, 5), selector="card-910b-infer"),
    "box16": Rules(_box_legal, _box_score, "Ascend910", 16, (1, 3, 6, 8), policy="chip8-node16", network=True),
    "box16 large": Rules(
        _box_legal, _box_score, "Ascend910", 16, (10, 12, 14), policy="chip8-node16", network=True, gangs=False
    ),
    "A3": Rules(_modules, _a3_score, "Ascend910", 16, (2, 4, 6), policy="chip2-node16", network=True),
    "A3 single": Rules(_modules, _a3_score, "Ascend910", 16, (1, 2), policy="module-a3-16", gangs=False),
    "350": Rules(_any, _base(8), "npu", 8, (1, 3, 5), policy="chip1-node8"),
    "350 mesh 8": Rules(
        _mesh_legal(8), _mesh_score(8, 16), "npu", 8, (1, 2, 3, 4, 5, 6, 7), policy="chip4-node8", network=True
    ),
    "350 mesh 16": Rules(
        _mesh_legal(16), _mesh_score(16, 64), "npu", 16, (2, 3, 4, 5, 8), policy="chip4-node16", network=True
    ),
    "850": Rules(_any, _base(8), "npu", 8, (2, 4), policy="chip8-node8", network=True),
    "300I card": Rules(
        _one_group(4, 8), _card_score, "Ascend310", 8, (1, 2, 3, 4), labels={"npu-310-strategy": "card"}
    ),
    "300I chip": Rules(_any, _base(64), "Ascend310", 8, (1, 3, 5)),
    "310P": Rules(_any, _base(64), "Ascend310P", 8, (1, 4, 5)),
    "Duo card": Rules(
        _one_group(2, 8), _duo_card_score, "Ascend310P", 8, (1, 2), node_labels=DUO,
        labels={"duo": "true", "npu-310-strategy": "card"},
    ),
    "Duo chip": Rules(
        _any, lambda *_: 0, "Ascend310P", 8, (1, 3), labels={"duo": "true"}, node_labels=DUO
    ),
    "Duo spread": Rules(
        _spread_legal, _spread_score, "Ascend310P", 8, (1, 2, 3, 4, 5, 6, 7),
        labels={"duo": "true", "distributed": "true"}, node_labels=DUO, gangs=False,
    ),
}  # fmt: skip


class World(NamedTuple):
    """What the nodes have: free chips, chips with a broken network, chips that are faulty."""

    free: list[Chips]
    broken: list[Chips]
    sick: list[Chips]


def _world(random: Random, rules: Rules, nodes: int) -> World:
    chips = range(rules.chips)
    ratio = random.choice((0.4, 0.6, 0.9))
    sick = [frozenset(i for i in chips if random.random() < 0.1) for _ in range(nodes)]
    free = [frozenset(i for i in chips if random.random() < ratio) - sick[n] for n in range(nodes)]
    broken = [frozenset(i for i in free[n] if random.random() < 0.15) for n in range(nodes)]
    return World(free, broken, sick)


def _plan(rules: Rules, world: World, pods: int, want: int) -> Steps:
    prefix, resource = f"{rules.kind}-", f"huawei.com/{rules.kind}"
    kind: Any = {"resource": resource, "prefix": prefix}
    selector = {"accelerator-type": rules.selector} if rules.selector else {}
    labels = {"accelerator": f"huawei-{rules.kind}", **selector, **rules.node_labels}
    everything = frozenset(range(rules.chips))
    nodes, reports, held = [], [], []
    for index, free in enumerate(world.free):
        name = f"n{index}"
        nodes.append(worlds.node(name, chips=rules.chips, labels=labels, **kind))
        reports.append(
            worlds.report(name, chips=rules.chips, unhealthy=world.sick[index], network=world.broken[index], **kind)
        )
        taken = everything - free - world.sick[index]
        if taken:
            held.append(placing.busy(name, sorted(taken), **kind))
    notes = {POLICY: rules.policy} if rules.policy else {}
    waiting, group = gang(pods, want, annotations=notes, labels=dict(rules.labels), node_selector=selector, **kind)
    return scope_of(worlds.observed(nodes, reports, [*held, *waiting], objects=[group]))


def _sets(rules: Rules, free: Chips, want: int, many: bool) -> list[Chips]:
    found = map(frozenset, combinations(sorted(free), want))
    return [taken for taken in found if rules.legal(taken, free, many)]


def _usable(rules: Rules, world: World, many: bool) -> list[Chips]:
    cut = rules.network and many
    return [free - (world.broken[n] if cut else frozenset()) for n, free in enumerate(world.free)]


@pytest.mark.parametrize("name", RULES)
def test_single_pods_get_the_best_node_and_legal_chips(name: str) -> None:
    rules = RULES[name]
    random = Random(name)
    for _ in range(25):
        world, want = _world(random, rules, 3), random.choice(list(rules.wants))
        scope = _plan(rules, world, 1, want) if name != "300T" else _plan(rules, world, 1, 1)
        want = 1 if name == "300T" else want
        expected = {
            f"n{index}": rules.score(free, want, False, len(world.sick[index]))
            for index, free in enumerate(world.free)
            if _sets(rules, free, want, False)
        }
        if not expected:
            assert not scope.actions and sum(scope.pending[0].nodes.values()) == 3, (name, world, want)
            continue
        assert scope.scores["train/case-0"] == expected, (name, world, want)
        best = min(expected, key=lambda node: (-expected[node], node))
        (action,) = bindings(scope).values()
        assert action.node == best, (name, world, want)
        taken = frozenset(chips_of(action))
        assert taken in _sets(rules, world.free[int(best[1:])], want, False)


@pytest.mark.parametrize("name", [name for name, rules in RULES.items() if rules.gangs])
def test_gangs_are_placed_exactly_when_some_assignment_exists(name: str) -> None:
    rules = RULES[name]
    random = Random(name)
    for _ in range(12):
        world, pods = _world(random, rules, 2), random.choice((2, 3))
        want = random.choice([size for size in rules.wants if size > 1] or list(rules.wants))
        scope = _plan(rules, world, pods, want)
        start = tuple(_usable(rules, world, True))

        @cache
        def possible(frees: tuple[Chips, ...], left: int, want: int = want) -> bool:
            if not left:
                return True
            return any(
                possible((*frees[:n], free - taken, *frees[n + 1 :]), left - 1)
                for n, free in enumerate(frees)
                for taken in _sets(rules, free, want, True)
            )

        assert possible(start, pods) == bool(scope.actions), (name, world, pods, want, scope.pending)
        if scope.actions:
            assert len(nodes_of(scope)) == pods
            left = list(start)
            for action in bindings(scope).values():
                index, taken = int(action.node[1:]), frozenset(chips_of(action))
                assert taken <= left[index] and len(taken) == want
                assert rules.legal(taken, left[index], True)
                left[index] -= taken
