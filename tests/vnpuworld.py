"""Small worlds of nodes whose chips are cut on demand or shared, with the shipped templates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from belay.engine.model.cluster import DeviceReport, Node, Pod
from tests import worlds

CORE = "huawei.com/npu-core"
SHARE = "huawei.com/scheduler.softShareDev."
#: chip family -> (labels, device name prefix, AI cores of a chip, label ring-controller.atlas)
_NAME = "node.kubernetes.io/npu.chip.name"
CHIPS: dict[str, tuple[dict[str, str], str, int, str]] = {
    "310P": (
        {"accelerator": "huawei-Ascend310P", "servertype": "Ascend310P-8", _NAME: "310P3"},
        "Ascend310P-", 8, "ascend-310P",
    ),
    "310P-10": (
        {"accelerator": "huawei-Ascend310P", "servertype": "Ascend310P-10", _NAME: "310P1"},
        "Ascend310P-", 10, "ascend-310P",
    ),
    **{
        chip: (
            {"accelerator": "huawei-Ascend910", "servertype": f"Ascend910B-{cores}",
             _NAME: chip},
            "Ascend910-", cores, "ascend-910b",
        )
        for chip, cores in (
            ("910B1", 25), ("910B2", 24), ("910B2C", 24), ("910B3", 20), ("910B4", 20), ("910B4-1", 20),
        )
    },
    **{
        f"A3-{cores}": (
            {"accelerator": "huawei-Ascend910", "servertype": f"Ascend910A3-{cores}",
             _NAME: f"Ascend910-93{'82' if cores == 24 else '62'}"},
            "Ascend910-", cores, "ascend-910b",
        )
        for cores in (20, 24)
    },
}  # fmt: skip


def node(name: str, family: str = "310P", *, chips: int = 1, labels: dict[str, str] | None = None) -> Node:
    """A node in dynamic mode: it offers AI cores and nothing else."""
    known, prefix, cores, _ = CHIPS[family]
    return worlds.node(
        name,
        chips=chips,
        resource=CORE,
        prefix=prefix,
        labels=known | (labels or {}),
        allocatable={CORE: chips * cores},
    )


def report(name: str, family: str = "310P", *, chips: int = 1, **fields: Any) -> DeviceReport:
    """Its device report, which names whole chips."""
    prefix = CHIPS[family][1]
    fields.setdefault("network", None if family.startswith("310P") else ())
    return worlds.report(name, chips=chips, resource=f"huawei.com/{prefix[:-1]}", prefix=prefix, **fields)


def wants(
    name: str,
    cores: int,
    family: str = "310P",
    *,
    level: str = "",
    dvpp: str = "",
    kind: str | None = None,
    **fields: Any,
) -> Pod:
    """A pending pod that wants AI cores."""
    labels = {"ring-controller.atlas": CHIPS[family][3] if kind is None else kind} | fields.pop("labels", {})
    labels |= {key: value for key, value in (("vnpu-level", level), ("vnpu-dvpp", dvpp)) if value}
    return worlds.pod(name, resource=CORE, count=cores, labels=labels, **fields)


def holds(
    name: str,
    node_name: str,
    chip: int | str,
    template: str,
    cores: int,
    *,
    group: int | None = None,
    family: str = "310P",
    real: bool = True,
    number: int = 100,
    **fields: Any,
) -> Pod:
    """A running pod with a vNPU; ``real=False``: the device plugin has not cut it yet."""
    prefix = CHIPS[family][1]
    notes = {CORE: f"{chip}-{template}" if template else str(chip)}
    if real:
        tail = "" if group is None else f"_{group}"
        device = f"{prefix}{template.removeprefix('vir').replace('_', 'c.', 1)}-{number}-{chip}{tail}"
        notes["huawei.com/AscendReal"] = device if template else ",".join(f"{prefix}{i}" for i in str(chip).split(","))
    labels = {"ring-controller.atlas": CHIPS[family][3]} | fields.pop("labels", {})
    return worlds.pod(
        name, node=node_name, resource=CORE, count=cores, annotations=notes, labels=labels, **fields
    )  # fmt: skip


def shares(
    name: str,
    quota: int,
    memory: int,
    policy: str = "fixed-share",
    *,
    resource: str = "huawei.com/Ascend910",
    count: int | None = None,
    **fields: Any,
) -> Pod:
    """A pending pod that wants a soft share."""
    labels = {f"{SHARE}aicoreQuota": str(quota), f"{SHARE}hbmQuota": str(memory), f"{SHARE}policy": policy}
    notes = {"huawei.com/schedule_policy": "chip1-softShareDev"} | fields.pop("annotations", {})
    return worlds.pod(
        name, resource=resource, count=quota if count is None else count,
        labels=labels | fields.pop("labels", {}), annotations=notes, **fields,
    )  # fmt: skip


def sharing(
    name: str, node_name: str, chip: int, quota: int, memory: int, policy: str = "fixed-share", **fields: Any
) -> Pod:
    """A running pod with a soft share of a chip."""
    notes = {
        f"{SHARE}aicoreQuota": str(quota), f"{SHARE}hbmQuota": str(memory), f"{SHARE}policy": policy,
        "huawei.com/Ascend910": f"Ascend910-{chip}", "huawei.com/AscendReal": f"Ascend910-{chip}",
    }  # fmt: skip
    return worlds.pod(name, node=node_name, count=quota, annotations=notes, **fields)


def soft_node(name: str, *, chips: int = 2, memory: str = "32G", enable: str = "true") -> Node:
    """An Atlas 800I A2 whose device plugin offers every chip as 100 shares."""
    labels = worlds.A2_LABELS | {"mind-cluster/npu-chip-memory": memory}
    labels |= {"huawei.com/scheduler.chip1softsharedev.enable": enable} if enable else {}
    return worlds.node(name, chips=chips, labels=labels, allocatable={"huawei.com/Ascend910": chips * 100})


def observed(nodes: Iterable[Node], reports: Iterable[DeviceReport], pods: Iterable[Pod], **fields: Any) -> Any:
    """The snapshot; Volcano's configuration cuts vNPUs as pods ask for them, unless ``init_params`` say otherwise."""
    fields.setdefault("init_params", {"presetVirtualDevice": "false"})
    return worlds.observed(list(nodes), list(reports), list(pods), **fields)
