"""AI cores against a second implementation of MindCluster's rules, written down node by node and chip by chip.

Facts: component/ascend-for-volcano/plugin/vnode.go, internal/npu/vnpu/vdynamic.go and frame.go.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.placing import bindings, scope_of
from tests.vnpuworld import CORE, holds, node, observed, report, wants

#: template -> (AI cores, AI CPUs, DVPP) of a 310P
RES = {
    "vir01": (1, 1, "null"), "vir02": (2, 2, "null"), "vir02_1c": (2, 1, "null"), "vir04": (4, 4, "null"),
    "vir04_3c": (4, 3, "null"), "vir04_3c_ndvpp": (4, 3, "no"), "vir04_4c_dvpp": (4, 4, "yes"),
}  # fmt: skip
CHIP_CORES, CHIP_CPUS = 8, 7


class Held(NamedTuple):
    node: int
    chip: int
    template: str
    group: int
    real: bool


def template_of(cores: int, level: str, dvpp: str) -> str:
    if cores == 1:
        return "vir01"
    if cores == 2:
        return "vir02" if level == "high" else "vir02_1c"
    return {"yes": "vir04_4c_dvpp", "no": "vir04_3c_ndvpp"}.get(dvpp, "vir04" if level == "high" else "vir04_3c")


def chip_takes(there: list[Held], want: tuple[int, int, str]) -> bool:
    cores = CHIP_CORES - sum(RES[h.template][0] for h in there)
    cpus = CHIP_CPUS - sum(RES[h.template][1] for h in there)
    if cores < want[0] or cpus < want[1]:
        return False
    groups = len({h.group for h in there if h.real}) + _unnamed(there)
    if there and ((groups == 3 and want[0] >= 4) or (groups == 4 and want[0] >= 2)):
        return False
    flags = {RES[h.template][2] for h in there}
    free = "no" if "yes" in flags else "null" if "null" in flags else "yes"
    return not ((want[2] == "yes" and free != "yes") or (want[2] == "null" and free == "no"))


def _unnamed(there: list[Held]) -> int:
    """vGroups that vNPUs still being made need at least; chips with such are not taken anyway."""
    return 0 if all(h.real for h in there) else sum(not h.real for h in there)


def node_answer(held: list[Held], chips: int, template: str) -> tuple[int, str, bool] | None:
    """(chip, template, downgraded), or None."""
    for name, down in ((template, False), ({"vir02": "vir02_1c", "vir04": "vir04_3c"}.get(template, ""), True)):
        if not name:
            return None
        by_chip = {chip: [h for h in held if h.chip == chip] for chip in range(chips)}
        cores = {c: CHIP_CORES - sum(RES[h.template][0] for h in rows) for c, rows in by_chip.items()}
        cpus = {c: CHIP_CPUS - sum(RES[h.template][1] for h in rows) for c, rows in by_chip.items()}
        want = RES[name]
        if sum(cores.values()) >= want[0] and sum(cpus.values()) >= want[1]:
            order = sorted(by_chip, key=lambda c: (cores[c], cpus[c], c))
            fits = [c for c in order if all(h.real for h in by_chip[c]) and chip_takes(by_chip[c], want)]
            if fits:
                others = {h.template for h in held if not h.real} - {name}
                return None if others else (fits[0], name, down)
    return None


def tried_less(held: list[Held], chips: int, template: str) -> bool:
    """Whether the node would have been asked for less, whatever came of it."""
    if template not in ("vir02", "vir04"):
        return False
    by_chip = {chip: [h for h in held if h.chip == chip] for chip in range(chips)}
    settled = [rows for rows in by_chip.values() if all(h.real for h in rows)]
    enough = sum(CHIP_CPUS - sum(RES[h.template][1] for h in rows) for rows in by_chip.values()) >= RES[template][1]
    return not (enough and any(chip_takes(rows, RES[template]) for rows in settled))


tenants = st.lists(
    st.builds(
        Held, st.integers(0, 2), st.integers(0, 1), st.sampled_from(sorted(RES)), st.integers(0, 3), st.booleans()
    ),
    max_size=9,
)


def possible(rows: list[Held]) -> list[Held]:
    """Those that fit physically, each with a vGroup of its own unless it is one of two single cores."""
    kept: list[Held] = []
    for row in rows:
        there = [h for h in kept if (h.node, h.chip) == (row.node, row.chip)]
        mates = [h for h in there if h.group == row.group]
        lonely = all(RES[h.template][0] == 1 for h in [*mates, row]) and len(mates) < 2
        if chip_takes([h._replace(real=True) for h in there], RES[row.template]) and (not mates or lonely):
            kept.append(row)
    return kept


@settings(max_examples=300, deadline=None)
@given(tenants, st.sampled_from([1, 2, 4]), st.sampled_from(["low", "high"]), st.sampled_from(["yes", "no", "null"]))
def test_nodes_chips_templates_and_scores_are_the_references(
    rows: list[Held], cores: int, level: str, dvpp: str
) -> None:
    dvpp = dvpp if cores == 4 else "null"
    held = possible(rows)
    names = ["n0", "n1", "n2"]
    pods: list[Any] = [
        holds(
            f"h{i}", names[h.node], h.chip, h.template, RES[h.template][0], group=h.group, real=h.real, number=100 + i
        )
        for i, h in enumerate(held)
    ]
    scope = scope_of(
        observed(
            [node(n, chips=2) for n in names], [report(n, chips=2) for n in names],
            [*pods, wants("p", cores, level=level, dvpp=dvpp)],
        )
    )  # fmt: skip
    template = template_of(cores, level, dvpp)
    idle = [2 * CHIP_CORES - sum(RES[h.template][0] for h in held if h.node == i) for i in range(3)]
    mine = [[h for h in held if h.node == i] for i in range(3)]
    answers = [node_answer(mine[i], 2, template) if idle[i] >= cores else None for i in range(3)]
    less = [idle[i] >= cores and tried_less(mine[i], 2, template) for i in range(3)]
    feasible = sorted((i for i in range(3) if answers[i]), key=lambda i: (idle[i], i))
    if not feasible:
        assert not bindings(scope) and scope.pending
        return
    scores = dict.fromkeys((names[i] for i in feasible), 0)
    if not any(less):
        scores[names[feasible[0]]] = 8
    else:
        for i in feasible:
            if not less[i]:
                scores[names[i]] = 16
                break
            scores[names[i]] = 8
    assert scope.scores == {"train/p": dict(sorted(scores.items()))}
    best = min(feasible, key=lambda i: (-scores[names[i]], i))
    answer = answers[best]
    assert answer is not None
    (bound,) = bindings(scope).values()
    assert (bound.node, bound.annotations[CORE]) == (names[best], f"{answer[0]}-{answer[1]}")
