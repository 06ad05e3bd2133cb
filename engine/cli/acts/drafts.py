"""New documents from a few words: `belay new pool|queue|layout|policy|job`, with what the repository already knows.

Each draft is what the task pages of the documentation show, so that a person can go on from it. Resource, selector and
device names come from the product; words that do not fit are refused with those that do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from belay.engine.cli.acts.adoption import as_text
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.placed_documents import documents
from belay.engine.documents.scalars import NAME_PATTERN
from belay.engine.errors import InputError
from belay.engine.model.labels import (
    APP_LABEL,
    ASCEND_310,
    ASCEND_310P,
    ASCEND_910,
    FAULT_SCHEDULING,
    FRAMEWORK_LABEL,
    GROUP_QUEUE_NAME,
    RING_CONTROLLER,
)
from belay.engine.model.wording import counted

if TYPE_CHECKING:
    from belay.engine.documents import Product
    from belay.engine.documents.vnpu import VNPUTemplates

Json = dict[str, Any]
KINDS: Final = ("AscendJob", "Deployment", "Job")
_OLD_TRAINING: Final = ("atlas-800-9000", "atlas-300t")
#: Without it a job's pods stay on faulty hardware, and on nodes that are drained.
_MOVED: Final = {FAULT_SCHEDULING: "grace"}
_IMAGE: Final = "registry.example.org/train:1"


def pool(
    files: Mapping[str, bytes],
    name: str,
    labels: Mapping[str, str],
    product: str | None,
    products: Mapping[str, Product],
) -> RepositoryEdit:
    """A NodePool of the nodes with these labels; without labels those by which the product is known."""
    known = _product(product, products) if product else None
    if not labels and known is not None and known.spec.node_labels:
        labels = known.spec.node_labels[0]
    if not labels:
        raise InputError("there is nothing that selects nodes", where=name, hint="Give --label KEY=VALUE, or --product")
    spec: Json = {"selector": {"matchLabels": dict(labels)}, **({"product": product} if product else {})}
    return _added(files, "desired/pools", name, [_belay("NodePool", name, spec)])


def queue(files: Mapping[str, bytes], name: str, capability: Mapping[str, str], weight: int) -> RepositoryEdit:
    """A queue with a share (``weight``) and, for some resources, a limit (``capability``)."""
    spec: Json = {"weight": weight, "reclaimable": True, **({"capability": dict(capability)} if capability else {})}
    body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
    return _added(files, "desired/queues", name, [body])


def layout(
    files: Mapping[str, bytes], name: str, where: str, mode: str, cuts: Mapping[str, Sequence[str]]
) -> RepositoryEdit:
    """A VNPULayout: how the chips of a pool's nodes are cut; ``cuts`` names templates by chips, for ``static``."""
    spec: Json = {"pool": where, "mode": mode}
    if cuts:
        spec["chips"] = [
            {"chips": chips, **({"templates": list(templates)} if templates else {})}
            for chips, templates in cuts.items()
        ]
    return _added(files, "desired/layouts", name, [_belay("VNPULayout", name, spec)])


def policy(
    files: Mapping[str, bytes],
    name: str,
    levels: Mapping[str, str],
    pools: Sequence[str],
    mode: str = "",
    frequency: Sequence[Json] = (),
    duration: Sequence[Json] = (),
) -> RepositoryEdit:
    """A FaultPolicy: other levels for codes, rules of how often and how long, in some pools or in all.

    Raises:
        InputError: it would decide nothing.
    """
    if not (levels or frequency or duration):
        raise InputError("it would decide nothing", where=name, hint="Give --level, --frequency or --duration")
    spec: Json = {"scope": {"pools": list(pools)}} if pools else {}
    spec |= {"mode": mode} if mode else {}
    spec |= {"levels": dict(levels)} if levels else {}
    spec |= {"frequency": list(frequency)} if frequency else {}
    spec |= {"duration": list(duration)} if duration else {}
    return _added(files, "desired/faults", name, [_belay("FaultPolicy", name, spec)])


def job(
    files: Mapping[str, bytes],
    name: str,
    kind: str,
    product: Product,
    *,
    chips: int,
    resource: str = "",
    pods: int,
    namespace: str,
    image: str | None,
    queue: str | None,
    priority: str | None,
) -> RepositoryEdit:
    """A job: an AscendJob for training, a Deployment for services, or a Job of Kubernetes.

    Its pods ask for ``chips`` whole chips, or for one vNPU where ``resource`` names its size.

    Raises:
        InputError: a pod asks for more chips than a server of the product has, or training for a vNPU.
    """
    if resource and kind == "AscendJob":
        raise InputError("an AscendJob runs on whole chips", where=name, hint="Add --kind Deployment, or --kind Job")
    if chips > product.spec.chips_per_node:
        most = product.spec.chips_per_node
        raise InputError(
            f"a pod asks for {counted(chips, 'chip')}, a server of {product.name} has {most}",
            where=name,
            hint="Ask for fewer with --chips, and for more pods with --pods",
        )

    make = {"AscendJob": _ascend_job, "Deployment": _deployment, "Job": _plain_job}[kind]
    template = _template(name, product, {resource or product.spec.resource: chips}, image or _IMAGE)
    if priority and kind != "AscendJob":
        template["spec"]["priorityClassName"] = priority
    bodies = make(name, namespace, template, pods, queue, priority)
    return _added(files, "desired/inference" if kind == "Deployment" else "desired/jobs", name, bodies)


def product_of(name: str | None, products: Mapping[str, Product], pools: Sequence[str]) -> Product:
    """The product that is named, or the one that all pools of the repository name.

    Raises:
        InputError: there is none of this name, or none follows from the pools.
    """
    if name is not None:
        return _product(name, products)
    if len(set(pools)) == 1:
        return _product(pools[0], products)
    names = sorted(set(pools)) or sorted(products)
    raise InputError("it is not clear for which servers", where="--product", hint=f"Name one: {', '.join(names)}")


def resource_of(template: str, product: Product, families: Mapping[str, VNPUTemplates]) -> str:
    """The resource that a pod asks for to get one vNPU of this template on servers of this product.

    Raises:
        InputError: no sizes of vNPUs follow from the product, or none has this name.
    """
    family = families.get(product.spec.vnpu.family or "")
    if family is None or not family.spec.static:
        raise InputError("no sizes of vNPUs follow from the product", where=product.name, hint="Give --chips")
    found = family.by_name.get(template)
    if found is None:
        raise InputError(
            f"{product.name} has no such template", where=template, hint=f"Its own: {', '.join(family.by_name)}"
        )
    return f"{family.spec.resource_prefix}{found.suffix}"


def _product(name: str, products: Mapping[str, Product]) -> Product:
    found = products.get(name)
    if found is None:
        near = difflib.get_close_matches(name, products, 1)
        hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(sorted(products))}"
        raise InputError("there is no such product", where=name, hint=hint)
    return found


def _ascend_job(
    name: str, namespace: str, template: Json, pods: int, queue: str | None, priority: str | None
) -> list[Json]:
    labels = dict(template["metadata"]["labels"])
    labels.pop(APP_LABEL)
    template = {**template, "metadata": {"labels": labels}} if labels else {"spec": template["spec"]}
    rings = {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": f"rings-config-{name}", "namespace": namespace, **({"labels": labels} if labels else {})},
        "data": {"hccl.json": '{"status":"initializing"}'},
    }  # fmt: skip
    scheduling: Json = {"minAvailable": pods, "queue": queue or "default"}
    if priority:
        scheduling["priorityClass"] = priority

    def replica(count: int) -> Json:
        return {"replicas": count, "restartPolicy": "Never", "template": template}

    roles = {"Master": replica(1), **({"Worker": replica(pods - 1)} if pods > 1 else {})}
    spec = {"schedulerName": "volcano", "runPolicy": {"schedulingPolicy": scheduling}, "successPolicy": "AllWorkers",
            "replicaSpecs": roles}  # fmt: skip
    about = {FRAMEWORK_LABEL: "pytorch", **labels, **_MOVED}
    metadata = {"name": name, "namespace": namespace, "labels": about}
    return [rings, {"apiVersion": "mindxdl.gitee.com/v1", "kind": "AscendJob", "metadata": metadata, "spec": spec}]


def _deployment(
    name: str, namespace: str, template: Json, pods: int, queue: str | None, priority: str | None
) -> list[Json]:
    own = _moved(_queued(template, queue))
    spec = {"replicas": pods, "selector": {"matchLabels": {APP_LABEL: name}}, "template": own}
    metadata = {"name": name, "namespace": namespace, "labels": template["metadata"]["labels"]}
    return [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}]


def _plain_job(
    name: str, namespace: str, template: Json, pods: int, queue: str | None, priority: str | None
) -> list[Json]:
    template["spec"]["restartPolicy"] = "Never"
    spec: Json = {"parallelism": pods, "completions": pods, "completionMode": "Indexed",
                  "template": _moved(_queued(template, queue))}  # fmt: skip
    metadata = {"name": name, "namespace": namespace, "labels": template["metadata"]["labels"]}
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}]


def _moved(template: Json) -> Json:
    """The template of pods that leave faulty hardware; their owner makes them again elsewhere."""
    metadata = template["metadata"]
    return {**template, "metadata": {**metadata, "labels": {**metadata["labels"], **_MOVED}}}


def _queued(template: Json, queue: str | None) -> Json:
    if queue is None:
        return template
    metadata = {**template["metadata"], "annotations": {GROUP_QUEUE_NAME: queue}}
    return {**template, "metadata": metadata}


def _template(name: str, product: Product, resources: Mapping[str, int], image: str) -> Json:
    labels = product.spec.node_labels
    container = {
        "name": "ascend",
        "image": image,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
    }
    spec: Json = {"schedulerName": "volcano", **({"nodeSelector": dict(labels[0])} if labels else {}),
                  "containers": [container]}  # fmt: skip
    return {"metadata": {"labels": {APP_LABEL: name, **_ring(product)}}, "spec": spec}


def _ring(product: Product) -> dict[str, str]:
    """The label by which the job controllers of MindCluster know the kind of chips."""
    old = product.name.startswith(_OLD_TRAINING)
    kinds = {ASCEND_910: "ascend-910" if old else "ascend-910b", ASCEND_310P: "ascend-310P",
             ASCEND_310: "ascend-310"}  # fmt: skip
    found = kinds.get(product.spec.resource)
    return {RING_CONTROLLER: found} if found else {}


def _belay(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _added(files: Mapping[str, bytes], folder: str, name: str, bodies: Sequence[Json]) -> RepositoryEdit:
    if not re.fullmatch(NAME_PATTERN, name):
        # the name makes the file's, which must not lead out of the folder
        raise InputError("this is not an RFC 1123 name: lower-case letters, digits, '-' and '.'", where=name)
    kinds = {str(body["kind"]) for body in bodies}
    for one in documents(files):
        if one.kind in kinds and one.name.rpartition("/")[2] == name:
            raise InputError("the repository declares it already", where=f"{one.file}: {one.kind}/{one.name}")
    file = f"{folder}/{name}.yaml"
    if file in files:
        raise InputError("this file exists", where=file, hint="Choose another name")
    text = "---\n".join(as_text(body) for body in bodies)
    return RepositoryEdit({file: text.encode()}, f"Add {bodies[-1]['kind']} {name}")
