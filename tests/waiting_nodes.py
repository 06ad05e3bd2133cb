"""Jobs that wait for what a node says of itself: labels, reports, places in racks and trees, chips in parts."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from belay.engine.wire import deviceinfo
from tests import listing, worlds
from tests.listing import Item, job, node, params, report
from tests.waiting_jobs import (
    A3,
    POLICY,
    Waiting,
)
from tests.waiting_objects import CORE, CORES, MEMORY_LABEL, SHARE_LABEL, cut_on_demand, follow_share_label

SHARE: Final = "huawei.com/scheduler.softShareDev."
RACK_POLICY: Final = "chip8-node8-ra64-sp"
SP_POLICY: Final = "chip2-node16-sp"
DRIVER: Final = "csi.example.com"


# what the node says of itself


def cores(count: int) -> Item:
    """A pending pod that asks for AI cores of an inference chip."""
    return listing.pod("j-0", kind="npu-core", count=count, labels={"ring-controller.atlas": "ascend-310P"})


def report_refused(chance: random.Random) -> Waiting:
    broken = report("n0")
    outer = json.loads(broken["data"]["DeviceInfoCfg"])
    if chance.random() < 0.5:
        broken["data"]["DeviceInfoCfg"] = json.dumps(outer | {"CheckCode": "0" * 64})
    else:
        broken["data"]["DeviceInfoCfg"] = "{"
    return Waiting([node("n0"), broken, *job("j", 1, chance.choice((1, 8)), policy=POLICY)], {})


def other_server(chance: random.Random) -> Waiting:
    """Servers with more chips than those of the job's policy."""
    items = [node("n0", chips=16), report("n0", chips=16)]
    if chance.random() < 0.5:
        items += [node("n1", chips=16), report("n1", chips=16)]
    return Waiting([*items, *job("j", 1, chance.choice((1, 4, 8)), policy=POLICY)])


def no_rack(chance: random.Random) -> Waiting:
    notes = {"sp-block": "8"}
    items = [node("s0", kind="npu"), report("s0", kind="npu", super_pod=0), params(super_pod_size="8")]
    return Waiting([*items, *job("j", 1, 8, kind="npu", policy=RACK_POLICY, notes=notes)])


def no_super_pod(chance: random.Random) -> Waiting:
    items: list[Item] = []
    for number in range(chance.choice((1, 2))):
        items += [node(f"n{number}", chips=16, labels=A3), report(f"n{number}", chips=16)]
    return Waiting([*items, *job("j", 1, 16, policy=SP_POLICY, notes={"sp-block": "16"})])


def no_tree_labels(chance: random.Random) -> Waiting:
    """Nodes without labels of the configured tree, or of a tree that is not configured."""
    labels = chance.choice(({}, {"huawei.com/topotree": "elsewhere"}))
    items = [item for i in range(2) for item in (node(f"n{i}", chips=16, labels=labels), report(f"n{i}", chips=16))]
    config = params(resource_level_config='{"default":{"level1":{"label":"leaf"},"level2":{"label":"spine"}}}')
    notes = {"huawei.com/affinity-config": "level1=2"}
    return Waiting([*items, config, *job("j", 2, 16, policy="multilevel", notes=notes)])


def several_trees(chance: random.Random) -> Waiting:
    """Free nodes in two trees, but in none as many as the job wants together."""
    items = []
    for number in range(4):
        labels = {"leaf": f"l{number}", "huawei.com/topotree": chance.choice(("a", "b"))}
        items += [node(f"n{number}", chips=16, labels=labels), report(f"n{number}", chips=16)]
    rows = {tree: {"level1": {"label": "leaf"}} for tree in ("a", "b", "default")}
    notes = {"huawei.com/affinity-config": "level1=2"}
    config = params(resource_level_config=json.dumps(rows))
    return Waiting([*items, config, *job("j", 2, 16, policy="multilevel", notes=notes)])


def other_card(chance: random.Random) -> Waiting:
    labels = chance.choice(({}, {"infer-card-type": "card-300i-pro"}))
    items = [node("n0", kind="Ascend310P", labels=labels), report("n0", kind="Ascend310P")]
    return Waiting([*items, *job("j", 1, chance.choice((1, 2)), kind="Ascend310P", labels={"duo": "true"})])


def subhealthy(chance: random.Random) -> Waiting:
    """A job whose strategy keeps it off nodes with a sub-healthy chip."""
    codes = {"80C98009": (0, "SubHealthFault")}
    weak = deviceinfo.fault_element("CardUnhealthy", "Ascend910-3", codes, "SubHealthFault")
    said = weak_report("n0", [weak])
    strategy = chance.choice(("graceExit", "forceExit"))
    made = job("j", 1, 4, policy=POLICY, labels={"subHealthyStrategy": strategy})
    for item in made[1:]:
        item["metadata"]["labels"]["subHealthyStrategy"] = strategy
    return Waiting([node("n0"), said, *made], {})


def weak_report(name: str, faults: list[Any]) -> Item:
    """A report of eight free chips with these faults."""
    resource = "huawei.com/Ascend910"
    lists = {resource: ",".join(f"Ascend910-{i}" for i in range(8)), f"{resource}-Unhealthy": "",
             f"{resource}-NetworkUnhealthy": "", f"{resource}-Recovering": "",
             f"{resource}-Fault": json.dumps(faults, separators=(",", ":"))}  # fmt: skip
    made = deviceinfo.build(name, device_list=lists, update_time=int(worlds.NOW) - 2)
    made["metadata"]["resourceVersion"] = "7"
    return made


# chips in parts


def sharing_node(name: str, **labels: str) -> list[Item]:
    """A server whose chips are offered as these labels say."""
    made = node(name, labels=labels)
    follow_share_label(made)
    return [made, report(name)]


def share(chance: random.Random) -> list[Item]:
    quota = chance.choice((10, 50, 100))
    asked = {f"{SHARE}aicoreQuota": str(quota), f"{SHARE}hbmQuota": "1024", f"{SHARE}policy": "fixed-share"}
    return [listing.pod("j-0", count=quota, labels=asked, notes={listing.POLICY: "chip1-softShareDev"})]


def shares_only(chance: random.Random) -> Waiting:
    labels = {SHARE_LABEL: "true", MEMORY_LABEL: "64G"}
    return Waiting([*sharing_node("n0", **labels), *job("j", 1, chance.choice((1, 8)), policy=POLICY)])


def no_shares(chance: random.Random) -> Waiting:
    labels = chance.choice(({}, {SHARE_LABEL: "false"}, {MEMORY_LABEL: "64G"}))
    return Waiting([*sharing_node("n0", **labels), *share(chance)])


def no_memory(chance: random.Random) -> Waiting:
    labels = chance.choice(({}, {MEMORY_LABEL: "much"}))
    return Waiting([*sharing_node("n0", **{SHARE_LABEL: "true"}, **labels), *share(chance)])


def cannot_cut(chance: random.Random) -> Waiting:
    """Labels that contradict the cores, or chips that are never cut on demand."""
    if chance.random() < 0.5:
        items = cut_on_demand("n0", server_type=chance.choice(("Ascend310P-10", "Ascend310P-9")))
    else:
        labels = {"servertype": "Ascend910-30", "node.kubernetes.io/npu.chip.name": "910A"}
        items = [node("n0", kind="Ascend910", labels=labels, sizes={CORE: "240"}), report("n0")]
    return Waiting([*items, params(presetVirtualDevice="false"), cores(chance.choice((1, 2)))])


def cut_by_layouts_only(chance: random.Random) -> Waiting:
    """Cores are asked for where layouts alone cut, which is so unless the scheduler's configuration says otherwise."""
    said = [params(presetVirtualDevice="true")] if chance.random() < 0.5 else []
    return Waiting([*cut_on_demand("n0", 2), *said, cores(chance.choice((1, 2)))])


def fragmented(chance: random.Random) -> Waiting:
    """Enough cores are free, but not on one chip."""
    items = [*cut_on_demand("n0", 2), params(presetVirtualDevice="false")]
    for chip in range(2):
        notes = {CORE: f"{chip}-vir04", "huawei.com/AscendReal": f"Ascend310P-4c-10{chip}-{chip}_0"}
        other = listing.pod(f"a{chip}", kind="npu-core", count=4, on="n0", notes=notes)
        other["metadata"]["labels"]["ring-controller.atlas"] = "ascend-310P"
        items.append(other)
    return Waiting([*items, cores(CORES)])


# what others say of it by taints


def leaving(chance: random.Random) -> Waiting:
    """A node that an autoscaler removes, whatever the job tolerates."""
    key = chance.choice(("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"))
    items = [node("n0", taints=[{"key": key, "effect": "NoSchedule"}]), report("n0")]
    spec = {"tolerations": [{"operator": "Exists"}]}
    return Waiting([*items, *job("j", 1, 8, policy=POLICY, spec=spec)], {})


def starting(chance: random.Random) -> Waiting:
    """A node that its cloud provider has not initialized yet."""
    key = chance.choice(("node.cloudprovider.kubernetes.io/uninitialized", "karpenter.sh/unregistered"))
    items = [node("n0", taints=[{"key": key, "effect": "NoSchedule"}]), report("n0")]
    return Waiting([*items, *job("j", 1, 8, policy=POLICY)])
