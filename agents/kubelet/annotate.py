"""The plugin's annotations of pods: the ids that kubelet chose, the real devices and their addresses. Pure.

Source: component/ascend-device-plugin/pkg/server/manager.go (updatePodAnnotation),
docs/zh/scheduling/06_api/12_k8s.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from belay.agents.kubelet import names
from belay.agents.kubelet.ledger import Grant
from belay.agents.kubelet.pods import PodFacts
from belay.agents.kubelet.settings import DUO
from belay.agents.node.state import NodeState
from belay.engine.model.labels import ASCEND_REAL, HUAWEI_PREFIX, INFER_CARD_TYPE, KUBELET_DEVICES, PREDICATE_TIME
from belay.engine.wire.podannotations import (
    PREDICATE_TIME_USED,
    Configuration,
    Device,
    configuration_key,
)

NO_ADDRESS: Final = "-1"
VIRTUAL_ADDRESS: Final = "127.0.0.1"


def wanted(
    grants: Sequence[Grant], pods: Mapping[str, PodFacts], state: NodeState, host_ip: str
) -> dict[str, dict[str, str]]:
    """Return UID → annotations that a live pod lacks or has with another value."""
    out: dict[str, dict[str, str]] = {}
    for uid in {g.meant for g in grants if g.meant and not g.lost}:
        if uid in pods and pods[uid].annotations.get(PREDICATE_TIME):
            out.setdefault(uid, {})[PREDICATE_TIME] = PREDICATE_TIME_USED
    holders: dict[str, list[Grant]] = {}
    for grant in grants:
        if grant.confirmed and not grant.lost and grant.uid in pods:
            holders.setdefault(grant.uid, []).append(grant)
    for uid, own in holders.items():
        out.setdefault(uid, {}).update(_of(own, pods[uid], state, host_ip))
    for uid, text in _moved(grants, pods, holders.keys()):
        out.setdefault(uid, {})[ASCEND_REAL] = text
    lacking = {
        uid: {key: text for key, text in sorted(found.items()) if pods[uid].annotations.get(key) != text}
        for uid, found in sorted(out.items())
        if pods[uid].live
    }
    return {uid: found for uid, found in lacking.items() if found}


def _of(grants: Sequence[Grant], pod: PodFacts, state: NodeState, host_ip: str) -> dict[str, str]:
    real = {name for grant in grants for name in grant.real}
    ids = {name for grant in grants for name in grant.ids}
    found = {ASCEND_REAL: names.listed(real)}
    # kubelet has released these ids: the annotations written before stay
    if ids:
        found[KUBELET_DEVICES] = names.listed(ids)
    resource = grants[0].resource
    if state.machine.training or state.machine.labels.get(INFER_CARD_TYPE) == DUO:
        key = configuration_key(resource)
        if pod.annotations.get(ASCEND_REAL) != found[ASCEND_REAL] or key not in pod.annotations:
            found[key] = configuration(grants, pod, state, host_ip)
    return found


def configuration(grants: Iterable[Grant], pod: PodFacts, state: NodeState, host_ip: str) -> str:
    """Return the configuration annotation of a pod: its chips and their addresses."""
    rows = []
    by_id = {chip.id: chip for chip in state.chips}
    machine = state.machine
    for grant in grants:
        for number, _ in grant.chips:
            chip = by_id.get(number)
            virtual = bool(grant.vdev)
            address = VIRTUAL_ADDRESS if virtual else (chip.ip if chip is not None else "") or NO_ADDRESS
            super_id = chip.super_device_id if chip is not None else -2
            levels = tuple(state.levels.get(number, ())) if not virtual else ()
            rows.append(
                Device(str(number), address, str(super_id) if machine.training or super_id >= 0 else "", levels)
            )
    newer = machine.generation.unified_bus
    value = Configuration(
        pod_name=pod.name,
        server_id=pod.uid,
        server_ip=host_ip,
        host_ip=host_ip,
        super_pod_id=machine.super_pod_id,
        rack_id=machine.rack_id if newer and machine.rack_id is not None else 0,
        server_index=str(machine.server_index),
        devices=tuple(sorted({row.device_id: row for row in rows}.values(), key=lambda row: int(row.device_id))),
    )
    return msgspec.json.encode(value).decode()


def _moved(grants: Sequence[Grant], pods: Mapping[str, PodFacts], holding: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return annotations of pods whose chips kubelet gave to another pod of the same size: they get that pod's chips.

    Without them, the first pod's chips would appear to have two owners and the other pod's none.
    """
    has = set(holding)
    used = {grant.meant for grant in grants if grant.meant and not grant.lost}
    granted = {grant.uid for grant in grants}
    granted_by_choice = {grant.uid for grant in grants if grant.meant}

    waiting: dict[tuple[str, int], list[PodFacts]] = {}
    spare: dict[tuple[str, int], list[PodFacts]] = {}
    for pod in pods.values():
        resource = _chosen_resource(pod)
        if not resource:
            continue
        size = resource, pod.limits[resource]
        if pod.uid in used and pod.uid not in has and pod.uid not in granted:
            waiting.setdefault(size, []).append(pod)
        elif pod.uid in has and pod.uid not in used and pod.uid in granted_by_choice:
            spare.setdefault(size, []).append(pod)

    for size in sorted(waiting.keys() & spare.keys()):
        for pod, other in zip(sorted(waiting[size], key=_age), sorted(spare[size], key=_age), strict=False):
            yield pod.uid, other.annotations[size[0]]


def _chosen_resource(pod: PodFacts) -> str:
    """The resource of which a scheduler has chosen a live pod's chips; empty for none, and for parts of chips."""
    if not pod.live or pod.deleting:
        return ""
    for resource in pod.limits:
        if resource.startswith(HUAWEI_PREFIX) and resource in pod.annotations:
            return "" if resource == HUAWEI_PREFIX + names.CORE else resource
    return ""


def _age(pod: PodFacts) -> tuple[int, str, str]:
    return pod.predicate_time or 0, pod.namespace, pod.name
