"""Pools against the cluster: a product that the nodes' own reports contradict."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.cli import coming
from engine.documents import Desired
from engine.model.actions import PartitionChip, ResetChips
from engine.model.cluster import Observed
from engine.model.diagnostics import Diagnostic
from engine.model.plan import CONTRADICTED, Plan
from engine.model.plan_cache import PlanCache
from engine.plan import plan
from engine.wire.orders import build_report, parse_report
from tests.worlds import A2_LABELS, NOW, agent, desired, document, fault, node, observed, pod, report

TRAINING = {"matchLabels": {"accelerator-type": "module-910b-8"}}
PLAIN = {key: value for key, value in A2_LABELS.items() if key != "node.kubernetes.io/npu.chip.name"}


def declared(product: str | None = "atlas-800t-a3") -> Desired:
    spec: dict[str, Any] = {"selector": TRAINING} | ({"product": product} if product else {})
    return desired(document("NodePool", "training", **spec))


def cluster(chip_name: str = "910B3", *, count: int = 2, labels: dict[str, str] | None = None, **more: Any) -> Observed:
    """Nodes n0 …, with chip 5 of n0 faulty and idle, whose agents report a model of chip."""
    names = [f"n{i}" for i in range(count)]
    reports = [report(name, faults=[fault(5)] if name == "n0" else ()) for name in names]
    agents = [agent(name, chip_name=chip_name) for name in names]
    return observed([node(name, labels=labels) for name in names], reports, agents=agents, **more)


def errors(result: Plan) -> list[Diagnostic]:
    return [one for one in result.diagnostics if one.severity == "error"]


def destructive(result: Plan) -> list[Any]:
    return [action for action in result.actions if isinstance(action, ResetChips | PartitionChip)]


@pytest.mark.parametrize("by", ["driver", "label"])
def test_a_product_that_the_nodes_contradict_is_an_error_and_resets_nothing(by: str) -> None:
    seen = cluster("910B3", labels=PLAIN) if by == "driver" else cluster("")
    result = plan(declared(), seen, NOW)

    assert destructive(result) == []
    (found,) = errors(result)
    assert (found.object, found.file, found.field) == ("NodePool/training", "policies/000.yaml", "spec.product")
    for part in ("pool training", "atlas-800t-a3", "n0 and n1", "910B3", "atlas-800t-a2", "correct spec.product to"):
        assert part in found.message
    ((held, why),) = [(one.action, one.action.message) for one in result.deferred if one.budget == CONTRADICTED]
    assert isinstance(held, ResetChips) and held.node == "n0" and "reports chips 910B3" in why


def test_the_reason_is_shown_where_people_ask_about_the_chip() -> None:
    busy = pod("p", node="n0", chips=[4])
    for pods in ((), (busy,)):
        seen = cluster(pods=pods)
        result = plan(declared(), seen, NOW)
        state = next(chip for chip in result.chips if (chip.node, chip.chip) == ("n0", "Ascend910-5"))
        (said,) = coming.of_chip("n0", 5, state, (), result, seen)
        assert "reports chips 910B3, which product atlas-800t-a3 does not have" in said


@pytest.mark.parametrize(
    ("product", "chip_name"),
    [("atlas-800t-a2", "910B3"), (None, "910B3"), ("atlas-800t-a3", "Ascend910-9382"), ("atlas-800t-a3", "910_9399")],
    ids=["right", "by labels", "another spelling", "a model that no product lists"],
)
def test_a_product_that_is_not_contradicted_is_reset(product: str | None, chip_name: str) -> None:
    result = plan(declared(product), cluster(chip_name, labels=PLAIN), NOW)
    assert errors(result) == []
    assert [action.node for action in destructive(result)] == ["n0"]


def test_labels_that_the_driver_contradicts() -> None:
    a3 = {"accelerator": "huawei-Ascend910", "accelerator-type": "module-a3-16"}
    result = plan(desired(), cluster("910B3", labels=a3), NOW)
    assert destructive(result) == []
    (found,) = errors(result)
    assert "labels say product atlas-800t-a3, but n0 and n1 report chips 910B3" in found.message


def test_another_resource_contradicts_too() -> None:
    result = plan(declared("atlas-300i-pro"), cluster("", labels=PLAIN), NOW)
    assert destructive(result) == []
    assert "report resource huawei.com/Ascend910 of atlas-800t-a2" in errors(result)[0].message


def test_a_contradicted_node_is_not_cut() -> None:
    layout = document(
        "VNPULayout", "cut", pool="training", mode="static", chips=[{"chips": [1], "templates": ["vir10_3c_32g"]}]
    )
    for product, cuts in (("atlas-800t-a2", 2), ("atlas-900-a3-superpod", 0)):
        pool = document("NodePool", "training", selector=TRAINING, product=product)
        seen = cluster()
        clean = {name: report(name) for name in seen.reports}
        result = plan(desired(pool, layout), msgspec.structs.replace(seen, reports=clean), NOW)
        assert len(destructive(result)) == cuts, product
        held = [one for one in result.deferred if one.budget == CONTRADICTED]
        assert len(held) == 2 - cuts and all("reports chips 910B3" in one.action.message for one in held)


def test_an_agent_that_names_another_chip_later_is_noticed_with_a_warm_cache() -> None:
    """Views of clean nodes are kept between passes: the driver's chip is one of their inputs."""
    cache, pool = PlanCache(), declared("atlas-800t-a3")
    seen = observed([node("n0", labels=PLAIN)], [report("n0")], agents=[agent("n0", chip_name="910_9391")])
    for _ in range(2):
        assert errors(plan(pool, seen, NOW, cache=cache)) == []

    other = msgspec.structs.replace(seen, agents={"n0": agent("n0", chip_name="910B3")})
    for _ in range(2):
        warm = plan(pool, other, NOW, cache=cache)
        assert len(errors(warm)) == 1 and warm.digest() == plan(pool, other, NOW).digest()


def test_the_report_of_an_agent_carries_its_chip() -> None:
    written = build_report(agent("n0"), "Ascend910-", {"version": "24.1", "chip": "910B3"})
    assert parse_report(written).chip_name == "910B3"
    odd = build_report(agent("n0"), "Ascend910-", {"chip": ["910B3"]})
    assert parse_report(odd).chip_name == ""
