"""What the pods of a manifest ask of Belay, with its place: what is checked once all documents are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from belay.engine.documents.pods import NPU_RESOURCE
from belay.engine.documents.problems import Path
from belay.engine.model.labels import (
    ACCELERATOR_TYPE,
    ELASTIC_SCHEDULING,
    NPU_CORE,
    PROCESS_RECOVER_ENABLE,
    SCHEDULE_POLICY,
    SHARE_CORES,
)

#: Kinds of jobs whose operator names a scheduler for pods that name none.
_WITH_SCHEDULER = frozenset({("mindxdl.gitee.com/v1", "AscendJob"), ("batch.volcano.sh/v1alpha1", "Job")})


class PodUse(NamedTuple):
    """The NPUs that one pod of a manifest asks for, or the job's wishes where it asks for none.

    ``scheduler`` is None if the job's operator chooses one, empty where Kubernetes' own scheduler does.
    ``recovery`` and ``elastic``: features that the job's labels switch on;
    ``shared``: the number is a share of a chip in percent.
    """

    api_version: str
    kind: str
    resource: str
    chips: int
    policy: str
    accelerator: str
    scheduler: str | None
    recovery: bool
    elastic: bool
    shared: bool


def pod_uses(body: Mapping[str, Any]) -> Iterator[tuple[Path, PodUse]]:
    """Every container of a manifest that asks for NPUs, with the path of its amount."""
    labels = _part(body, "metadata", "labels")
    for path, template in _templates(body):
        spec = _part(template, "spec")
        metadata = _part(template, "metadata")
        policy = _part(metadata, "annotations").get(SCHEDULE_POLICY)
        policy = policy or _part(body, "metadata", "annotations").get(SCHEDULE_POLICY)
        marks = {**labels, **_part(metadata, "labels")}
        for where, resource, count in _amounts(spec):
            use = PodUse(
                api_version=str(body.get("apiVersion")),
                kind=str(body.get("kind")),
                resource=resource,
                chips=count,
                policy=str(policy or ""),
                accelerator=str(_part(spec, "nodeSelector").get(ACCELERATOR_TYPE) or ""),
                scheduler=_scheduler(body, spec),
                recovery=marks.get(PROCESS_RECOVER_ENABLE) == "on",
                elastic=marks.get(ELASTIC_SCHEDULING) == "on",
                shared=SHARE_CORES in marks,
            )
            yield (*path, "spec", *where), use


def _scheduler(body: Mapping[str, Any], spec: Mapping[str, Any]) -> str | None:
    named = spec.get("schedulerName") or _part(body, "spec").get("schedulerName")
    if named:
        return str(named)
    return None if (body.get("apiVersion"), body.get("kind")) in _WITH_SCHEDULER else ""


def _templates(body: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The pod templates of a manifest; a pod is its own."""
    if body.get("kind") == "Pod":
        yield (), body
        return
    spec = _part(body, "spec")
    if isinstance(spec.get("template"), dict):
        yield ("spec", "template"), spec["template"]
    for part in ("replicaSpecs", "tasks"):
        for name, one in _pairs(spec.get(part)):
            if isinstance(one, dict) and isinstance(one.get("template"), dict):
                yield ("spec", part, name, "template"), one["template"]


def _amounts(spec: Mapping[str, Any]) -> Iterator[tuple[Path, str, int]]:
    containers = spec.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        for side in ("limits", "requests"):
            amounts = _part(container, "resources", side)
            found = [(name, _number(value)) for name, value in amounts.items() if _is_npu(name) and _number(value)]
            for name, count in found:
                yield ("containers", index, "resources", side, name), name, count
            if found:
                break  # the other side repeats it


def _is_npu(name: object) -> bool:
    return isinstance(name, str) and (name == NPU_CORE or NPU_RESOURCE.match(name) is not None)


def _number(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


def _part(holder: object, *keys: str) -> Mapping[str, Any]:
    found = holder
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _pairs(several: object) -> Iterable[tuple[str | int, Any]]:
    if isinstance(several, dict):
        return several.items()
    return enumerate(several) if isinstance(several, list) else ()
