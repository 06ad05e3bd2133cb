"""What a pod holds of its node, per resource: the sum that kube-scheduler and kubelet count.

Containers and sidecars together, or the largest init container with the sidecars before it, whichever is more; in
their place what the pod asks for as a whole; and its overhead. While a resize in place is under way, the most of what
is asked for, what kubelet has allotted and what runs. Source: k8s.io/component-helpers/resource (PodRequests of
Kubernetes 1.37); Kubernetes, "Resize CPU and Memory Resources assigned to Containers".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, Final

from belay.engine.model.quantities import amount
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.wire.errors import WireError

MAX_RESOURCES: Final = 256
_POD_LEVEL: Final = frozenset({"cpu", "memory"})
#: Where a container's status says what it was given: allotted by kubelet, or what it runs with.
ALLOTTED, RUNS = "allotted", "runs"
_READINGS: Final = (ALLOTTED, RUNS)

Amounts = dict[str, int]


def of(where: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Amounts:
    """The amounts of a pod, ``cpu`` in milli-cores, ``memory`` in bytes.

    Raises:
        WireError: a quantity cannot be read; ``where`` names the pod.
    """
    asked = _together(spec, lambda container: of_container(where, container))
    resize = _Resize(where, spec, status)
    total = resize.of_containers(asked) if resize.under_way else asked

    total |= _of_the_pod(where, spec, total, resize)
    _add(total, amounts(where, "spec.overhead", spec.get("overhead")))
    return total


def of_container(where: str, container: Mapping[str, Any]) -> Amounts:
    """What a container asks for; a limit stands for what it does not request."""
    resources = nested_map(container, "resources")
    merged = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return amounts(where, f"spec.containers[{container.get('name', '')}].resources", merged)


def stays(container: Mapping[str, Any]) -> bool:
    """Whether an init container is a sidecar, which runs beside the containers."""
    return container.get("restartPolicy") == "Always"


def amounts(where: str, field: str, value: object) -> Amounts:
    """A ``ResourceList``; anything else counts as empty.

    Raises:
        WireError: a quantity cannot be read, is negative, or there are too many.
    """
    if not isinstance(value, dict):
        return {}
    if len(value) > MAX_RESOURCES:
        raise WireError(where, field, f"names {len(value)} resources, the limit is {MAX_RESOURCES}")
    out = {}
    for resource, quantity in value.items():
        try:
            out[resource] = amount(resource, quantity)
        except ValueError as error:
            raise WireError(where, f"{field}[{resource}]", str(error)) from error
        if out[resource] < 0:
            raise WireError(where, f"{field}[{resource}]", f"{str(quantity)[:40]!r} is negative")
    return out


class _Resize:
    """What the status of a bound pod says of resources that were given: ``under_way`` where that is not what is asked
    for.
    """

    def __init__(self, where: str, spec: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        self._where, self._spec, self._status = where, spec, status
        self.under_way = bool(spec.get("nodeName")) and self._differs()

    def of_containers(self, asked: Amounts) -> Amounts:
        """The most of what the containers ask for together, were allotted together, and run with together."""
        allotted, runs = self._of_whole_pod()
        if not (allotted and runs):
            allotted, runs = (_together(self._spec, partial(self._of_one, first=first)) for first in _READINGS)
        return self._most(asked, allotted, runs)

    def of_the_pod(self, asked: Amounts) -> Amounts:
        """The same for the resources of the pod as a whole."""
        return self._most(asked, *self._of_whole_pod()) if self._status.get("resources") else asked

    def _most(self, asked: Amounts, *given: Amounts) -> Amounts:
        """What is asked for will never be given where kubelet calls it infeasible: then only what is given counts."""
        total: Amounts = {}
        for one in given if self._infeasible else (asked, *given):
            _raise_to(total, one)
        return total

    def _of_whole_pod(self) -> tuple[Amounts, Amounts]:
        runs = nested_map(self._status, "resources").get("requests")
        return (
            amounts(self._where, "status.allocatedResources", self._status.get("allocatedResources")),
            amounts(self._where, "status.resources.requests", runs),
        )

    def _of_one(self, container: Mapping[str, Any], first: str) -> Amounts:
        """What one container was given, by the ``first`` of both readings, else by what kubelet has allotted."""
        row = self._rows.get(str(container.get("name")), {})
        for reading in (first, ALLOTTED):
            given = nested_map(row, "resources").get("requests") if reading == RUNS else row.get("allocatedResources")
            if given is not None:
                return amounts(self._where, "status.containerStatuses", given)
        return {} if self._infeasible else of_container(self._where, container)

    def _differs(self) -> bool:
        if self._status.get("resources") or self._status.get("allocatedResources"):
            return True
        rows = self._rows
        for part in ("containers", "initContainers"):
            for container in self._spec.get(part) or ():
                row = rows.get(str(container.get("name")), {})
                asked = nested_map(container, "resources").get("requests")
                told = (row.get("allocatedResources"), nested_map(row, "resources").get("requests"))
                if any(one is not None and one != asked for one in told):
                    return True
        return False

    @cached_property
    def _rows(self) -> dict[str, Mapping[str, Any]]:
        return {
            str(row.get("name")): row
            for part in ("containerStatuses", "initContainerStatuses")
            for row in nested_list(self._status, part)
            if isinstance(row, dict) and (row.get("resources") or row.get("allocatedResources"))
        }

    @cached_property
    def _infeasible(self) -> bool:
        return any(
            isinstance(row, dict) and row.get("type") == "PodResizePending" and row.get("reason") == "Infeasible"
            for row in nested_list(self._status, "conditions")
        )


def _together(spec: Mapping[str, Any], held: Callable[[Mapping[str, Any]], Amounts]) -> Amounts:
    """What a pod's containers hold together, each as ``held`` says."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        _add(total, held(container))

    beside: Amounts = {}
    largest: Amounts = {}
    for container in spec.get("initContainers") or ():
        alone = held(container)
        if stays(container):
            _add(total, alone)
            _add(beside, alone)
            _raise_to(largest, beside)
        else:
            # init containers run one by one, each beside the sidecars that came before it
            _raise_to(largest, {**beside, **{key: value + beside.get(key, 0) for key, value in alone.items()}})

    _raise_to(total, largest)
    return total


def _of_the_pod(where: str, spec: Mapping[str, Any], of_containers: Amounts, resize: _Resize) -> Amounts:
    """What ``spec.resources`` asks for in place of the sum over the containers: CPU, memory and huge pages only.

    A limit stands for what neither the pod nor a container requests, as the API server fills it in. Source:
    pkg/apis/core/v1/defaults.go (defaultPodRequests).
    """
    resources = nested_map(spec, "resources")
    if not resources:
        return {}
    requests = amounts(where, "spec.resources.requests", resources.get("requests"))
    limits = amounts(where, "spec.resources.limits", resources.get("limits"))
    merged = {key: value for key, value in limits.items() if key not in of_containers} | requests
    if resize.under_way and requests:
        merged = resize.of_the_pod(merged)
    return {key: value for key, value in merged.items() if key in _POD_LEVEL or key.startswith("hugepages-")}


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for key, value in more.items():
        total[key] = total.get(key, 0) + value


def _raise_to(total: Amounts, least: Mapping[str, int]) -> None:
    for key, value in least.items():
        total[key] = max(total.get(key, 0), value)


__all__ = ["MAX_RESOURCES", "Amounts", "amounts", "of", "of_container", "stays"]
