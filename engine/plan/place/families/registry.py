"""The topology family and gang rule of a job, from its policy, selector and labels.

Source: component/ascend-for-volcano/internal/npu/factory.go. Rows come from policies/products; the few names that
MindCluster's code fixes (super pods by ``sp-block``, 300I strategies) have their values here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from belay.engine.model.job_options import JobOptions
from belay.engine.model.labels import ACCELERATOR_TYPE, ASCEND_310, ASCEND_310P, NPU, NPU_310_STRATEGY, SCHEDULE_POLICY
from belay.engine.model.pending_reasons import INVALID_REQUEST, NOT_SUPPORTED
from belay.engine.plan.place.causes import IllegalSize, PolicyNeeded, UnknownAccelerator, UnknownLabel
from belay.engine.plan.place.families.a3 import A3
from belay.engine.plan.place.families.base import Base
from belay.engine.plan.place.families.box16 import Box16
from belay.engine.plan.place.families.card310 import Card310, Chip310
from belay.engine.plan.place.families.duo import DuoCard, DuoChip
from belay.engine.plan.place.families.mesh4 import Mesh4
from belay.engine.plan.place.families.multilevel import WholeNode
from belay.engine.plan.place.families.rack950 import RackNode
from belay.engine.plan.place.families.ring8 import Ring8
from belay.engine.plan.place.families.superpod import SuperPodA3, SuperPodNode
from belay.engine.plan.place.handler import Family, JobRequest, Refusal

if TYPE_CHECKING:
    from belay.engine.documents import Desired, Product

NO_HANDLER: Final = "no policy handler registered, NPU type may be invalid"
DEFAULT_ACCELERATOR: Final = "module"
SMALL_SUPER_POD: Final = "module-a3-8-super-pod"
HALF_ILLEGAL: Final = frozenset({3})


class FamilyRule(NamedTuple):
    """A family with its gang rule, and the sizes per pod that a product allows (empty: any)."""

    family: Family
    topology: str = ""
    node_chips: int = 0
    single: tuple[int, ...] = ()
    distributed: tuple[int, ...] = ()


def choose(
    resource: str,
    options: JobOptions,
    accelerator_type: str,
    desired: Desired,
) -> FamilyRule | Refusal:
    """The rule of a whole-chip job, or why there is none."""
    if resource == ASCEND_310:
        return _of_strategy(options.npu_310_strategy)
    if resource == ASCEND_310P:
        if not options.duo:
            return FamilyRule(Base(64))
        match options.npu_310_strategy:
            case "card":
                return FamilyRule(DuoCard())
            case "chip":
                return FamilyRule(DuoChip())
            case _:
                return FamilyRule(Base(64))
    policy = options.schedule_policy
    product = desired.product_for_policy(policy, resource) if policy else None
    if product is not None:
        return _of_product(product, resource)
    if resource == NPU:
        known = desired.policies_for(resource)
        return Refusal(
            NOT_SUPPORTED,
            f"{NO_HANDLER}: {resource} needs annotation {SCHEDULE_POLICY} with a known policy",
            PolicyNeeded(resource, SCHEDULE_POLICY, policy, known),
        )
    if options.sp_block is not None:
        chips = 8 if accelerator_type == SMALL_SUPER_POD else 16
        return FamilyRule(SuperPodA3(chips), "superpod", chips)
    wanted = accelerator_type or DEFAULT_ACCELERATOR
    if wanted == DEFAULT_ACCELERATOR:
        return FamilyRule(Ring8())
    product = desired.product_for_accelerator_type(wanted)
    if product is None and "card" in wanted:
        return FamilyRule(Base(8))
    if product is None:
        return Refusal(
            NOT_SUPPORTED,
            f"{NO_HANDLER}: accelerator-type {wanted} is not known",
            UnknownAccelerator(ACCELERATOR_TYPE, wanted, desired.known_accelerator_types),
        )
    return _of_product(product, resource)


def _of_strategy(strategy: str) -> FamilyRule | Refusal:
    """The rule of a 300I job; strategies of tasks that differ are joined with "|", which names no rule."""
    if strategy not in ("card", "chip"):
        return Refusal(
            NOT_SUPPORTED,
            f"{NO_HANDLER}: label {NPU_310_STRATEGY}={strategy} is neither card nor chip",
            UnknownLabel(NPU_310_STRATEGY, strategy, ("chip", "card")),
        )
    return FamilyRule(Card310() if strategy == "card" else Chip310())


def check(rule: FamilyRule, job: JobRequest) -> Refusal | None:
    """Why the family or the product's row refuses the sizes of the job's pods, with the sizes that both allow."""
    illegal = rule.family.check(job)
    if illegal is None:
        return legal_sizes(rule, job)
    legal = rule.distributed if job.pods > 1 else rule.single
    if legal and isinstance(illegal.cause, IllegalSize):
        both = tuple(size for size in illegal.cause.legal if size in legal)
        return illegal._replace(cause=illegal.cause._replace(legal=both or legal))
    return illegal


def legal_sizes(rule: FamilyRule, job: JobRequest) -> Refusal | None:
    """Why a pod asks for a size that the product's row does not allow, None when all sizes are legal."""
    legal = rule.distributed if job.pods > 1 else rule.single
    wrong = next((task for task in job.tasks if legal and task.chips and task.chips not in legal), None)
    if wrong is None:
        return None
    sizes = ", ".join(str(size) for size in legal)
    return Refusal(
        INVALID_REQUEST,
        f"expected: job<{job.name}> req npu num should be one of {sizes}, "
        f"actual: task<{wrong.name}> req npu: {wrong.chips}, ",
        IllegalSize(wrong.name, wrong.chips, legal, job.pods),
    )


def _of_product(product: Product, resource: str) -> FamilyRule | Refusal:
    row = product.spec.placement
    single, distributed = tuple(row.single), tuple(row.distributed)
    match row.handler:
        case "base" | "card":
            return FamilyRule(Base(row.max, row.network_aware), "", row.max, single, distributed)
        case "half":
            return FamilyRule(Base(row.max, row.network_aware, HALF_ILLEGAL), "", row.max, single, distributed)
        case "ring8":
            return FamilyRule(Ring8(), "", row.max, single, distributed)
        case "box16":
            return FamilyRule(Box16(), "", row.max, single, distributed)
        case "a3":
            return FamilyRule(A3(16), "", row.max, single, distributed)
        case "mesh4":
            return FamilyRule(Mesh4(row.max), "", row.max, single, distributed)
        case "card310":
            return FamilyRule(Card310(row.max), "", row.max, single, distributed)
        case "chip310":
            return FamilyRule(Chip310(row.max), "", row.max, single, distributed)
        case "duo-card":
            return FamilyRule(DuoCard(row.max), "", row.max, single, distributed)
        case "duo-chip":
            return FamilyRule(DuoChip(row.max), "", row.max, single, distributed)
        case "superpod":
            return FamilyRule(SuperPodA3(row.max), "superpod", row.max)
        case "superpod850":
            return FamilyRule(SuperPodNode(row.max), "superpod", row.max)
        case "rack950":
            return FamilyRule(RackNode(), "rack", row.max)
        case "multilevel":
            return FamilyRule(WholeNode(row.max), "multilevel", row.max)
        case handler:
            return Refusal(
                NOT_SUPPORTED,
                f"{NO_HANDLER}: {resource} under {handler} ({product.name}) is not placed by this version",
            )
