"""The product matrix: which request sizes are legal under which policy, and which handler a job gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest

from belay.engine.model.job_options import read_options
from belay.engine.plan.place.families import registry
from belay.engine.plan.place.handler import Refusal
from tests import placing, worlds
from tests.placing import POLICY, gang, scope_of

EVEN16, EVEN8 = tuple(range(2, 17, 2)), (2, 4, 6, 8)


class Row(NamedTuple):
    """Legal sizes of single and of distributed pods; ``most`` is the largest size that is tried."""

    single: Iterable[int]
    distributed: Iterable[int]
    kind: str = "Ascend910"
    policy: str = ""
    selector: str = ""
    labels: dict[str, str] = {}
    most: int = 18
    blocks: bool = False


MATRIX = {
    "800-9000": Row((1, 2, 4, 8), (1, 2, 4, 8), selector="module"),
    "by default": Row((1, 2, 4, 8), (1, 2, 4, 8)),
    "half": Row((1, 2, 4), (1, 2, 4), policy="chip4-node4"),
    "half by selector": Row((1, 2, 4), (1, 2, 4), selector="half"),
    "300T": Row((1, 2), (2,), policy="chip1-node2"),
    "800T A2": Row(range(1, 9), range(1, 9), policy="chip8-node8"),
    "800T A2 by selector": Row(range(1, 9), range(1, 9), selector="module-910b-8"),
    "800I A2 card": Row(range(1, 9), range(1, 9), selector="card-910b-infer"),
    "Box16": Row((*range(1, 9), 10, 12, 14, 16), (*range(1, 9), 10, 12, 14, 16), policy="chip8-node16"),
    "Box16 by selector": Row((*range(1, 9), 10, 12, 14, 16), (*range(1, 9), 10, 12, 14, 16), selector="module-910b-16"),
    "800T A3": Row((1, *EVEN16), EVEN16, policy="chip2-node16"),
    "800T A3 by its name": Row((1, *EVEN16), EVEN16, policy="module-a3-16"),
    "9000 A3": Row((1, *EVEN16), EVEN16, policy="chip2-node8"),
    "900 A3 super pod": Row((1, *EVEN16), (16,), policy="chip2-node16-sp", blocks=True),
    "9000 A3 super pod": Row((1, *EVEN8), (8,), policy="chip2-node8-sp", blocks=True),
    "super pod by selector": Row((1, *EVEN8), (8,), selector="module-a3-8-super-pod", blocks=True),
    "300I card": Row((1, 2, 3, 4), (1, 2, 3, 4), "Ascend310", labels={"npu-310-strategy": "card"}),
    "300I chip": Row(range(1, 65), range(1, 65), "Ascend310", most=66),
    "310P": Row(range(1, 65), range(1, 65), "Ascend310P", most=66),
    "Duo card": Row((1, 2), (1, 2), "Ascend310P", labels={"duo": "true", "npu-310-strategy": "card"}),
    "Duo chip": Row(range(1, 17), range(1, 17), "Ascend310P", labels={"duo": "true"}),
    "Duo spread": Row(range(1, 17), (), "Ascend310P", labels={"duo": "true", "distributed": "true"}),
    "350, 8": Row(range(1, 9), range(1, 9), "npu", "chip1-node8"),
    "350, 16": Row(range(1, 17), range(1, 17), "npu", "chip1-node16"),
    "350 mesh, 8": Row(range(1, 9), range(1, 9), "npu", "chip4-node8"),
    "mesh on 910": Row(range(1, 9), range(1, 9), "Ascend910", "chip4-node8"),
    "350 mesh, 16": Row(range(1, 17), range(1, 17), "npu", "chip4-node16"),
    "850": Row(range(1, 9), range(1, 9), "npu", "chip8-node8"),
    "850 super pod": Row(range(1, 9), (8,), "npu", "chip8-node8-sp", blocks=True),
    "950": Row(range(1, 9), (8,), "npu", "chip8-node8-ra64-sp", blocks=True),
}


def _is_legal(row: Row, pods: int, want: int) -> bool:
    notes = ({POLICY: row.policy} if row.policy else {}) | ({"sp-block": str(pods * want)} if row.blocks else {})
    kind: Any = {"resource": f"huawei.com/{row.kind}", "prefix": f"{row.kind}-"}
    selector = {"accelerator-type": row.selector} if row.selector else {}
    waiting, group = gang(pods, want, annotations=notes, labels=dict(row.labels), node_selector=selector, **kind)
    world = worlds.observed([], [], waiting, objects=[group], init_params={"super-pod-size": "64"})
    (entry,) = scope_of(world).pending
    assert entry.reason in ("InvalidRequest", "NPUResourceShortage"), entry
    return entry.reason != "InvalidRequest"


@pytest.mark.parametrize("name", MATRIX)
def test_legal_sizes(name: str) -> None:
    row = MATRIX[name]
    for pods, legal in ((1, row.single), (2, row.distributed)):
        found = {want for want in range(1, row.most + 1) if _is_legal(row, pods, want)}
        assert found == set(legal), (name, pods)


@pytest.mark.parametrize(
    ("resource", "notes", "labels", "selector", "handler", "topology"),
    [
        ("Ascend910", {}, {}, "", "Ring8", ""),
        ("Ascend910", {}, {}, "module", "Ring8", ""),
        ("Ascend910", {}, {}, "half", "Base", ""),
        ("Ascend910", {}, {}, "card", "Base", ""),
        ("Ascend910", {}, {}, "my-card-server", "Base", ""),
        ("Ascend910", {}, {}, "module-910b-16", "Box16", ""),
        ("Ascend910", {}, {}, "module-a3-16", "A3", ""),
        ("Ascend910", {}, {}, "module-a3-16-super-pod", "SuperPodA3", "superpod"),
        ("Ascend910", {}, {}, "module|half", None, ""),
        ("Ascend910", {}, {}, "unheard-of", None, ""),
        ("Ascend910", {"sp-block": "32"}, {}, "", "SuperPodA3", "superpod"),
        ("Ascend910", {"sp-block": "16"}, {}, "module-a3-8-super-pod", "SuperPodA3", "superpod"),
        ("Ascend910", {POLICY: "unheard-of"}, {}, "", "Ring8", ""),
        ("Ascend910", {POLICY: "unheard-of", "sp-block": "32"}, {}, "", "SuperPodA3", "superpod"),
        ("Ascend910", {POLICY: "chip4-node8"}, {}, "module", "Mesh4", ""),
        ("Ascend910", {POLICY: "multilevel"}, {}, "", "WholeNode", "multilevel"),
        ("npu", {POLICY: "multilevel"}, {}, "", "WholeNode", "multilevel"),
        ("npu", {POLICY: "chip8-node8"}, {}, "", "Base", ""),
        ("npu", {POLICY: "chip8-node8-ra64-sp"}, {}, "", "RackNode", "rack"),
        ("npu", {POLICY: "chip8-node8-sp"}, {}, "", "SuperPodNode", "superpod"),
        ("npu", {}, {}, "", None, ""),
        ("npu", {"sp-block": "8"}, {}, "", None, ""),
        ("Ascend310", {}, {}, "", "Chip310", ""),
        ("Ascend310", {}, {"npu-310-strategy": "card"}, "", "Card310", ""),
        ("Ascend310P", {}, {}, "", "Base", ""),
        ("Ascend310P", {}, {"npu-310-strategy": "card"}, "", "Base", ""),
        ("Ascend310P", {}, {"duo": "false"}, "", "Base", ""),
        ("Ascend310P", {}, {"duo": "true"}, "", "DuoChip", ""),
        ("Ascend310P", {}, {"duo": "true", "npu-310-strategy": "card"}, "", "DuoCard", ""),
        ("Ascend310P", {}, {"duo": "true", "npu-310-strategy": "both"}, "", "Base", ""),
    ],
)
def test_handlers(
    resource: str, notes: dict[str, str], labels: dict[str, str], selector: str, handler: str | None, topology: str
) -> None:
    found = registry.choose(f"huawei.com/{resource}", read_options(labels, notes), selector, placing.shipped())
    if handler is None:
        assert isinstance(found, Refusal) and found.reason == "NotSupportPolicy"
    else:
        assert not isinstance(found, Refusal)
        assert (type(found.family).__name__, found.topology) == (handler, topology)


def test_sizes_of_eight_die_super_pods_follow_the_selector() -> None:
    found = registry.choose(
        "huawei.com/Ascend910", read_options({}, {"sp-block": "8"}), "module-a3-8-super-pod", placing.shipped()
    )
    assert not isinstance(found, Refusal) and found.node_chips == 8


@pytest.mark.parametrize(
    ("policy", "aware"),
    [
        ("chip4-node4", True), ("chip8-node8", True), ("chip8-node16", True), ("chip2-node16", True),
        ("chip4-node8", True), ("chip4-node16", True), ("chip8-node8-sp", True), ("multilevel", True),
        ("chip2-node16-sp", True), ("chip1-node2", False), ("chip1-node8", False), ("chip1-node16", False),
        ("chip8-node8-ra64-sp", False),
    ],
)  # fmt: skip
def test_some_families_avoid_chips_with_broken_networks(policy: str, aware: bool) -> None:
    product = placing.shipped().product_for_policy(policy, "huawei.com/Ascend910")
    assert product is not None
    found = registry.choose(
        product.spec.resource.replace("*", "huawei.com/npu"), read_options({}, {POLICY: policy}), "", placing.shipped()
    )
    assert not isinstance(found, Refusal) and found.family.network_aware is aware
