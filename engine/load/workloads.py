"""Whether the pods that manifests declare could ever run: what the documents alone show, as warnings.

A warning refuses nothing: running pods keep what they have, and who reads it mends the text before the next restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from belay.engine.documents import Product
from belay.engine.load.pod_uses import PodUse
from belay.engine.load.references import KnownNames
from belay.engine.model.labels import ASCEND_910, ELASTIC_SCHEDULING, NPU_CORE, PROCESS_RECOVER_ENABLE
from belay.engine.model.wording import counted

#: The kind of servers with two rings of four chips, which needs no product.
_PLACED_WITHOUT_PRODUCT = ("module",)
_ELASTIC_KIND = ("batch.volcano.sh/v1alpha1", "Job")


def check_use(use: PodUse, names: KnownNames) -> Iterator[str]:
    """Every reason, in words, for which such a pod cannot run as it is written."""
    for check in (_unknown_server, _too_many_chips, _foreign_scheduler, _missing_vnpu, _mixed_features, _idle_elastic):
        if text := check(use, names):
            yield text


def _product(use: PodUse, names: KnownNames) -> Product | None:
    """The product whose servers the pod asks for: by its policy, else by its accelerator-type."""
    rows = sorted(names.products.items())
    offers = [product for _, product in rows if product.spec.resource in (use.resource, "*")]
    if use.policy:
        return next((product for product in offers if use.policy in product.spec.schedule_policies), None)
    return next((product for product in offers if use.accelerator in product.spec.accelerator_types), None)


def _unknown_server(use: PodUse, names: KnownNames) -> str:
    """Whole Ascend910 chips are placed by accelerator-type where the job names no policy."""
    wanted = use.accelerator
    if use.policy or use.resource != ASCEND_910 or wanted in ("", *_PLACED_WITHOUT_PRODUCT) or "card" in wanted:
        return ""
    if any(kind == "Product" for kind, _ in names.broken):
        return ""  # it may have this one

    known = sorted({kind for product in names.products.values() for kind in product.spec.accelerator_types})
    if wanted in known:
        return ""
    close = get_close_matches(wanted, known, n=1)
    meant = f"did you mean {close[0]}?" if close else f"the known ones are {', '.join(known)}"
    return (
        f"nodeSelector accelerator-type: {wanted} is the kind of no server that is known, so no pod is placed: {meant}"
    )


def _too_many_chips(use: PodUse, names: KnownNames) -> str:
    product = _product(use, names) if use.policy or use.accelerator else None
    if product is None or use.shared or "-" in use.resource:
        return ""
    most = product.spec.chips_per_node
    if use.chips <= most:
        return ""
    return (
        f"asks for {counted(use.chips, 'chip')} a pod, but a server of {product.name} has {most}, so no new pod can be "
        f"placed: ask for at most {most} a pod, and for more pods"
    )


def _foreign_scheduler(use: PodUse, names: KnownNames) -> str:
    if use.scheduler is None or use.scheduler in names.schedulers:
        return ""
    who = (
        f"scheduler {use.scheduler}" if use.scheduler else "Kubernetes' default scheduler, as schedulerName is missing"
    )
    return (
        f"asks for NPUs under {who}: Belay does not place such pods and knows of their chips only afterwards; "
        f"write schedulerName: {names.schedulers[0]}"
    )


def _missing_vnpu(use: PodUse, names: KnownNames) -> str:
    """Pre-cut vNPUs come from layouts; where a repository declares none, they may be cut by hand."""
    _, _, suffix = use.resource.partition("-")
    if not suffix or use.resource == NPU_CORE or not names.layouts:
        return ""
    cut = {template for layout in names.layouts for row in layout.spec.chips for template in row.templates}
    template = next((t.name for f in names.templates.values() for t in f.spec.templates if t.suffix == suffix), "")
    if not template:
        known = sorted(t.suffix for f in names.templates.values() for t in f.spec.templates)
        return f"no vNPU template makes {use.resource}: known ends are {', '.join(dict.fromkeys(known))}"
    if template in cut:
        return ""
    shown = f"layouts cut {', '.join(sorted(cut))}" if cut else "no layout cuts chips in advance"
    return f"no VNPULayout cuts {template}, which makes {use.resource} ({shown}): add it, or ask for another"


def _mixed_features(use: PodUse, names: KnownNames) -> str:
    if use.resource != NPU_CORE or not (use.recovery or use.elastic):
        return ""
    feature = PROCESS_RECOVER_ENABLE if use.recovery else ELASTIC_SCHEDULING
    what = f"{feature} is for training on whole chips, {NPU_CORE} for inference on parts of them"
    return f"{what}: a job can have one of both"


def _idle_elastic(use: PodUse, names: KnownNames) -> str:
    if not use.elastic or (use.api_version, use.kind) == _ELASTIC_KIND:
        return ""
    what = f"{use.kind} of {use.api_version}"
    return (
        f"label elastic-scheduling has no effect on {what}: it is read on {' of '.join(reversed(_ELASTIC_KIND))} only"
    )
