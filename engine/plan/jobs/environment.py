"""Variables that an AscendJob's container ``ascend`` gets, by framework.

Sources: component/ascend-operator/pkg/controllers/v1/env.go, docs/zh/scheduling/06_api/14 (environment variables).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.model.job_options import stated_chips
from belay.engine.model.labels import (
    ASCEND_310,
    ASCEND_310P,
    ASCEND_910,
    NPU,
    NPU_CORE,
    SUPER_POD_RANK,
)
from belay.engine.model.quantities import whole_number
from belay.engine.plan.jobs.ascendjob_spec import WORKER, AscendSpec, ReplicaSpec
from belay.engine.plan.jobs.pod_template import ASCEND, container, field_ref, plain, pod_spec, set_env
from belay.engine.wire.ranktable import logical_super_pod

CLUSTERD_DOMAIN: Final = "clusterd-grpc-svc.mindx-dl.svc.cluster.local"
WHOLE_CHIPS: Final = frozenset({NPU, ASCEND_310, ASCEND_310P, ASCEND_910})

#: strategy → (word of HIGH_AVAILABILITY, words of MS_ENABLE_TFT)
_STRATEGIES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "recover": ("recover", ("ARF:1",)),
    "recover-in-place": ("recover", ("ARF:1",)),
    "retry": ("retry", ("UCE:1", "HCCE:1")),
    "dump": ("dump", ("TTP:1",)),
    "exit": ("recover", ("ARF:1",)),
    "elastic-training": ("elastic-training", ()),
}
_Variables = list[dict[str, Any]]


class ServiceAddresses(NamedTuple):
    """Addresses in a pod's variables: the leader's Service and ClusterD's, with the job's UID."""

    service_ip: str
    service_port: str
    clusterd: str
    job_uid: str


def inject(
    pod: dict[str, Any], spec: AscendSpec, replica: ReplicaSpec, index: int, addresses: ServiceAddresses
) -> None:
    """Set the variables in a pod's container ``ascend``."""
    row = container(pod["spec"], ASCEND)
    if row is not None:
        set_env(row, variables(spec, replica, index, addresses, row.get("env") or ()))


def variables(
    spec: AscendSpec,
    replica: ReplicaSpec,
    index: int,
    addresses: ServiceAddresses,
    written: Iterable[Mapping[str, Any]] = (),
) -> _Variables:
    """The variables of one pod.

    Args:
        written: the container's own variables; recovery strategies extend the word lists in them.
    """
    if spec.inference:
        return [
            plain("MINDX_TASK_ID", spec.options.service_job_id or ""),
            plain("APP_TYPE", spec.options.app or ""),
            plain("MINDX_SERVER_IP", addresses.clusterd),
            plain("MINDX_SERVER_DOMAIN", CLUSTERD_DOMAIN),
        ]
    if spec.framework == "mindspore" and spec.leader is None:
        return []
    out = _common(spec, replica, index, addresses)
    if spec.npu[1]:
        out += _BY_FRAMEWORK[spec.framework](spec, replica, index, addresses)
        out += _recovery(spec, {str(v.get("name")): str(v.get("value") or "") for v in written})
    return out


def sp_block(spec: AscendSpec) -> int:
    """Chips per logical super pod: annotation ``sp-block``, else level 1 of a multilevel job's tree; 0 for none."""
    chips = stated_chips(spec.options.sp_block, 0)
    if chips:
        return chips

    for piece in (spec.options.affinity_config or "").split(","):
        level, _, text = piece.strip().partition("=")
        nodes = whole_number(text)
        if level == "level1" and nodes is not None and spec.npu[0] == ASCEND_910:
            return nodes * spec.npu[1]
    return 0


def _common(spec: AscendSpec, replica: ReplicaSpec, index: int, addresses: ServiceAddresses) -> _Variables:
    out: _Variables = []
    if replica.chips and replica.resource in WHOLE_CHIPS and not spec.soft_share:
        out.append(field_ref("ASCEND_VISIBLE_DEVICES", f"metadata.annotations['{replica.resource}']"))
    out += [
        plain("MINDX_TASK_ID", addresses.job_uid),
        plain("MINDX_SERVER_IP", addresses.clusterd),
        plain("MINDX_SERVER_DOMAIN", CLUSTERD_DOMAIN),
        plain("HostNetwork", "true" if pod_spec(replica.template).get("hostNetwork") else "false"),
        plain("REPLICA_TYPE", replica.type),
    ]
    if replica.chips:
        if spec.options.soft_affinity and replica.resource == ASCEND_910:
            out.append(field_ref("HCCL_LOGIC_SUPERPOD_ID", f"metadata.annotations['{SUPER_POD_RANK}']"))
        else:
            group = logical_super_pod(spec.rank(replica, index), sp_block(spec), replica.chips)
            out.append(plain("HCCL_LOGIC_SUPERPOD_ID", group))
    return out


def _sizes(spec: AscendSpec) -> tuple[int, int] | None:
    """Local and world size; None for dynamic vNPUs, whose sizes the device plugin writes."""
    resource, chips = spec.npu
    if resource == NPU_CORE:
        return None
    local = 1 if spec.soft_share else chips
    return local, local * spec.npu_pods


def _pytorch(spec: AscendSpec, replica: ReplicaSpec, index: int, addresses: ServiceAddresses) -> _Variables:
    out = []
    sizes = _sizes(spec)
    if sizes is not None:
        out = [
            plain("LOCAL_WORLD_SIZE", sizes[0]),
            plain("WORLD_SIZE", sizes[1]),
            plain("LOCAL_RANK", ",".join(str(i) for i in range(sizes[0]))),
        ]
    return [
        *out,
        plain("MASTER_ADDR", addresses.service_ip),
        plain("MASTER_PORT", addresses.service_port),
        plain("RANK", spec.rank(replica, index)),
    ]


def _mindspore(spec: AscendSpec, replica: ReplicaSpec, index: int, addresses: ServiceAddresses) -> _Variables:
    leads = replica.type != WORKER
    out = [field_ref("MS_SCHED_HOST", "status.podIP") if leads else plain("MS_SCHED_HOST", addresses.service_ip)]
    sizes = _sizes(spec)
    if sizes is not None:
        out += [plain("MS_LOCAL_WORKER", sizes[0]), plain("MS_WORKER_NUM", sizes[1])]
    return [
        *out,
        plain("MS_NODE_RANK", spec.rank(replica, index)),
        plain("MS_SCHED_PORT", addresses.service_port),
        plain("MS_SERVER_NUM", 0),
        plain("MS_ROLE", "MS_SCHED" if leads else "MS_WORKER"),
        plain("NPU_POD", "true" if replica.chips else "false"),
    ]


def _tensorflow(spec: AscendSpec, replica: ReplicaSpec, index: int, addresses: ServiceAddresses) -> _Variables:
    leads = replica.type != WORKER
    out = [field_ref("CM_CHIEF_IP", "status.podIP") if leads else plain("CM_CHIEF_IP", addresses.service_ip)]
    sizes = _sizes(spec)
    if sizes is not None:
        out += [plain("CM_LOCAL_WORKER", sizes[0]), plain("CM_WORKER_SIZE", sizes[1])]
    return [
        *out,
        plain("CM_CHIEF_PORT", addresses.service_port),
        plain("CM_RANK", spec.rank(replica, index)),
        plain("CM_CHIEF_DEVICE", 0),
        field_ref("CM_WORKER_IP", "status.podIP"),
    ]


_BY_FRAMEWORK: Final = {"pytorch": _pytorch, "mindspore": _mindspore, "tensorflow": _tensorflow}


def _recovery(spec: AscendSpec, written: Mapping[str, str]) -> _Variables:
    """Variables for the annotation ``recover-strategy`` and the labels about recovery."""
    chosen = [word for word in spec.options.recover_strategies if word in _STRATEGIES]
    hot_switch = spec.options.sub_health == "hotSwitch"
    active = [*chosen, "recover"] if hot_switch else chosen
    if spec.framework == "pytorch":
        out = _pytorch_recovery(chosen, active, written)
    elif spec.framework == "mindspore":
        out = _mindspore_recovery(chosen, active, spec.options.pod_rescheduling, written)
    else:
        return []
    # elastic training is PyTorch's alone
    if (spec.framework == "pytorch" and active) or any(word != "elastic-training" for word in active):
        out.append(plain("PROCESS_RECOVER", "on"))
    if any(word != "elastic-training" for word in active):
        out.append(plain("ELASTIC_PROCESS_RECOVER_ENABLE", 1))
    if "recover-in-place" in active:
        out.append(plain("ENABLE_RESTART_FAULT_PROCESS", "on"))
    return out


def _pytorch_recovery(chosen: list[str], active: list[str], written: Mapping[str, str]) -> _Variables:
    out = [plain("HCCL_ASYNC_ERROR_HANDLING", 0)] if chosen else []
    if active:
        words = {_STRATEGIES[word][0] for word in active} | _words(written.get("HIGH_AVAILABILITY", ""))
        out.append(plain("HIGH_AVAILABILITY", ",".join(sorted(words))))
    return out


def _mindspore_recovery(
    chosen: list[str], active: list[str], pod_rescheduling: bool, written: Mapping[str, str]
) -> _Variables:
    words = {word for strategy in active for word in _STRATEGIES[strategy][1]}
    if pod_rescheduling:
        words.add("RSC:1")
    out = []
    if words:
        words |= _words(written.get("MS_ENABLE_TFT", "").strip("{}"))
        out.append(plain("MS_ENABLE_TFT", "{" + ",".join(sorted(words)) + "}"))
    if active:
        out.append(plain("MINDIO_FOR_MINDSPORE", 1))
    if chosen:
        out.append(plain("MS_ENABLE_THM", "{HCCL_WATCHDOG:0}"))
    return out


def _words(text: str) -> set[str]:
    return {word.strip() for word in text.split(",") if word.strip()}
