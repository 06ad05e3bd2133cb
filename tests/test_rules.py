"""Names of rules and their kinds."""

from __future__ import annotations

import pytest

from belay.engine.model.actions import Evidence
from belay.engine.model.history import Hold, HoldKind
from belay.engine.model.rules import RuleKind, document_and_part, rule_kind

#: Names as plans and histories hold them.
STORED = (
    ("", RuleKind.OTHER),
    ("80C98000", RuleKind.OTHER),
    ("ConfigMap/cluster-system/clusterd-manual-info-cm#Total", RuleKind.MANUAL_LIST),
    ("FaultPolicy/lab#levels", RuleKind.FAULT_POLICY),
    ("FaultTable/chips#frequency.80C98000", RuleKind.FAULT_TABLE),
    ("Isolation/rack-7", RuleKind.ISOLATION),
    ("expand", RuleKind.EXPANSION),
    ("fault-scheduling", RuleKind.FAULT_SCHEDULING),
    ("fault-scheduling=grace", RuleKind.FAULT_SCHEDULING),
    ("fault-scheduling=node-not-ready", RuleKind.FAULT_SCHEDULING),
    ("hardware:80C98000", RuleKind.HARDWARE),
    ("hold:frequency", RuleKind.HOLD),
    ("place/rollback", RuleKind.OTHER),
    ("report", RuleKind.REPORT),
    ("report#ManuallySeparateNPU", RuleKind.MANUAL_KEY),
    ("report#Unhealthy", RuleKind.REPORT),
    ("sync", RuleKind.SYNC),
    ("synchronised", RuleKind.OTHER),
)


@pytest.mark.parametrize(("rule", "kind"), STORED)
def test_every_stored_name_has_its_kind(rule: str, kind: RuleKind) -> None:
    assert rule_kind(rule) is kind
    assert Evidence(rule=rule).rule_kind is kind
    assert Hold(HoldKind.FREQUENCY, "", since=1, rule=rule).rule_kind is kind


def test_a_name_that_a_kind_gives_is_read_back() -> None:
    for kind in sorted(set(RuleKind) - {RuleKind.OTHER, RuleKind.SYNC, RuleKind.EXPANSION, RuleKind.MANUAL_KEY}):
        assert rule_kind(kind.named("x")) is kind
        assert kind.name_in(kind.named("x")) == "x"
    assert RuleKind.HARDWARE.name_in("80C98000") == "80C98000"
    assert document_and_part("FaultPolicy/lab#levels") == ("FaultPolicy/lab", "levels")
    assert document_and_part("Isolation/rack-7") == ("Isolation/rack-7", "")
