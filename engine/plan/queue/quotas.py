"""Queues of Git whose capability is below what their jobs use: running pods stay, and no new one is placed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from belay.engine.documents import Desired
from belay.engine.model.codes.passes import PassCode
from belay.engine.model.diagnostics import Diagnostic, Origin
from belay.engine.plan.queue.queues import QUEUE_APIS, Queues, read_queue


class _Quota(NamedTuple):
    """What Git lets a queue use, and where it says so."""

    queue: str
    capability: Mapping[str, int]
    object: str
    origin: Origin
    field: str


def findings(desired: Desired, queues: Queues) -> Iterator[Diagnostic]:
    """A warning for each resource of which a queue's jobs use more than Git lets them."""
    for quota in _declared(desired, queues):
        if not quota.capability:
            continue
        used = queues.used(quota.queue)
        for resource, most in sorted(quota.capability.items()):
            beyond = used.get(resource, 0) - most
            if beyond > 0:
                yield _finding(quota, resource, most, beyond)


def _declared(desired: Desired, queues: Queues) -> Iterator[_Quota]:
    settings = desired.settings_in_force
    for index, queue in enumerate(settings.document.spec.queues if settings is not None else ()):
        field = f"spec.queues[{index}].capability"
        state = queues.by_name.get(queue.name)
        if settings is not None and state is not None:
            name = f"{settings.document.KIND}/{settings.document.name}"
            yield _Quota(queue.name, state.capability, name, settings.origin, field)

    named = {queue.name for queue in desired.settings.queues}
    for manifest in desired.manifests:
        if manifest.key.kind == "Queue" and manifest.key.api_version in QUEUE_APIS and manifest.key.name not in named:
            # as Git has it, also in the pass that has yet to change the object
            capability = read_queue(manifest.key.name, manifest.body).capability
            yield _Quota(manifest.key.name, capability, str(manifest.key), manifest.origin, "spec.capability")


def _finding(quota: _Quota, resource: str, most: int, beyond: int) -> Diagnostic:
    text = (
        f"queue {quota.queue} may use {most} {resource}, but its jobs use {most + beyond}: running pods stay, and "
        f"until {beyond} are given back no pod that asks for them is placed, nor one that restarts; raise the "
        "capability or let jobs end"
    )
    origin = quota.origin
    place = (origin.file, origin.line, origin.column)
    return Diagnostic("warning", quota.object, *place, quota.field, text, PassCode.QUEUE_BEYOND)
