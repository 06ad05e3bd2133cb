"""Annotations of pods that schedulers, device plugins and operators exchange: chips, placement time, rank.

``allocation`` writes what the NPU scheduler writes when it places a pod; the readers accept what the scheduler or a
device plugin wrote. Sources: component/ascend-for-volcano/internal/npu/base/task.go,
component/ascend-device-plugin/pkg/server/manager.go, docs/zh/scheduling/06_api/12_k8s.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.model.cluster import Node, Pod
from belay.engine.model.generations import LOGICAL_PREFIXES
from belay.engine.model.labels import (
    ACCELERATOR_TYPE,
    ASCEND_REAL,
    BASE_DEVICES,
    CHIP_MEMORY,
    CONFIGURATION_910,
    CONFIGURATION_NPU,
    DISTRIBUTED_JOB,
    HARDWARE_TYPE,
    HUAWEI_PREFIX,
    KUBELET_DEVICES,
    NODE_RACK,
    NODE_SERVER_INDEX,
    NODE_SUPER_POD,
    NPU,
    PREDICATE_TIME,
    RANK_INDEX,
    SERVER_USAGE,
)
from belay.engine.model.quantities import signed_number, whole_number

#: ``predicate-time`` of a pod that a device plugin has already served (the largest uint64).
PREDICATE_TIME_USED: Final = "18446744073709551615"

#: Longest configuration annotation that is read; Kubernetes allows 256 KiB for all annotations together.
MAX_CONFIGURATION: Final = 256 * 1024

#: Most digits of a chip's id.
_DIGITS: Final = 4

#: accelerator-type of an inference server → its name in ``mind-cluster/hardware-type``.
_HARDWARE: Final[dict[str, str]] = {"module-910b-8": "800I-A2", "module-a3-16": "800I-A3"}


class SuperPodPosition(NamedTuple):
    """A node's position in a device report: super pod, server in the super pod, rack; -1 if unknown."""

    super_pod_id: int = -1
    server_index: int = -1
    rack_id: int = -1


class Device(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chip of a pod: ``device_id`` is the physical id as text, ``device_ip`` "-1" if its lookup failed."""

    device_id: str
    device_ip: str = ""
    super_device_id: str = ""
    level_list: tuple[Any, ...] = msgspec.field(name="levelList", default=())


class Configuration(msgspec.Struct, frozen=True):
    """The configuration annotation: where a pod runs and on which chips. Ids are -1 when unknown."""

    pod_name: str = ""
    server_id: str = ""
    server_ip: str = ""
    host_ip: str = ""
    super_pod_id: int = -1
    rack_id: int = -1
    server_index: str = ""
    devices: tuple[Device, ...] = ()


#: Annotations and labels of a node that ``chip_facts`` reads besides its address and ``baseDeviceInfos``.
CHIP_ANNOTATIONS: Final = (BASE_DEVICES, NODE_SUPER_POD, NODE_RACK, NODE_SERVER_INDEX)
CHIP_LABELS: Final = (ACCELERATOR_TYPE, CHIP_MEMORY, SERVER_USAGE)


class ChipFacts(NamedTuple):
    """Facts about chips of a node that a Binding contains; they are the same for every pod that gets the chips.

    ``names``: as the device plugin offers them; ``hardware``: the type of an inference server, else empty; ``where``:
    the fields of a configuration after the pod's name, None if the node does not describe all of the chips.
    """

    names: str
    hardware: str
    where: tuple[str, str, int, int, str, msgspec.Raw] | None


class _Written(msgspec.Struct, frozen=True):
    """A configuration for writing, with its devices already encoded."""

    pod_name: str
    server_id: str
    server_ip: str
    host_ip: str
    super_pod_id: int
    rack_id: int
    server_index: str
    devices: msgspec.Raw


def chip_facts(
    node: Node,
    chips: Sequence[int],
    prefix: str,
    *,
    place: SuperPodPosition | None = None,
    devices: Mapping[str, Device] | None = None,
) -> ChipFacts:
    """The facts of ``chips`` (physical ids) of ``node``.

    Args:
        prefix: device name prefix, e.g. ``Ascend910-``.
        place: the position of the node by its report; the node's own annotations come first.
        devices: ``devices_of(node)``, where the caller has it.
    """
    names = [f"{prefix}{i}" for i in sorted(chips)]
    offered = [_offered_name(node, prefix, name) for name in names] if prefix in LOGICAL_PREFIXES else names
    where = None
    if names and node.base_devices.keys() >= {*names}:
        known = devices_of(node) if devices is None else devices
        at = place or SuperPodPosition()
        where = (
            node.internal_ip,
            node.internal_ip,
            _number(node.annotations.get(NODE_SUPER_POD, ""), at.super_pod_id),
            _number(node.annotations.get(NODE_RACK, ""), at.rack_id),
            node.annotations.get(NODE_SERVER_INDEX) or (str(at.server_index) if at.server_index >= 0 else ""),
            msgspec.Raw(msgspec.json.encode([known[name] for name in names])),
        )
    return ChipFacts(",".join(offered), hardware_type(node.labels), where)


def allocation(
    pod: Pod,
    seat: ChipFacts,
    *,
    resource: str,
    now_ns: int,
    distributed: bool,
    is_operator_pod: bool,
    whole_node: bool,
    rank: int | None,
) -> dict[str, str]:
    """Annotations that give the chips of ``seat`` to ``pod``; they travel in its Binding.

    Args:
        resource: requested resource, e.g. ``huawei.com/Ascend910``; it names the annotation.
        now_ns: Unix nanoseconds; the device plugin serves the smallest first.
        distributed: more than one pod of the job asks for NPUs.
        is_operator_pod: the pod carries label ``training.kubeflow.org/operator-name``.
        whole_node: the pod takes every chip that the node offers.
        rank: ``hccl/rankIndex`` to write, None to leave the pod's own.
    """
    out = {DISTRIBUTED_JOB: "true" if distributed else "false", PREDICATE_TIME: str(now_ns)}
    if seat.names:
        out[resource] = seat.names
    if seat.hardware:
        out[HARDWARE_TYPE] = seat.hardware
    if seat.where is not None and (is_operator_pod or whole_node):
        out[ASCEND_REAL] = seat.names
        out[configuration_key(resource)] = msgspec.json.encode(_Written(pod.name, pod.uid, *seat.where)).decode()
    if rank is not None:
        out[RANK_INDEX] = str(rank)
    return dict(sorted(out.items()))


def counted_device(*, distributed: bool, rank: int | None) -> dict[str, str]:
    """Annotations of a pod with a vNPU that exists already: the device plugin chooses which of its kind."""
    out = {DISTRIBUTED_JOB: "true" if distributed else "false"}
    return out if rank is None else {**out, RANK_INDEX: str(rank)}


def chosen_devices(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations by which a scheduler chose devices or shares of them, without those that device plugins rewrite.

    Source: component/ascend-device-plugin/pkg/kubeclient/kube_cache.go, pkg/server/manager.go (updatePodAnnotation).
    """
    rewritten = {ASCEND_REAL, KUBELET_DEVICES}
    return {key: text for key, text in annotations.items() if key.startswith(HUAWEI_PREFIX) and key not in rewritten}


def configuration_key(resource: str) -> str:
    """Annotation that holds the configuration of pods that request ``resource``."""
    return CONFIGURATION_NPU if resource == NPU else CONFIGURATION_910


def hardware_type(labels: Mapping[str, str]) -> str:
    """``mind-cluster/hardware-type`` of an inference server, e.g. ``800I-A2-32G``; empty for other servers."""
    server = _HARDWARE.get(labels.get(ACCELERATOR_TYPE, ""), "")
    memory = labels.get(CHIP_MEMORY, "")
    return f"{server}-{memory}" if server and memory and labels.get(SERVER_USAGE) == "infer" else ""


def chip_names(annotations: Mapping[str, str], resource: str) -> tuple[str, ...]:
    """Device names the pod holds: ``AscendReal`` if present, else the resource's own annotation."""
    text = annotations.get(ASCEND_REAL) or (annotations.get(resource, "") if resource else "")
    return tuple(part for part in (piece.strip() for piece in text.split(",")) if part)


def chip_ids(names: Sequence[str], prefix: str) -> tuple[int, ...]:
    """Physical ids of device names, e.g. ``Ascend910-3`` → 3; other names (vNPUs) are left out."""
    numbers = (whole_number(name[len(prefix) :], _DIGITS) for name in names if name.startswith(prefix))
    return tuple(sorted(number for number in numbers if number is not None))


def rank_index(annotations: Mapping[str, str]) -> int | None:
    """``hccl/rankIndex``; None when absent or not a whole number."""
    return whole_number(annotations.get(RANK_INDEX, ""))


def configuration(annotations: Mapping[str, str]) -> Configuration | None:
    """The pod's configuration under either of the two keys, None when it has none.

    Raises:
        ValueError: the annotation is too long, not JSON or has wrong fields; the text names the annotation.
    """
    key = CONFIGURATION_910 if CONFIGURATION_910 in annotations else CONFIGURATION_NPU
    text = annotations.get(key)
    if text is None:
        return None
    if len(text) > MAX_CONFIGURATION:
        raise ValueError(f"annotation {key} is {len(text)} characters long, at most {MAX_CONFIGURATION} are read")
    try:
        body = msgspec.json.decode(text, type=dict[str, Any])
        body["server_index"] = str(body.get("server_index", ""))
        # A Go encoder writes null for an empty list.
        body["devices"] = body.get("devices") or []
        return msgspec.convert(body, Configuration, strict=False)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise ValueError(f"annotation {key} cannot be read: {error}; let the device plugin write it again") from error


def is_allocated(pod: Pod) -> bool:
    """Whether a rank table may include the pod: it is alive, and its chips (if it requests any) are configured.

    Source: component/ascend-operator/pkg/ranktable/utils/util.go (PodHasAllocated).
    """
    if pod.deleting is not None:
        return False
    return not pod.count or CONFIGURATION_910 in pod.annotations or CONFIGURATION_NPU in pod.annotations


def physical_names(base_devices: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Device names in pods' annotations → physical device names, where they differ (Ascend950).

    ``base_devices`` is the node's ``baseDeviceInfos``: physical name → {``DeviceID``: logic id, …}.
    """
    offered = {
        _offered(base_devices, prefix, name): name
        for prefix in LOGICAL_PREFIXES
        for name in base_devices
        if name.startswith(prefix)
    }
    return offered if any(logical != name for logical, name in offered.items()) else {}


def _offered_name(node: Node, prefix: str, name: str) -> str:
    return _offered(node.base_devices, prefix, name)


def _offered(base_devices: Mapping[str, Mapping[str, Any]], prefix: str, name: str) -> str:
    """The name under which the device plugin offers a chip: Ascend950 nodes map physical to logical ids."""
    logical = base_devices.get(name, {}).get("DeviceID") if prefix in LOGICAL_PREFIXES else None
    return name if logical is None else f"{prefix}{logical}"


def devices_of(node: Node) -> dict[str, Device]:
    """A node's chips by name, as ring configurations describe them."""
    return {name: _device(name, base) for name, base in node.base_devices.items()}


def _device(name: str, base: Mapping[str, Any]) -> Device:
    address, super_id, levels = base.get("IP"), base.get("SuperDeviceID"), base.get("levelList")
    return Device(
        name.rpartition("-")[2],
        "" if address is None else str(address),
        "" if super_id is None else str(super_id),
        tuple(levels) if isinstance(levels, list) else (),
    )


def _number(text: str, default: int) -> int:
    """A node annotation's number; the default, never below -1, if it is missing or not a number."""
    number = signed_number(text)
    return number if number is not None else max(-1, default)
