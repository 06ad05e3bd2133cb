"""Jobs that wait for devices of resource claims, and for volumes that a node can have attached."""

from __future__ import annotations

import random
from typing import Any, Final

from tests import listing
from tests.claim_objects import allocated, claim, mounting, storage_class
from tests.listing import Item, job, node, report
from tests.test_dra_placement import CLASS, devices
from tests.test_dra_placement import claim as device_claim
from tests.waiting_jobs import (
    POLICY,
    Waiting,
    busy,
)

SHARE: Final = "huawei.com/scheduler.softShareDev."
RACK_POLICY: Final = "chip8-node8-ra64-sp"
SP_POLICY: Final = "chip2-node16-sp"
DRIVER: Final = "csi.example.com"


def exactly(count: int, ring: int | None = None, name: str = "npus") -> dict[str, Any]:
    """A request for so many whole chips, of one ring where it is named."""
    asked: dict[str, Any] = {"deviceClassName": "npu.huawei.com", "count": count}
    if ring is not None:
        asked["selectors"] = [{"cel": {"expression": f'device.attributes["npu.huawei.com"].ring == {ring}'}}]
    return {"name": name, "exactly": asked}


def claiming(name: str) -> list[Item]:
    """Job j, whose pod has this claim and asks for no resource."""
    items = job("j", 1, 0, policy=POLICY)
    items[1]["metadata"]["annotations"][listing.POLICY] = POLICY
    items[1]["spec"]["resourceClaims"] = [{"name": "npus", "resourceClaimName": name}]
    return items


def few_devices(chance: random.Random) -> Waiting:
    """A node without devices for the claim: others hold what suits, nothing there suits, or none are published; another
    node, which is cordoned, has some.
    """
    what = chance.choice(("held", "apart", "none suits", "unpublished"))
    away = [node("away", unschedulable=True), report("away"), devices("away")]
    items: list[Item] = [CLASS, *away, node("n0"), report("n0")]
    if what == "apart":
        requests = [exactly(2, 0, "first"), exactly(2, 1, "second")]
    else:
        requests = [exactly(4, 0)]
    if what != "unpublished":
        items.append(devices("n0", range(4, 8) if what == "none suits" else range(8)))
    if what in ("held", "apart"):
        items.append(busy("b0", range(4) if what == "held" else range(4, 8)))
    return Waiting([*items, device_claim("npu", *requests), *claiming("npu")], {})


def crowded_claim(chance: random.Random) -> Waiting:
    """A claim that is shared already by as many pods as may share it."""
    full = allocated("npu")
    full["status"]["reservedFor"] = [
        {"resource": "pods", "name": f"p{number}", "uid": f"u-p{number}"} for number in range(256)
    ]
    made = device_claim("npu", exactly(1))
    made["status"] = {
        "allocation": {"devices": {"results": [
            {"request": "npus", "driver": "npu.huawei.com", "pool": "n0", "device": "ascend910-0"}
        ]}},
        "reservedFor": full["status"]["reservedFor"],
    }  # fmt: skip
    return Waiting([CLASS, node("n0"), report("n0"), devices("n0"), made, *claiming("npu")], {})


def attached_to_the_limit(chance: random.Random) -> Waiting:
    """As many volumes as the node can have: of others that run, of others that have gone, or of the pod alone."""
    most, what = chance.choice((1, 2)), chance.choice(("run", "gone", "alone"))
    limit = {"drivers": [{"name": DRIVER, "nodeID": "n0", "allocatable": {"count": most}}]}
    items: list[Item] = [
        storage_class(), node("n0"), report("n0"),
        {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n0"}, "spec": limit},
    ]  # fmt: skip
    for number in range(most):
        items += attached(f"c{number}")
        items += [listing.pod(f"w{number}", on="n0", spec=mounting(f"c{number}"))] if what == "run" else []
        items += [attachment(f"c{number}")] if what == "gone" else []

    names = ["data", "more", "most"][: most + 1 if what == "alone" else 1]
    made = job("j", 1, 4, policy=POLICY)
    made[1]["spec"] |= mounting(*names)
    return Waiting([*items, *(part for name in names for part in attached(name)), *made])


def attachment(name: str) -> Item:
    """The volume of a claim, attached to the node."""
    spec = {"attacher": DRIVER, "nodeName": "n0", "source": {"persistentVolumeName": f"pv-{name}"}}
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": f"csi-{name}"}}
    return head | {"spec": spec, "status": {"attached": True}}


def attached(name: str) -> list[Item]:
    """A claim that is bound to a volume of the driver."""
    taken = claim(name, status={"phase": "Bound"})
    taken["spec"]["volumeName"] = f"pv-{name}"
    source = {"csi": {"driver": DRIVER, "volumeHandle": f"vol-{name}"}}
    made = {
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": f"pv-{name}"},
        "spec": {"capacity": {"storage": "10Gi"}} | source, "status": {"phase": "Bound"},
    }  # fmt: skip
    return [taken, made]


def claims_asked_for(chance: random.Random) -> Waiting:
    """Devices are chosen for the pod's own claim, and written into it before the pod is bound."""
    count = chance.choice((2, 4, 8))
    items = [CLASS, node("n0"), report("n0"), devices("n0"), device_claim("npu", exactly(count))]
    return Waiting([*items, *claiming("npu")], {})
