"""A gang whose binding was interrupted: completed where possible, else evicted as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.model.actions import EvictPod
from belay.engine.model.cluster import Pod
from belay.engine.plan import plan
from tests import worlds
from tests.placing import nodes_of, scope_of, shipped
from tests.steps import Steps
from tests.worlds import NOW

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j", "namespace": "train", "uid": "uid-train-j"},
    "spec": {"parallelism": 4, "completions": 4},
}


def pods(*, bound: int = 2, started: float | None = NOW - 5, created: float = NOW - 60, **fields: Any) -> list[Pod]:
    """Four pods of 8 chips; the first ``bound`` have their nodes, the others are claimed for n2 and n3."""
    fields.setdefault("owner", ("Job", "j"))
    out = []
    for index in range(4):
        here = index < bound
        pod = worlds.pod(
            f"j-{index}",
            count=8,
            chips=range(8) if here else (),
            node=f"n{index}" if here else "",
            owner_api="batch/v1",
            phase="Pending",
            created=created if not here else NOW - 60,
            rank=index,
            **fields,
        )
        out.append(msgspec.structs.replace(pod, started=started if here else None))
    return out


def world(nodes: int, gang: list[Pod], *, broken: tuple[str, ...] = (), claimed: tuple[int, ...] = (2, 3)) -> Any:
    names = [f"n{index}" for index in range(nodes)]
    ledger = {f"n{i}/Ascend910-{chip}": gang[i].uid for i in claimed for chip in range(8)}
    return worlds.observed(
        [worlds.node(name) for name in names],
        [worlds.report(name, unhealthy=range(8) if name in broken else None) for name in names],
        gang,
        objects=[JOB],
        ledger=ledger,
    )


def evicted(scope: Steps) -> set[str]:
    return {action.pod for action in scope.actions if isinstance(action, EvictPod)}


def test_claims_are_used_and_nothing_is_evicted() -> None:
    scope = scope_of(world(5, pods()))
    assert nodes_of(scope) == {"j-2": "n2", "j-3": "n3"} and not evicted(scope)


def test_a_claim_on_a_broken_node_is_replaced() -> None:
    scope = scope_of(world(5, pods(), broken=("n3",)))
    assert set(nodes_of(scope)) == {"j-2", "j-3"} and "n4" in nodes_of(scope).values() and not evicted(scope)


def test_a_gang_that_cannot_be_completed_is_evicted_whole() -> None:
    scope = scope_of(world(4, pods(), broken=("n3",)))
    assert not nodes_of(scope) and evicted(scope) == {"j-0", "j-1"}
    action = next(action for action in scope.actions if isinstance(action, EvictPod))
    assert (action.reason, action.budget_unit) == ("GangIncomplete", "train/Job.batch/j")
    assert "2 of 4 pods are bound" in action.message
    assert [entry.name for entry in scope.pending] == ["j"]


@pytest.mark.parametrize(
    "gang",
    [
        pods(created=NOW - 1),  # replacements of pods that failed while the others run: recovery decides
        pods(owner=None),  # no owner would replace them
    ],
)
def test_pods_that_ran_before_or_have_no_owner_stay(gang: list[Pod]) -> None:
    assert not evicted(scope_of(world(4, gang, broken=("n3",))))


def test_without_claims_nothing_was_interrupted() -> None:
    assert not evicted(scope_of(world(4, pods(), broken=("n3",), claimed=())))


def test_a_budget_defers_the_eviction() -> None:
    seen = world(4, pods(), broken=("n3",))
    found = plan(shipped(), seen, NOW)
    acted = [action for action in found.actions if isinstance(action, EvictPod)]
    assert {action.pod for action in acted} == {"j-0", "j-1"} and found.history.budgets, "the gang is one unit of it"
