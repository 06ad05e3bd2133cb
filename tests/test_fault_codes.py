"""Every default code at every plane, from its row in a table to what becomes of a chip, a node and the work on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from belay.agents.node.faults import Present
from belay.agents.node.policy import FaultLevels as AgentJudge
from belay.agents.node.shipped import shipped_policy
from belay.engine.model.actions import EvictPod, IsolateChip
from belay.engine.model.cluster import NodeDevice, NodeReport, SwitchReport
from belay.engine.model.faults import CARD, NETWORK, PUBLIC, code_key, level_of
from belay.engine.model.levels import IN_SERVICE, worst
from belay.engine.plan.rules import fault_rules as judging
from tests.steps import Steps
from tests.worlds import NOW, decide, desired, document, fault, node, observed, pod, report

TABLES = desired().tables
CHIP = dict(TABLES["chip"].code_levels)
NETWORK_CODES = judging.FaultRules(desired(), ()).network_codes
COUNTS = {
    "chip": {"NotHandleFault": 132, "SubHealthFault": 13, "RestartRequest": 33, "RestartBusiness": 24,
             "FreeRestartNPU": 23, "RestartNPU": 162, "PreSeparateNPU": 200, "SeparateNPU": 215},
    "switch": {"NotHandleFault": 12, "SubHealthFault": 8, "RestartRequestFault": 1, "SeparateFault": 9},
    "node": {"NotHandleFault": 7, "PreSeparateFault": 51, "SeparateFault": 1},
    # the sixth is Belay's own, of a chip that computed a wrong result
    "public": {"NotHandleFault": 6, "SubHealthFault": 10, "PreSeparateNPU": 2, "SeparateNPU": 13},
}  # fmt: skip

#: level → (state idle, taken out idle, state in use, taken out in use, the work on it goes)
CONSEQUENCES = {
    "NotHandleFault": ("healthy", False, "healthy", False, False),
    "SubHealthFault": ("sub-healthy", False, "sub-healthy", False, False),
    "RestartRequest": ("isolated", True, "isolated", True, True),
    "RestartBusiness": ("isolated", True, "isolated", True, True),
    "FreeRestartNPU": ("isolated", True, "isolated", True, True),
    "RestartNPU": ("isolated", True, "isolated", True, True),
    "PreSeparateNPU": ("isolated", True, "isolated", True, False),
    "SeparateNPU": ("isolated", True, "isolated", True, True),
}


@pytest.mark.parametrize("plane", COUNTS)
def test_the_counts_of_every_table(plane: str) -> None:
    levels = list(TABLES[plane].code_levels.values())
    assert {level: levels.count(level) for level in set(levels)} == COUNTS[plane]
    assert len(levels) == {"chip": 802, "switch": 30, "node": 59, "public": 31}[plane]


def chips_with(codes: Iterable[tuple[str, str]], *, used: bool, kind: str = CARD) -> tuple[Steps, dict[str, Any]]:
    """One chip per code, eight to a node; the reports leave the level to the tables. Fills no list of the report."""
    rows = list(codes)
    nodes, reports, pods, where = [], [], [], {}
    for first in range(0, len(rows), 8):
        name = f"n{first:04d}"
        nodes.append(node(name))
        faults = []
        for chip, (code, _) in enumerate(rows[first : first + 8]):
            faults.append(fault(chip, code, "", kind=kind))
            where[code] = (name, chip)
            if used:
                pods.append(pod(f"p-{name}-{chip}", node=name, chips=[chip], owner=("AscendJob", f"j-{name}-{chip}"),
                                labels={"fault-scheduling": "force"}))  # fmt: skip
        reports.append(report(name, faults=faults, unhealthy=()))
    budget = document("SafetyBudget", "default", limits=[
        {"actions": ["EvictPod", "IsolateChip"], "per": "cluster", "max": 10_000, "window": "1m"}])  # fmt: skip
    scope = decide(observed(nodes, reports, pods), desired(budget))
    shown = {(row.node, int(row.chip.rpartition("-")[2])): row for row in scope.chips}
    return scope, {code: shown[place] for code, place in where.items()}


@pytest.mark.parametrize("used", [False, True], ids=["idle", "in use"])
def test_every_chip_code_has_the_consequences_of_its_level(used: bool) -> None:
    codes = [(code, level) for code, level in sorted(CHIP.items()) if code_key(code) not in NETWORK_CODES]
    scope, rows = chips_with(codes, used=used)
    out = {(a.node, c) for a in scope.actions if isinstance(a, IsolateChip) for c in a.chips}
    gone = {a.pod for a in scope.actions if isinstance(a, EvictPod)}
    wrong = []
    for code, level in codes:
        row = rows[code]
        idle, idle_out, busy, busy_out, evicted = CONSEQUENCES[level]
        expected = (level, busy if used else idle, busy_out if used else idle_out, used and evicted)
        found = (row.level, row.state, (row.node, row.chip) in out, f"p-{row.node}-{row.chip[10:]}" in gone)
        if found != expected or row.codes != (code,) or row.fault_type != ("CardUnhealthy",):
            wrong.append((code, expected, found))
    assert not wrong


def test_every_parameter_plane_code_stays_on_its_plane() -> None:
    codes = [(code, level) for code, level in sorted(CHIP.items()) if code_key(code) in NETWORK_CODES]
    assert len(codes) >= 2
    scope, rows = chips_with(codes, used=True, kind=NETWORK)
    assert not [a for a in scope.actions if isinstance(a, (EvictPod, IsolateChip))]
    for code, level in codes:
        row = rows[code]
        assert row.fault_type == (NETWORK,)
        late = code == "81078603"  # down for ten minutes: longer than its duration rule allows
        assert row.level == ("PreSeparateNPU" if late else level)
        assert row.state == ("healthy" if level == "NotHandleFault" and not late else "sub-healthy")


def test_agents_and_planner_judge_every_code_alike() -> None:
    agent = AgentJudge(shipped_policy())
    rules = judging.FaultRules(desired(), ()).for_pool("default", "").rules
    for code, level in CHIP.items():
        plane = "network" if code_key(code) in NETWORK_CODES else "chip"
        kind = NETWORK if plane == "network" else CARD
        mine = agent.level(Present(code.lower(), plane, 0))  # type: ignore[arg-type]
        assert mine == level_of(rules, kind, code, "")[0], code
        if plane == "chip":
            assert mine == level
    for severity, expected in ((0, "NotHandleFault"), (1, "NotHandleFault"), (2, "SeparateNPU"), (3, "SeparateNPU"),
                               (None, "SeparateNPU")):  # fmt: skip
        assert agent.level(Present("FFFF0001", "chip", 0, severity)) == expected
        assert agent.level(Present("FFFF0001", "network", 0, severity)) == "PreSeparateNPU"


@pytest.mark.parametrize(("code", "level"), sorted(TABLES["public"].code_levels.items()))
def test_every_public_code_behaves_as_the_chip_level_of_its_name(code: str, level: str) -> None:
    for used in (False, True):
        scope, rows = chips_with([(code, level)], used=used, kind=PUBLIC)
        idle, idle_out, busy, busy_out, evicted = CONSEQUENCES[level]
        assert (rows[code].level, rows[code].state) == (level, busy if used else idle)
        assert any(isinstance(a, IsolateChip) for a in scope.actions) is (busy_out if used else idle_out)
        assert any(isinstance(a, EvictPod) for a in scope.actions) is (used and evicted)


def on_node(**more: Any) -> tuple[Steps, bool]:
    work = pod("p", node="n0", chips=[0], owner=("AscendJob", "j"), labels={"fault-scheduling": "force"})
    switch = more.pop("switch", None)
    world = observed([node("n0"), node("n1"), node("n2")], [report("n0", switch=switch), report("n1"), report("n2")],
                     [work], **more)  # fmt: skip
    scope = decide(world)
    return scope, any(isinstance(a, EvictPod) for a in scope.actions)


@pytest.mark.parametrize(("code", "level"), sorted(TABLES["node"].code_levels.items()))
def test_every_node_code_has_the_consequences_of_its_level(code: str, level: str) -> None:
    status = {"NotHandleFault": "Healthy", "PreSeparateFault": "PreSeparate", "SeparateFault": "UnHealthy"}[level]
    told = NodeReport("n0", (NodeDevice("CPU", 1, (code,), ""),), status)
    scope, evicted = on_node(node_reports=[told])
    view = scope.nodes["n0"]
    state = {"NotHandleFault": "healthy", "PreSeparateFault": "pre-isolated", "SeparateFault": "isolated"}[level]
    assert (view.state, view.level, view.codes) == (state, level, (code,))
    assert (view.closed is None) is (level == "NotHandleFault")
    assert evicted is (level == "SeparateFault")


REPORTED = {
    "NotHandleFault": ("NotHandle", "Healthy", "healthy"),
    "SubHealthFault": ("SubHealthFault", "SubHealthy", "sub-healthy"),
    "RestartRequestFault": ("RestartRequest", "UnHealthy", "isolated"),
    "SeparateFault": ("Separate", "UnHealthy", "isolated"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "level"), [(c.lower(), v) for c, v in sorted(TABLES["switch"].code_levels.items())])
def test_every_switch_code_has_the_consequences_of_its_level(code: str, level: str) -> None:
    word, status, state = REPORTED[level]
    scope, evicted = on_node(switch=SwitchReport(word, status, (code,), NOW - 2))
    view = scope.nodes["n0"]
    assert (view.state, view.codes) == (state, (code,))
    assert (view.closed is None) is (state in ("healthy", "sub-healthy"))
    assert evicted is (state == "isolated")
    # a policy that names it again is judged by the table for the other codes
    assert scope.health.rules is not None and scope.health.rules.table_level("switch", code) == level


def test_every_pair_of_levels_shows_the_worse() -> None:
    by_level = {level: next(c for c, v in sorted(CHIP.items()) if v == level and code_key(c) not in NETWORK_CODES)
                for level in COUNTS["chip"]}  # fmt: skip
    for one, first in by_level.items():
        for other, second in by_level.items():
            if first == second:
                continue
            faults = [fault(0, first, "", kind=CARD), fault(0, second, "", kind=CARD)]
            scope = decide(observed([node("n0")], [report("n0", faults=faults, unhealthy=())]))
            row = scope.chips[0]
            assert row.level == worst(one, other)
            assert (row.state == "isolated") is (worst(one, other) not in IN_SERVICE)


@pytest.mark.parametrize("used", [True, False])
def test_only_an_isolation_that_spares_work_says_so(used: bool) -> None:
    """What else runs on the node is not on the chip."""
    held = [3, 4] if used else [5]
    pods = [pod("j-0", node="n0", chips=held, owner=("AscendJob", "j"))]
    own = report("n0", faults=[fault(3, "80F38008", "PreSeparateNPU")], unhealthy=[])
    scope = decide(observed([node("n0")], [own], pods))
    (isolate,) = [a for a in scope.actions if isinstance(a, IsolateChip)]
    stays = "; running work stays" if used else ""
    assert isolate.message == f"Ascend910-3 of node n0: level PreSeparateNPU by 80F38008{stays}"
