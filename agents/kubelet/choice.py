"""Find the pod that an Allocate call is for: kubelet gives only the number of devices. Pure.

Rules: component/ascend-device-plugin/pkg/server/plugin.go (Allocate and its callees).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from belay.agents.kubelet.names import CORE
from belay.agents.kubelet.pods import MAX_TIME, REJECTED, PodFacts
from belay.engine.model.labels import HUAWEI_PREFIX
from belay.engine.model.vnpu import cores as template_cores
from belay.engine.wire.parts import parse_cores


class Wanted(NamedTuple):
    """The scheduler's choice for a pod: chips (physical id, parts), template of a vNPU to create on the first."""

    pod: PodFacts
    chips: tuple[tuple[int, int], ...]
    template: str = ""
    time: int = 0


class Demand(NamedTuple):
    """Kubelet's request: ``resource`` names the annotation; ``cores``: AI cores of one chip, for requests in AI cores;
    ``soft``: the quantity is a share of one chip in percent."""

    resource: str
    quantity: int
    cores: int = 0
    soft: bool = False


def candidates(
    pods: Iterable[PodFacts],
    demand: Demand,
    *,
    times: Mapping[str, int],
    chip_of: Callable[[str], int],
) -> tuple[list[Wanted], list[str]]:
    """Return the pods that the request may be for, the earliest placed first, and why similar pods are excluded.

    ``times`` overrides the annotated times, by UID: MAX_TIME for pods that have received their chips, the scheduler's
    time for pods whose answer never reached kubelet. ``chip_of`` turns a device name of an annotation
    into a physical id.
    """
    found: list[Wanted] = []
    odd: list[str] = []
    for pod in pods:
        if not pod.live or pod.deleting or pod.reason == REJECTED or not _asks(pod, demand.resource):
            continue
        text = pod.annotations.get(demand.resource, "")
        time = times.get(pod.uid, pod.predicate_time)
        if not text or time is None or time == MAX_TIME:
            continue
        try:
            wanted = _read(pod, text, demand, chip_of)
        except ValueError as error:
            odd.append(f"{pod.key}: {error}"[:200])
            continue
        if wanted is not None:
            found.append(wanted._replace(time=time))
    found.sort(key=lambda wanted: (wanted.time, wanted.pod.namespace, wanted.pod.name))
    return found, odd


def _asks(pod: PodFacts, resource: str) -> bool:
    return pod.limits.get(resource, 0) > 0 or pod.initial.get(resource, 0) > 0


def _read(pod: PodFacts, text: str, demand: Demand, chip_of: Callable[[str], int]) -> Wanted | None:
    if demand.resource == HUAWEI_PREFIX + CORE:
        return _cores(pod, text, demand)
    devices = [part.strip() for part in text.split(",") if part.strip()]
    if demand.soft:
        if max(pod.limits.get(demand.resource, 0), pod.initial.get(demand.resource, 0)) != demand.quantity:
            return None
        if len(devices) != 1:
            raise ValueError(f"annotation {demand.resource} names {len(devices)} chips, a share lies on one")
        return Wanted(pod, ((chip_of(devices[0]), demand.quantity),))
    if len(devices) != demand.quantity:
        return None
    chips = sorted({chip_of(device) for device in devices})
    if len(chips) != len(devices):
        raise ValueError(f"annotation {demand.resource} names a chip twice: {text[:80]}")
    return Wanted(pod, tuple((chip, 1) for chip in chips))


def _cores(pod: PodFacts, text: str, demand: Demand) -> Wanted | None:
    """``"0-vir02"`` is one vNPU, ``"0,1"`` are whole chips; the requested cores must match exactly."""
    given = parse_cores(text)
    if given is None:
        raise ValueError(f"annotation {demand.resource} cannot be understood: {text[:80]!r}")
    if given.template:
        size = template_cores(given.template)
        return Wanted(pod, ((given.chips[0], size),), given.template) if size == demand.quantity else None
    if len(given.chips) * demand.cores != demand.quantity:
        return None
    return Wanted(pod, tuple((chip, demand.cores) for chip in given.chips))
