"""Resource claims in the sandbox: made from templates, given back, and devices of simulated nodes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import Any

from belay.agents.common.clock import Clock
from belay.agents.dra.fleet import FleetSlices
from belay.agents.drivers.base import Chip
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.node.policy import FaultLevels
from belay.agents.node.state import NodeState
from belay.engine.model.labels import DELETE_PROTECTION
from belay.engine.sandbox.controllers import resource_claim
from belay.engine.wire.policy import NodePolicy
from belay.engine.workloads.writes import Json, Reconciled
from tests.agent_world import RULES
from tests.test_dra_driver import ResourceApi

TEMPLATE: Json = {
    "metadata": {"name": "four", "namespace": "train"},
    "spec": {"metadata": {"labels": {"team": "a"}}, "spec": {"devices": {"requests": [{"name": "npus"}]}}},
}


def pod(phase: str = "Pending") -> Json:
    return {
        "metadata": {"name": "trainer", "namespace": "train", "uid": "u-pod"},
        "spec": {"resourceClaims": [{"name": "chips", "resourceClaimTemplateName": "four"},
                                    {"name": "other", "resourceClaimName": "mine"}]},
        "status": {"phase": phase},
    }  # fmt: skip


def made() -> Json:
    """The claim that the controller makes, once the API server has named it."""
    (write,) = resource_claim.of_pod(pod(), {"four": TEMPLATE}, []).writes
    body = copy.deepcopy(write.body)
    body["metadata"] |= {"name": "trainer-chips-x7", "uid": "u-claim", "resourceVersion": "5"}
    return body


def test_a_claim_is_made_from_its_template_and_named_in_the_pods_status() -> None:
    body = made()
    assert (body["metadata"]["generateName"], body["metadata"]["labels"]) == ("trainer-chips-", {"team": "a"})
    assert body["spec"] == TEMPLATE["spec"]["spec"]
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "u-pod", True)
    (write,) = resource_claim.of_pod(pod(), {"four": TEMPLATE}, [body]).writes
    named = [{"name": "chips", "resourceClaimName": "trainer-chips-x7"}]
    assert (write.verb, write.body["status"]) == ("status", {"resourceClaimStatuses": named})
    settled = pod()
    settled["status"]["resourceClaimStatuses"] = named
    assert resource_claim.of_pod(settled, {"four": TEMPLATE}, [body]) == Reconciled()
    assert resource_claim.of_pod(pod(), {}, []) == Reconciled(), "a template that is missing is waited for"
    assert resource_claim.of_pod(pod("Succeeded"), {"four": TEMPLATE}, []) == Reconciled()


def test_devices_are_given_back_after_the_last_user() -> None:
    claim = made()
    claim["metadata"]["finalizers"] = [DELETE_PROTECTION]
    users = [{"resource": "pods", "name": n, "uid": f"u-{n}"} for n in ("pod", "second")]
    claim["status"] = {"allocation": {"devices": {}}, "reservedFor": users}
    both = {"u-pod": pod("Running"), "u-second": pod("Running")}
    assert resource_claim.of_claim(claim, both) == Reconciled()
    (write,) = resource_claim.of_claim(claim, both | {"u-second": pod("Failed")}).writes
    assert write.body["status"] == {"reservedFor": users[:1]}
    assert write.body["metadata"]["resourceVersion"] == "5", "a user that was added meanwhile is not overwritten"
    last = resource_claim.of_claim(claim, {}).writes
    assert [one.verb for one in last] == ["status", "patch", "delete"]
    assert last[0].body["status"] == {"allocation": None, "reservedFor": None}
    assert last[1].body["metadata"]["finalizers"] is None


def test_a_claim_that_waits_keeps_the_finalizer_that_its_allocator_has_written() -> None:
    claim = made()
    claim["metadata"]["finalizers"] = [DELETE_PROTECTION]
    assert resource_claim.of_claim(claim, {"u-pod": pod()}) == Reconciled()
    claim["metadata"]["deletionTimestamp"] = "2026-09-01T08:00:00Z"
    (write,) = resource_claim.of_claim(claim, {}).writes
    assert write.body["metadata"]["finalizers"] is None, "nothing protects it any more"


class Api(ResourceApi):
    """``classes``: whether the cluster has the driver's DeviceClass."""

    classes = False

    async def read_object(self, path: str) -> Mapping[str, Any] | None:
        return {} if "/deviceclasses/" in path and self.classes else await super().read_object(path)


class Agent:
    def __init__(self, name: str, *, polled: bool = True) -> None:
        chips = [Chip(id=n, logic_id=n, card=n) for n in range(8)]
        levels = FaultLevels(NodePolicy("default", RULES))
        self.state = NodeState(name, SERVER_MODELS["atlas-800t-a2"].machine, chips, levels, polled=polled)


def test_simulated_nodes_offer_devices_while_there_is_a_class() -> None:
    async def story() -> None:
        api = Api()
        agents: Any = {"node-1": Agent("node-1"), "node-2": Agent("node-2"), "new": Agent("new", polled=False)}
        fleet = FleetSlices(api, agents, Clock())
        assert not await fleet._wanted()
        api.classes = True
        assert await fleet._wanted()
        await fleet.publish()
        assert sorted(api.slices) == ["node-1-npu.huawei.com-0", "node-2-npu.huawei.com-0"]
        assert api.names().count("ascend910-7") == 2
        writes = api.writes
        await fleet.publish()
        assert api.writes == writes, "nothing changed"
        agents["node-1"].state.resetting.add(3)
        await fleet.publish()
        body = api.slices["node-1-npu.huawei.com-0"]["spec"]
        assert [one["name"] for one in body["devices"] if "taints" in one] == ["ascend910-3"]

    asyncio.run(story())
