"""The plan as a document: everything sorted, nothing lost, the same bytes for the same world."""

from __future__ import annotations

from belay.engine.model.diagnostics import Diagnostic
from belay.engine.model.plan import ChipState, Pending
from tests import placing, worlds
from tests.placing import POLICY, gang, scope_of


def _pending(name: str, message: str = "m", kind: str = "PodGroup") -> Pending:
    return Pending(kind, "train", name, (), "X", message, {}, None)


def _chip(node: str, chip: str) -> ChipState:
    return ChipState(node, chip, "isolated", "SeparateNPU", (), (), None)


def test_lists_are_sorted_and_gangs_named_once() -> None:
    scope = scope_of(worlds.world(2, prefix="n"))
    scope.pending = [_pending("b"), _pending("a", "first"), _pending("a", "second"), _pending("a", kind="Pod")]
    scope.chips = [_chip("n0", "Ascend910-2"), _chip("n0", "Ascend910-10"), _chip("n1", "Ascend910-0")]
    later = Diagnostic("warning", "b", "", 0, 0, "", "m")
    scope.diagnostics = [later, Diagnostic("error", "a", "", 0, 0, "", "m"), later]
    scope.scores = {"t/b": {"n1": 1.0, "n0": 2.0}, "t/a": {}}
    scope.run("explain")
    plan = scope.document()
    assert [(entry.name, entry.kind, entry.message) for entry in plan.pending] == [
        ("a", "Pod", "m"), ("a", "PodGroup", "first"), ("b", "PodGroup", "m"),
    ]  # fmt: skip
    assert [(chip.node, chip.chip) for chip in plan.chips] == [
        ("n0", "Ascend910-2"), ("n0", "Ascend910-10"), ("n1", "Ascend910-0"),
    ]  # fmt: skip
    assert [found.object for found in plan.diagnostics] == ["a", "b"]
    assert list(plan.scores) == ["t/a", "t/b"] and list(plan.scores["t/b"]) == ["n0", "n1"]
    assert [state.node for state in plan.nodes] == ["n0", "n1"]


def test_scores_are_shown_only_on_request_and_digest_is_stable() -> None:
    pods, group = gang(2, 4, annotations={POLICY: "chip8-node8"})
    plans = [scope_of(worlds.world(2, pods=pods, objects=[group])).document() for _ in range(2)]
    assert plans[0].document(explain=True)["scores"] == {
        "train/case-0": {"n0": 792.0, "n1": 792.0},
        "train/case-1": {"n0": 796.0, "n1": 792.0},
    }
    assert plans[0].document()["scores"] == {}
    assert plans[0].digest() == plans[1].digest()


def test_observed_diagnostics_are_in_the_plan() -> None:
    found = Diagnostic("error", "ConfigMap/kube-system/x", "", 0, 0, "data", "bad")
    scope = scope_of(worlds.observed([worlds.node("n0")], diagnostics=(found,)))
    assert scope.document().diagnostics == (found,)
    assert placing.bindings(scope) == {}
