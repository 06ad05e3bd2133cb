"""The DRA driver of a node: slices, calls of a kubelet that speaks the published API, CDI files, one owner a chip."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from belay.agents.common.client import ApiError
from belay.agents.dra import settings as dra_settings
from belay.agents.dra.api import dra_v1_pb2
from belay.agents.dra.api import health_pb2 as health
from belay.agents.dra.api import health_pb2_grpc as health_services
from belay.agents.dra.api import registration_pb2 as registration
from belay.agents.dra.api import registration_pb2_grpc as registration_services
from belay.agents.dra.claims import FILE
from belay.agents.dra.devices import devices, slices
from belay.agents.dra.driver import DraDriver
from belay.agents.dra.settings import DraSettings
from belay.agents.drivers.base import VNPU, Chip, Machine
from belay.agents.drivers.simulated import ServerModel
from tests.agent_world import NODE
from tests.kubelet_world import OPTIONS, Node

SLICES = "/apis/resource.k8s.io/{}/resourceslices"


class ResourceApi:
    """An API server for resource.k8s.io. ``versions``: those served; ``keeps_taints``: whether it has that feature;
    ``counters``: where it takes shared counters (of Kubernetes 1.34 ``beside``, of 1.35 ``apart``; empty: nowhere).
    """

    def __init__(
        self, versions: Sequence[str] = ("v1", "v1beta1"), *, keeps_taints: bool = True, counters: str = ""
    ) -> None:
        self.versions, self.keeps_taints, self.counters = list(versions), keeps_taints, counters
        self.slices: dict[str, dict[str, Any]] = {}
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        self.offline = False
        self.writes = 0

    async def read_object(self, path: str) -> Mapping[str, Any] | None:
        self._online()
        if path == "/apis/resource.k8s.io":
            return {"versions": [{"version": one} for one in self.versions]} if self.versions else None
        if path.removeprefix("/apis/resource.k8s.io/") in ("v1", "v1beta2", "v1beta1"):
            return {"resources": []} if path.rsplit("/", 1)[1] in self.versions else None
        if path.startswith("/api/v1/nodes/"):
            return {"metadata": {"name": NODE, "uid": "u-node"}}
        *_, namespace, _, name = path.split("/")
        return self.claims.get((namespace, name))

    async def list_objects(self, path: str, selector: Mapping[str, str]) -> Sequence[Mapping[str, Any]]:
        self._online()
        return json.loads(json.dumps(list(self.slices.values())))  # type: ignore[no-any-return]

    async def write_object(self, method: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._online()
        path, _, query = path.partition("?")
        self.writes += 1
        name = path.rsplit("/", 1)[1] if method != "POST" else body["metadata"]["name"]
        if method == "DELETE":
            return self.slices.pop(name)
        if method == "PUT" and self.slices[name]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiError(409, "changed")
        kept = json.loads(json.dumps(body))
        kept["metadata"]["resourceVersion"] = str(self.writes)
        for device in () if self.keeps_taints else kept["spec"]["devices"]:
            (device.get("basic") or device).pop("taints", None)
        self._check_counters(kept["spec"])
        if query != "dryRun=All":
            self.slices[name] = kept
        return kept

    def _check_counters(self, spec: dict[str, Any]) -> None:
        """As resource.k8s.io/v1 validates partitionable devices; without the feature the fields are dropped."""
        devices = [device.get("basic") or device for device in spec.get("devices") or ()]
        if not self.counters:
            spec.pop("sharedCounters", None)
            for device in devices:
                device.pop("consumesCounters", None)
            return
        sets = {row["name"] for row in spec.get("sharedCounters") or ()}
        used = {row["counterSet"] for device in devices for row in device.get("consumesCounters") or ()}
        total = sum(len(row["counters"]) for row in spec.get("sharedCounters") or ())
        if self.counters == "apart" and sets and "devices" in spec:
            raise ApiError(422, "spec: Invalid value: only one of sharedCounters and devices may be set")
        if self.counters == "beside" and (used - sets or total > 32):
            raise ApiError(422, "spec: Invalid value: counters")
        if len(devices) > 64 or len(sets) > (8 if self.counters == "apart" else 32):
            raise ApiError(422, "spec: Too many")

    def _online(self) -> None:
        if self.offline:
            raise ApiError(0, "no route")

    def names(self) -> list[str]:
        return [device["name"] for body in self.slices.values() for device in body["spec"].get("devices") or ()]

    def allocate(self, name: str, *given: str, pool: str = NODE, **more: Any) -> None:
        rows = [{"request": "npus", "driver": "npu.huawei.com", "pool": pool, "device": one, **more} for one in given]
        self.claims["train", name] = {
            "metadata": {"namespace": "train", "name": name, "uid": f"u-{name}"},
            "status": {"allocation": {"devices": {"results": rows}}},
        }


class DraNode(Node):
    """A node with agent, device plugin, DRA driver, and the half of kubelet that calls the latter."""

    def __init__(self, api: ResourceApi, row: ServerModel | None = None, **settings: Any) -> None:
        super().__init__(row, **settings)
        self.api = api
        for folder in ("dev", "host/usr/local/Ascend/driver/lib64/driver", "host/usr/local/dcmi"):
            (self.root / folder).mkdir(parents=True)
        for name in (*(f"davinci{n}" for n in range(8)), "davinci_manager", "hisi_hdc", "devmm_svm"):
            (self.root / "dev" / name).touch()
        self.files = DraSettings(
            cdi=self.root / "cdi", registrar=self.root / "r", plugins=self.root / "p", dev=self.root / "dev",
            host_root=str(self.root / "host"), period=0.05,
        )  # fmt: skip
        self.dra: DraDriver

    async def boot(self, *, wait: bool = True) -> None:
        clock = self.clock
        cuts = self.driver if self.settings.dynamic else None
        self.dra = DraDriver(NODE, self.api, self.root / "state", self.files, clock, lambda: self.agent.state, cuts)
        self.claimed = self.dra.claims.held
        await super().boot(wait=wait)
        self.tasks.append(asyncio.create_task(self.dra.run()))
        await self.until(lambda: (self.root / "r/npu.huawei.com-reg.sock").exists())

    async def until(self, truth: Any, seconds: float = 60.0) -> None:
        await super().until(truth, seconds)

    async def register(self) -> registration.PluginInfo:
        path = f"unix:{self.root}/r/npu.huawei.com-reg.sock"
        async with grpc.aio.insecure_channel(path, options=OPTIONS) as channel:
            stub = registration_services.RegistrationStub(channel)
            info = await stub.GetInfo(registration.InfoRequest())
            await stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True))
            return info

    async def call(self, method: str, *names: str, beta: bool = False) -> Any:
        """One call of kubelet about claims, by the endpoint that the driver registered. The answers by claim."""
        api, version = dra_v1_pb2, "v1beta1" if beta else "v1"
        endpoint = (await self.register()).endpoint
        async with grpc.aio.insecure_channel(f"unix:{endpoint}", options=OPTIONS) as channel:
            claims = [api.Claim(namespace="train", name=name, uid=f"u-{name}") for name in names]
            request = getattr(api, f"{method}Request")(claims=claims)
            send = channel.unary_unary(
                f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=getattr(api, f"{method}Response").FromString,
            )
            answer = await send(request)
            return {name: answer.claims[f"u-{name}"] for name in names}

    async def prepare(self, *names: str, beta: bool = False) -> Any:
        return await self.call("NodePrepareResources", *names, beta=beta)

    async def unprepare(self, *names: str) -> Any:
        return await self.call("NodeUnprepareResources", *names)

    def cdi(self, name: str) -> dict[str, Any]:
        return json.loads((self.root / f"cdi/ascend.com-npu_u-{name}.json").read_text())  # type: ignore[no-any-return]


def play(story: Any, api: ResourceApi | None = None) -> None:
    async def whole() -> None:
        async with DraNode(api or ResourceApi()) as node:
            await story(node)

    asyncio.run(whole())


def test_the_driver_registers_with_both_versions_of_the_api() -> None:
    async def story(node: DraNode) -> None:
        info = await node.register()
        assert (info.type, info.name) == ("DRAPlugin", "npu.huawei.com")
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        assert info.endpoint == str(node.root / "p/npu.huawei.com/dra.sock")

    play(story)


@pytest.mark.parametrize("beta", [False, True])
def test_a_claim_is_prepared_with_its_chips_alone_and_taken_back(beta: bool) -> None:
    async def story(node: DraNode) -> None:
        await node.until(lambda: len(node.api.names()) == 8)
        node.api.allocate("two", "ascend910-2", "ascend910-3")
        answer = (await node.prepare("two", beta=beta))["two"]
        assert not answer.error
        assert [one.device_name for one in answer.devices] == ["ascend910-2", "ascend910-3"]
        assert all(one.pool_name == NODE and list(one.request_names) == ["npus"] for one in answer.devices)
        body = node.cdi("two")
        named = [f"{body['kind']}={one['name']}" for one in body["devices"]]
        assert [name for one in answer.devices for name in one.cdi_device_ids] == named
        inside = [one["containerEdits"]["deviceNodes"][0]["path"] for one in body["devices"]]
        assert inside == ["/dev/davinci2", "/dev/davinci3"]
        shared = body["containerEdits"]
        assert {one["path"] for one in shared["deviceNodes"]} == {
            "/dev/davinci_manager", "/dev/hisi_hdc", "/dev/devmm_svm"}  # fmt: skip
        assert {"/usr/local/dcmi", "/usr/local/Ascend/driver/lib64"} == {one["hostPath"] for one in shared["mounts"]}
        assert shared["env"] == ["LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64/driver"]
        again = (await node.prepare("two", beta=beta))["two"]
        assert again == answer, "kubelet may ask again"
        assert not (await node.unprepare("two"))["two"].error
        assert not list((node.root / "cdi").glob("*.json")) and not node.dra.claims.held
        assert not (await node.unprepare("two"))["two"].error, "kubelet may ask again"

    play(story)


def test_a_chip_has_one_owner_between_the_device_plugin_and_claims() -> None:
    async def story(node: DraNode) -> None:
        node.api.allocate("one", "ascend910-0")
        assert not (await node.prepare("one"))["one"].error
        await node.until(lambda: "Ascend910-0" not in node.listed(""))
        await node.until(lambda: node.kubelet.devices["huawei.com/Ascend910"]["Ascend910-0"] == "Unhealthy")
        taker = node.pod("taker", ["Ascend910-0"])
        await node.seen("taker")
        with pytest.raises(grpc.aio.AioRpcError, match="train/one"):
            await node.kubelet.admit(taker)
        other = node.pod("other", ["Ascend910-1"])
        await node.seen("other")
        await node.kubelet.admit(other)
        await node.until(lambda: node.agent.state is not None and bool(node.agent.state.users.of([1])))
        for name, device in (("late", "ascend910-1"), ("double", "ascend910-0")):
            node.api.allocate(name, device)
        refused = await node.prepare("late", "double")
        assert "pod default/other holds it" in refused["late"].error
        assert "ResourceClaim train/one holds it" in refused["double"].error
        node.api.allocate("watcher", "ascend910-1", adminAccess=True)
        assert not (await node.prepare("watcher"))["watcher"].error
        assert set(node.dra.claims.held) == {0}

    play(story)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda api: api.claims.clear(), "is gone"),
        (lambda api: api.claims["train", "c"]["metadata"].update(uid="another"), "is gone"),
        (lambda api: api.claims["train", "c"].update(status={}), "no device of driver npu.huawei.com"),
        (lambda api: api.allocate("c", "ascend910-9"), "which this node does not have"),
        (lambda api: api.allocate("c", "ascend910-1", pool="n9"), "not of this node"),
        (lambda api: api.claims["train", "c"].update(metadata=None), "is gone"),
        (lambda api: api.claims["train", "c"].update(status={"allocation": {"devices": {"results": 7}}}), "no device"),
        (
            lambda api: api.claims["train", "c"].update(status={"allocation": {"devices": {"results": [7]}}}),
            "no device",
        ),
        (lambda api: api.claims["train", "c"].update(status=[]), "no device"),
        (lambda api: setattr(api, "offline", True), "cannot be read"),
    ],
)
def test_a_claim_that_cannot_be_prepared_says_why_and_the_others_are(change: Any, text: str) -> None:
    async def story(node: DraNode) -> None:
        await node.until(lambda: bool(node.api.slices))
        node.api.allocate("good", "ascend910-7")
        assert not (await node.prepare("good"))["good"].error
        node.api.allocate("c", "ascend910-1")
        change(node.api)
        answers = await node.prepare("c", "good")
        assert text in answers["c"].error and not answers["good"].error
        assert set(node.dra.claims.held) == {7}

    play(story)


def test_prepared_claims_outlive_the_agent_and_a_reboot() -> None:
    async def story(node: DraNode) -> None:
        node.api.allocate("one", "ascend910-5")
        before = (await node.prepare("one"))["one"]
        await node.crash()
        for path in (node.root / "cdi").glob("*.json"):
            path.unlink()
        await node.boot()
        await node.until(lambda: bool(list((node.root / "cdi").glob("*.json"))))
        assert set(node.dra.claims.held) == {5}
        await node.until(lambda: node.kubelet.devices["huawei.com/Ascend910"]["Ascend910-5"] == "Unhealthy")
        del node.api.claims["train", "one"]
        assert (await node.prepare("one"))["one"] == before, "the claim is known without the API server"

    play(story)


def test_nothing_is_prepared_while_earlier_claims_cannot_be_read() -> None:
    async def story(node: DraNode) -> None:
        await node.crash()
        (node.root / "state" / FILE).write_text('{"u": {"namesp')
        await node.boot()
        node.api.allocate("one", "ascend910-5")
        error = (await node.prepare("one"))["one"].error
        assert FILE in error and "drain the node" in error
        await node.until(lambda: "dra slices" in node.agent.state.problems)  # type: ignore[union-attr]
        await node.until(lambda: set(node.kubelet.devices["huawei.com/Ascend910"].values()) == {"Unhealthy"})

    play(story)


def test_only_a_claim_that_is_gone_and_that_no_pod_names_is_swept() -> None:
    async def story(node: DraNode) -> None:
        await node.until(lambda: bool(node.api.slices))
        node.api.allocate("one", "ascend910-5")
        assert not (await node.prepare("one"))["one"].error
        claims, node.api.claims = node.api.claims, {}
        node.api.versions, served = [], node.api.versions
        for _ in range(3):
            await node.dra._sweep()
        assert set(node.dra.claims.held) == {5}, "an API server without the API says nothing about claims"
        node.api.versions = served
        state = node.agent.state
        assert state is not None
        user = {"metadata": {"namespace": "train"}, "status": {"phase": "Running"},
                "spec": {"resourceClaims": [{"name": "chips", "resourceClaimName": "one"}]}}  # fmt: skip
        state.bodies = [user]
        for _ in range(3):
            await node.dra._sweep()
        assert set(node.dra.claims.held) == {5}, "the pod's containers may still run"
        state.bodies = [{**user, "status": {"phase": "Failed"}}]
        node.api.claims = claims
        await node.dra._sweep()
        await node.dra._sweep()
        assert set(node.dra.claims.held) == {5}
        node.api.claims = {}
        await node.dra._sweep()
        assert set(node.dra.claims.held) == {5}, "one look may be a mistake"
        await node.dra._sweep()
        assert not node.dra.claims.held and not list((node.root / "cdi").glob("*.json"))

    play(story)


def test_a_chip_counts_as_held_before_the_disk_has_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """An act looks at ``held`` after it withdrew its chips, and a claim at what is withdrawn after it holds them: of
    two that begin together at least one sees the other."""

    async def story(node: DraNode) -> None:
        node.api.allocate("one", "ascend910-5")
        node.api.allocate("two", "ascend910-6")
        claims, state = node.dra.claims, node.agent.state
        assert state is not None
        seen: list[set[int]] = []
        write = claims._write
        monkeypatch.setattr(claims, "_write", lambda: (seen.append(set(claims.held)), write()))
        assert not (await node.prepare("one"))["one"].error
        assert seen == [{5}]
        grant = claims._granted

        def slow(*given: Any) -> Any:
            found = grant(*given)
            state.resetting.add(6)
            return found

        monkeypatch.setattr(claims, "_granted", slow)
        assert "it is being reset" in (await node.prepare("two"))["two"].error
        assert set(claims.held) == {5} and seen == [{5}]

    play(story)


def test_slices_follow_the_devices_and_what_others_did_to_them() -> None:
    async def story(node: DraNode) -> None:
        await node.until(lambda: len(node.api.names()) == 8)
        ((name, body),) = node.api.slices.items()
        assert body["apiVersion"] == "resource.k8s.io/v1" and body["metadata"]["ownerReferences"][0]["uid"] == "u-node"
        first = body["spec"]["pool"]["generation"]
        chip = body["spec"]["devices"][3]
        assert chip["attributes"]["physicId"] == {"int": 3} and "taints" not in chip
        node.driver.inject(3, "80C98001")
        await node.until(lambda: "taints" in node.api.slices[name]["spec"]["devices"][3])
        changed = node.api.slices[name]["spec"]
        assert changed["devices"][3]["taints"][0]["effect"] == "NoSchedule"
        assert changed["pool"]["generation"] > first
        node.api.slices["left-by-another"] = {
            "metadata": {"name": "left-by-another", "resourceVersion": "1"},
            "spec": {"driver": "npu.huawei.com", "nodeName": NODE, "pool": {"name": NODE, "generation": 40}},
        }
        node.driver.clear(3, "80C98001")
        await node.until(lambda: "taints" not in node.api.slices[name]["spec"]["devices"][3])
        await node.until(lambda: list(node.api.slices) == [name])
        assert node.api.slices[name]["spec"]["pool"]["generation"] > 40

    play(story)


def test_chips_that_the_device_plugin_gave_are_tainted_until_the_pod_ends() -> None:
    """kube-scheduler knows claims only: without the taint it gives such a chip again, and its pod hangs."""

    async def story(node: DraNode) -> None:
        await node.until(lambda: len(node.api.names()) == 8)
        ((name, _),) = node.api.slices.items()
        held = node.pod("by-plugin", ["Ascend910-3"])
        await node.seen("by-plugin")
        await node.kubelet.admit(held)
        await node.until(lambda: "taints" in node.api.slices[name]["spec"]["devices"][3])
        tainted = [d["name"] for d in node.api.slices[name]["spec"]["devices"] if "taints" in d]
        (taint,) = node.api.slices[name]["spec"]["devices"][3]["taints"]
        assert tainted == ["ascend910-3"]
        assert taint == {"key": "npu.huawei.com/in-use", "value": "true", "effect": "NoSchedule"}
        node.finish("by-plugin", "Succeeded")
        await node.until(lambda: "taints" not in node.api.slices[name]["spec"]["devices"][3])

    play(story)


def test_a_server_without_taints_is_not_offered_faulty_chips() -> None:
    async def story(node: DraNode) -> None:
        await node.until(lambda: len(node.api.names()) == 8)
        node.driver.inject(3, "80C98001")
        await node.until(lambda: "ascend910-3" not in node.api.names())
        assert len(node.api.names()) == 7
        ((_, body),) = node.api.slices.items()
        assert set(body["spec"]["devices"][0]) == {"name", "basic"}

    play(story, ResourceApi(["v1beta1"], keeps_taints=False))


def test_an_api_server_without_dra_or_away_is_said_and_tried_again() -> None:
    async def story(node: DraNode) -> None:
        def problems() -> Mapping[str, str]:
            return node.agent.state.problems if node.agent.state else {}

        await node.until(lambda: "serves none of resource.k8s.io" in problems().get("dra slices", ""))
        node.api.versions = ["v1"]
        node.dra.publisher._due = 0.0
        await node.until(lambda: len(node.api.names()) == 8 and "dra slices" not in problems())

    play(story, ResourceApi([]))


def test_health_is_streamed_to_kubelet() -> None:
    async def story(node: DraNode) -> None:
        endpoint = (await node.register()).endpoint
        async with grpc.aio.insecure_channel(f"unix:{endpoint}", options=OPTIONS) as channel:
            stream = health_services.DRAResourceHealthStub(channel).NodeWatchResources(
                health.NodeWatchResourcesRequest()
            )
            seen: list[list[str]] = []
            async for answer in stream:
                bad = [one.device.device_name for one in answer.devices if one.health == health.UNHEALTHY]
                seen.append(bad)
                if len(seen) == 1:
                    node.driver.inject(6, "80C98001")
                if bad:
                    break
            assert seen[0] == [] and len(answer.devices) == 8
            assert bad == ["ascend910-6"]
            stream.cancel()

    play(story)


MACHINE = Machine(
    resource="huawei.com/Ascend310P", prefix="Ascend310P-", chip_name="Ascend310P3", accelerator="huawei-Ascend310P",
    server_type="Ascend310P-8", driver_version="24.1.rc2", memory_gb=21,
)  # fmt: skip


def test_a_chip_that_is_cut_is_offered_as_its_vnpus() -> None:
    chips = [Chip(id=0, logic_id=0, card=0), Chip(id=1, logic_id=1, card=0)]
    found = devices(MACHINE, chips, [VNPU(100, 0, "vir04"), VNPU(101, 0, "vir02")], ())
    assert [one.name for one in found] == ["ascend310p-0-vnpu-100", "ascend310p-0-vnpu-101", "ascend310p-1"]
    assert found[0].values["type"] == "vnpu" and found[0].values["template"] == "vir04"
    assert found[2].capacity == {"memory": "21Gi", "aiCores": "8"}
    (body,) = slices("n", None, found, 7, "v1beta2", taints=True)
    assert body["spec"]["devices"][2]["capacity"] == {"memory": {"value": "21Gi"}, "aiCores": {"value": "8"}}


def test_a_large_pool_is_cut_into_slices_that_the_api_takes() -> None:
    chips = [Chip(id=n, logic_id=n, card=n) for n in range(70)]
    found = slices("n", None, devices(MACHINE, chips, [], ()), 3, "v1", taints=True)
    assert [len(body["spec"]["devices"]) for body in found] == [64, 6]
    assert all(body["spec"]["pool"] == {"name": "n", "generation": 3, "resourceSliceCount": 2} for body in found)
    (empty,) = slices("n", None, [], 4, "v1", taints=True)
    assert empty["spec"]["devices"] == []


def test_flags_are_those_of_the_drivers_original(tmp_path: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    dra_settings.add(parser)
    assert dra_settings.chosen(parser.parse_args([])) is None
    chosen = dra_settings.chosen(parser.parse_args(["--dra", "--cdi-root=/etc/cdi"]))
    assert chosen is not None and chosen.cdi == Path("/etc/cdi")
    with pytest.raises(ValueError, match="--cdi-root 'cdi' is not an absolute path"):
        dra_settings.chosen(parser.parse_args(["--dra", "--cdi-root", "cdi"]))
