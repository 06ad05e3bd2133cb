"""Which topology family and gang-level rule a job gets, from its policy, selector and labels.

Source: component/ascend-for-volcano/internal/npu/factory.go. Rows come from policies/products; the handful of names
that the reference's code wires itself (super pods by ``sp-block``, 300I strategies) have their values here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from engine.plan.place.a3 import A3
from engine.plan.place.base import Base
from engine.plan.place.box16 import Box16
from engine.plan.place.card310 import Card310, Chip310
from engine.plan.place.duo import DuoCard, DuoChip
from engine.plan.place.mesh4 import Mesh4
from engine.plan.place.multilevel import WholeNode
from engine.plan.place.rack950 import RackNode
from engine.plan.place.ring8 import Ring8
from engine.plan.place.superpod import SuperPodA3, SuperPodNode
from engine.plan.place.verdict import INVALID_REQUEST, NOT_SUPPORTED, Family, Refusal, Shape

if TYPE_CHECKING:
    from engine.documents import Desired, Product

NO_HANDLER: Final = "no policy handler registered, NPU type may be invalid"
DEFAULT_ACCELERATOR: Final = "module"
SMALL_SUPER_POD: Final = "module-a3-8-super-pod"
STRATEGY_LABEL: Final = "npu-310-strategy"
HALF_ILLEGAL: Final = frozenset({3})


class Rule(NamedTuple):
    """A family with its gang-level rule; the legal sizes per pod that a product states, empty for any."""

    family: Family
    topology: str = ""
    node_chips: int = 0
    single: tuple[int, ...] = ()
    distributed: tuple[int, ...] = ()


def choose(
    resource: str,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    accelerator_type: str,
    desired: Desired,
    *,
    policy_key: str,
) -> Rule | Refusal:
    """The rule of a whole-chip job, or why there is none."""
    if resource == "huawei.com/Ascend310":
        return _of_strategy(labels.get(STRATEGY_LABEL, "chip"))
    if resource == "huawei.com/Ascend310P":
        if labels.get("duo") != "true":
            return Rule(Base(64))
        match labels.get(STRATEGY_LABEL, "chip"):
            case "card":
                return Rule(DuoCard())
            case "chip":
                return Rule(DuoChip())
            case _:
                return Rule(Base(64))
    policy = annotations.get(policy_key, "")
    product = desired.product_for_policy(policy, resource) if policy else None
    if product is not None:
        return _of_product(product, resource)
    if resource == "huawei.com/npu":
        return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: {resource} needs annotation {policy_key} with a known policy")
    if annotations.get("sp-block"):
        chips = 8 if accelerator_type == SMALL_SUPER_POD else 16
        return Rule(SuperPodA3(chips), "superpod", chips)
    wanted = accelerator_type or DEFAULT_ACCELERATOR
    if wanted == DEFAULT_ACCELERATOR:
        return Rule(Ring8())
    product = desired.product_for_accelerator_type(wanted)
    if product is None and "card" in wanted:
        return Rule(Base(8))
    if product is None:
        return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: accelerator-type {wanted} is not known")
    return _of_product(product, resource)


def _of_strategy(strategy: str) -> Rule | Refusal:
    """The rule of a 300I job; tasks that differ in their strategy have it joined with "|", which is none."""
    if strategy not in ("card", "chip"):
        return Refusal(NOT_SUPPORTED, f"{NO_HANDLER}: label {STRATEGY_LABEL}={strategy} is neither card nor chip")
    return Rule(Card310() if strategy == "card" else Chip310())


def legal_sizes(rule: Rule, shape: Shape) -> Refusal | None:
    """Whether every pod asks for a size that the product's row allows."""
    legal = rule.distributed if shape.pods > 1 else rule.single
    wrong = next((task for task in shape.tasks if legal and task.want and task.want not in legal), None)
    if wrong is None:
        return None
    sizes = ", ".join(str(size) for size in legal)
    return Refusal(
        INVALID_REQUEST,
        f"expected: job<{shape.name}> req npu num should be one of {sizes}, "
        f"actual: task<{wrong.name}> req npu: {wrong.want}, ",
    )


def _of_product(product: Product, resource: str) -> Rule | Refusal:
    row = product.spec.placement
    single, distributed = tuple(row.single), tuple(row.distributed)
    match row.handler:
        case "base" | "card":
            return Rule(Base(row.max, row.network_aware), "", row.max, single, distributed)
        case "half":
            return Rule(Base(row.max, row.network_aware, HALF_ILLEGAL), "", row.max, single, distributed)
        case "ring8":
            return Rule(Ring8(), "", row.max, single, distributed)
        case "box16":
            return Rule(Box16(), "", row.max, single, distributed)
        case "a3":
            return Rule(A3(16), "", row.max, single, distributed)
        case "mesh4":
            return Rule(Mesh4(row.max), "", row.max, single, distributed)
        case "card310":
            return Rule(Card310(row.max), "", row.max, single, distributed)
        case "chip310":
            return Rule(Chip310(row.max), "", row.max, single, distributed)
        case "duo-card":
            return Rule(DuoCard(row.max), "", row.max, single, distributed)
        case "duo-chip":
            return Rule(DuoChip(row.max), "", row.max, single, distributed)
        case "superpod":
            return Rule(SuperPodA3(row.max), "superpod", row.max)
        case "superpod850":
            return Rule(SuperPodNode(row.max), "superpod", row.max)
        case "rack950":
            return Rule(RackNode(), "rack", row.max)
        case "multilevel":
            return Rule(WholeNode(row.max), "multilevel", row.max)
        case handler:
            return Refusal(
                NOT_SUPPORTED,
                f"{NO_HANDLER}: {resource} under {handler} ({product.name}) is not placed by this version",
            )
