"""The pure parts of the device plugin: ids, flags, answers, who is meant, kubelet's checkpoint, the mapping."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.agents.drivers.base import VNPU, Chip
from belay.agents.drivers.server_models import SERVER_MODELS, machine
from belay.agents.kubelet import annotate, choice, flags, mapping, names
from belay.agents.kubelet.api import podresources_v1_pb2 as resources
from belay.agents.kubelet.api.deviceplugin_pb2 import ContainerAllocateResponse, DeviceSpec
from belay.agents.kubelet.choice import Demand
from belay.agents.kubelet.device_holdings import DeviceHoldings, HoldingsError, parse_checkpoint
from belay.agents.kubelet.inventory import offers
from belay.agents.kubelet.ledger import Grant, Ledger
from belay.agents.kubelet.pods import PodFacts, facts
from belay.agents.kubelet.response import Given, respond, topo_file
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.kubelet.templates import suffixes
from belay.agents.kubelet.topology import cpus
from belay.agents.node.policy import FaultLevels
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.state import NodeState
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import RULES

NPU = "huawei.com/Ascend910"


@pytest.mark.parametrize(
    ("name", "shared", "found"),
    [
        ("Ascend910-0", False, (0, None, "")),
        ("Ascend310P-VPro-3", False, (3, None, "")),
        ("npu-7", False, (7, None, "")),
        ("davinci-mini-2", False, (2, None, "")),
        ("Ascend310P-3-1", True, (3, None, "")),
        ("Ascend910-2c-100-0", False, (0, 100, "2c")),
        ("Ascend310P-4c.3cpu.ndvpp-101-1_3", False, (1, 101, "4c.3cpu.ndvpp")),
    ],
)
def test_ids_are_read(name: str, shared: bool, found: tuple[int, int | None, str]) -> None:
    assert names.parse(name, shared=shared) == found


@pytest.mark.parametrize(
    "name", ["Ascend910", "", "Ascend910-x", "Ascend910-256", "A" * 49 + "-0", "Ascend910-2c-99-0", "Ascend910-0x1"]
)
def test_bad_ids_are_named(name: str) -> None:
    with pytest.raises(ValueError, match="device id"):
        names.parse(name)


@pytest.mark.parametrize(
    ("kind", "spec", "legal"),
    [
        ("Ascend910", "2c", True), ("Ascend910", "12c.3cpu.32g", True), ("Ascend910", "7c", False),
        ("Ascend910", "10c.3cpu.16g.ndvpp", True), ("Ascend310P", "4c.4cpu.dvpp", True), ("Ascend310P", "8c", False),
        ("Ascend310P", "1c", True), ("Ascend310", "1c", False), ("Ascend910", "2cx", False),
    ],
)  # fmt: skip
def test_specs(kind: str, spec: str, legal: bool) -> None:
    assert names.legal_spec(kind, spec) is legal


def test_ids_are_listed_as_people_count() -> None:
    assert names.listed(["Ascend910-10", "Ascend910-2"]) == "Ascend910-2,Ascend910-10"


@pytest.mark.parametrize(
    ("resource", "chip", "template", "suffix"),
    [
        (NPU, "910B3", "vir10_3c_32g", "10c.3cpu.32g"), (NPU, "910B4", "vir10_3c_16g_nm", "10c.3cpu.16g.ndvpp"),
        ("huawei.com/Ascend310P", "310P3", "vir04_4c_dvpp", "4c.4cpu.dvpp"), (NPU, "910A", "vir16", "16c"),
    ],
)  # fmt: skip
def test_templates_are_offered_by_their_suffix(resource: str, chip: str, template: str, suffix: str) -> None:
    assert suffixes(resource, chip)[template] == suffix


# ---- flags


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    flags.add(parser)
    return parser.parse_args(arguments)


def test_the_originals_flags_are_settings() -> None:
    options = parsed(
        "-volcanoType=true", "-presetVirtualDevice=false", "--listWatchPeriod=9", "-hotReset=-1", "-linkdownTimeout=25",
        "-deviceResetTimeout=150", "-thirdPartyScanDelay=0", "-enableSlowNode", "-useSingleDieMode=F", "-logLevel=-1",
    )  # fmt: skip
    env = {"HOST_IP": "10.1.2.3", "ASCEND_DOCKER_RUNTIME": "True", "KUBELET_PORT": "10255"}
    found = flags.plugin_settings(options, env)
    assert (found.volcano, found.preset, found.slow_node, found.single_die) == (True, False, True, False)
    assert (found.host_ip, found.runtime, found.kubelet_port, found.period) == ("10.1.2.3", True, 10255, 9.0)
    node = flags.node_settings(options, Settings())
    assert (node.poll, node.cards_timeout, node.resets, node.third_party_delay) == (9.0, 150.0, False, 0.0)
    assert Settings().third_party_delay == 300.0
    assert flags.policy(options, shipped_policy()).rules.duration["81078603"].timeout_ms == 25_000
    assert flags.log_level(options) == "DEBUG"


def test_defaults_are_the_originals() -> None:
    found = flags.plugin_settings(parsed(), {})
    assert (found.volcano, found.preset, found.share, found.mixed, found.runtime) == (False, True, 1, False, False)
    assert flags.node_settings(parsed(), Settings()) == Settings()
    assert flags.policy(parsed(), shipped_policy()) == shipped_policy()


@pytest.mark.parametrize(
    "argument",
    [
        "-shareDevCount=0",
        "-shareDevCount=101",
        "-listWatchPeriod=2",
        "-hotReset=1",
        "-hotReset=3",
        "-linkdownTimeout=31",
        "-deviceResetTimeout=9",
        "-thirdPartyScanDelay=-1",
        "-logLevel=4",
        "-maxAge=6",
        "-maxBackups=181",
        "-volcanoType=yes",
    ],
)
def test_flags_out_of_range_are_refused(argument: str) -> None:
    with pytest.raises((argparse.ArgumentError, SystemExit)):
        parsed(argument)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"preset": False}, "volcanoType=true"),
        ({"preset": False, "volcano": True, "share": 2}, "shareDevCount=1"),
        ({"mixed": True, "volcano": True}, "use310PMixedInsert"),
        ({"mixed": True, "share": 2}, "use310PMixedInsert"),
        ({"soft_share_dir": "x", "volcano": True, "share": 100}, "absolute"),
        ({"soft_share_dir": "/x", "volcano": True, "share": 99}, "shareDevCount=100"),
        ({"soft_share_dir": "/x", "share": 100}, "volcanoType=true"),
    ],
)
def test_flags_that_do_not_go_together(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PluginSettings(**fields)


def test_flags_are_compared_with_the_node() -> None:
    dynamic = PluginSettings(volcano=True, preset=False)
    dynamic.check("Ascend910B-20", {})
    with pytest.raises(ValueError, match="presetVirtualDevice"):
        dynamic.check("Ascend910-30", {})
    with pytest.raises(ValueError, match="Duo"):
        dynamic.check("Ascend310P-8", {"infer-card-type": "card-300i-duo"})
    dynamic.check_products({"Atlas 300I Pro"})
    with pytest.raises(ValueError, match="presetVirtualDevice=false is not for Atlas 200I SoC A1"):
        dynamic.check_products({"Atlas 200I SoC A1"})
    PluginSettings(volcano=True).check_products({"Atlas 200I SoC A1"})
    soft = PluginSettings(volcano=True, share=100, soft_share_dir="/x")
    soft.check("Ascend910B-20", {})
    with pytest.raises(ValueError, match="useSingleDieMode"):
        soft.check("Ascend910A3-24", {})
    with pytest.raises(ValueError, match="shareDevCount"):
        PluginSettings(share=2).check("Ascend910B-20", {})


# ---- what is offered


def test_mixed_servers_offer_each_card_by_its_product() -> None:
    chips = [Chip(id=n, logic_id=n, card=n) for n in range(4)]
    found, trouble = offers(
        machine("huawei.com/Ascend310P", "310P3"), chips, (), PluginSettings(mixed=True), suffixes={},
        products={0: "Atlas 300V", 1: "Atlas 300V Pro", 2: "Atlas 300I Pro", 3: "Atlas 300I Duo"},
    )  # fmt: skip
    assert {resource: set(offer.own) for resource, offer in found.items()} == {
        "huawei.com/Ascend310P-V": {"Ascend310P-V-0"},
        "huawei.com/Ascend310P-VPro": {"Ascend310P-VPro-1"},
        "huawei.com/Ascend310P-IPro": {"Ascend310P-IPro-2"},
    }
    assert trouble == ["Ascend310P-3 is no card of a mixed server: Atlas 300I Duo"]


def test_more_devices_than_a_node_may_have_are_not_offered() -> None:
    chips = [Chip(id=n, logic_id=n, card=n) for n in range(101)]
    found, trouble = offers(
        machine("huawei.com/Ascend310P", "310P3"), chips, (), PluginSettings(), suffixes={}, products={}
    )
    assert not found and "may have 100" in trouble[0]


def test_a_vnpu_without_a_resource_is_reported() -> None:
    chips = [Chip(id=0, logic_id=0, card=0)]
    row = SERVER_MODELS["atlas-300i-pro"].machine
    found, trouble = offers(row, chips, [VNPU(100, 0, "own")], PluginSettings(), suffixes={}, products={})
    assert not found["huawei.com/Ascend310P"].own
    assert "vNPU 100 of Ascend310P-0 has template 'own'" in trouble[0]


# ---- answers


def answer(dev: Path, **fields: Any) -> ContainerAllocateResponse:
    given_: dict[str, Any] = {"visible": ["1"], "numbers": [1], "family": "Ascend910B"}
    return respond(Given(**(given_ | fields)), dev)


def test_without_the_runtime_containers_get_the_nodes_themselves(tmp_path: Path) -> None:
    (tmp_path / "dvpp_cmdlist").touch()
    (tmp_path / "uburma").mkdir()
    (tmp_path / "uburma" / "udma0").touch()
    found = answer(tmp_path)
    assert not found.envs
    assert [(d.host_path, d.container_path, d.permissions) for d in found.devices] == [
        (str(tmp_path / name), f"/dev/{name}", "rw")
        for name in ("davinci1", "davinci_manager", "hisi_hdc", "devmm_svm", "dvpp_cmdlist", "uburma/udma0")
    ]
    virtual = answer(tmp_path, numbers=[100], virtual=True)
    assert (virtual.devices[0].host_path, virtual.devices[0].container_path) == (
        str(tmp_path / "vdavinci100"),
        "/dev/davinci100",
    )


def test_310b_maps_its_own_manager_and_allows_links(tmp_path: Path) -> None:
    for name in ("davinci_manager_docker", "svm0", "hdmi"):
        (tmp_path / name).touch()
    plain = answer(tmp_path, family="Ascend310B")
    pairs = {d.container_path: d.host_path for d in plain.devices}
    assert pairs["/dev/davinci_manager"] == str(tmp_path / "davinci_manager_docker")
    assert {"/dev/svm0", "/dev/hdmi"} <= pairs.keys() and "/dev/venc" not in pairs
    assert answer(tmp_path, family="Ascend310B", runtime=True).envs["ASCEND_ALLOW_LINK"] == "True"


def test_soc_nodes_must_be_there(tmp_path: Path) -> None:
    products = frozenset({"Atlas 200I SoC A1"})
    with pytest.raises(ValueError, match="vpc is missing"):
        answer(tmp_path, products=products, runtime=True)
    for name in [
        "vpc",
        "vdec",
        "sys",
        "spi_smbus",
        "user_config",
        "ts_aisle",
        "svm0",
        "log_drv",
        "memory_bandwidth",
        "upgrade",
    ]:
        (tmp_path / name).touch()
    found = {d.container_path for d in answer(tmp_path, products=products, runtime=True).devices}
    assert "/dev/upgrade" in found and "/dev/xsmem_dev" not in found


@pytest.mark.parametrize(
    ("kind", "board", "file"),
    [(0, 0, "atlas_850_1.json"), (1, 7, "atlas_950_1.json"), (2, 3, "atlas_950_2.json"), (3, 0, "atlas_850_2.json"),
     (4, 0, "atlas_850_3.json"), (-1, 0x68, "atlas_350_1.json"), (-1, 0x6C, "atlas_350_3.json")],
)  # fmt: skip
def test_topology_files(kind: int, board: int, file: str) -> None:
    assert topo_file(kind, board) == f"/usr/local/Ascend/driver/topo/950/{file}"


def test_no_topology_file_elsewhere() -> None:
    assert topo_file(-1, 0x1C) == ""


# ---- who is meant


def pod(name: str, text: str, *, count: int = 1, resource: str = NPU, time: str = "5", **changes: Any) -> PodFacts:
    body = {
        "metadata": {
            "name": name, "namespace": "d", "uid": name, "annotations": {resource: text, "predicate-time": time},
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if changes.get("deleting") else {}),
        },
        "spec": {"containers": [{"resources": {"limits": {resource: str(count)}}}]},
        "status": {"phase": changes.get("phase", "Pending"), "reason": changes.get("reason", "")},
    }  # fmt: skip
    return facts(body)


@pytest.mark.parametrize(
    ("pods", "meant"),
    [
        ([pod("a", "Ascend910-0", time="9"), pod("b", "Ascend910-1", time="3")], ["b", "a"]),
        ([pod("a", "Ascend910-0", deleting=True)], []),
        ([pod("a", "Ascend910-0", reason="UnexpectedAdmissionError")], []),
        ([pod("a", "Ascend910-0", phase="Failed")], []),
        ([pod("a", "")], []),
        ([pod("a", "Ascend910-0", time="")], []),
        ([pod("a", "Ascend910-0", time="18446744073709551615")], []),
        ([pod("a", "Ascend910-0,Ascend910-1", count=2)], []),
        ([pod("a", "Ascend910-0", count=0)], []),
        ([pod("a", "Ascend910-0", time="5"), pod("b", "Ascend910-1", time="5")], ["a", "b"]),
    ],
)
def test_candidates(pods: list[PodFacts], meant: list[str]) -> None:
    found, _ = choice.candidates(pods, Demand(NPU, 1), times={}, chip_of=lambda n: names.parse(n).chip)
    assert [wanted.pod.name for wanted in found] == meant


@pytest.mark.parametrize(
    ("text", "count", "chips"),
    [
        ("0-vir02", 2, ((0, 2),)), ("0-vir02", 4, None), ("0,1", 16, ((0, 8), (1, 8))), ("0,1", 8, None),
        ("3", 8, ((3, 8),)), ("1-vir04_3c", 4, ((1, 4),)),
    ],
)  # fmt: skip
def test_cores_must_be_exactly_those_asked_for(text: str, count: int, chips: Any) -> None:
    resource = "huawei.com/npu-core"
    pods = [pod("a", text, count=count, resource=resource)]
    found, _ = choice.candidates(pods, Demand(resource, count, 8), times={}, chip_of=lambda n: 0)
    assert [w.chips for w in found] == ([] if chips is None else [chips])


def test_an_annotation_that_cannot_be_read_is_reported() -> None:
    pods = [pod("a", "Ascend910-x"), pod("b", "Ascend910-1,Ascend910-1", count=2)]
    _, odd = choice.candidates(pods[:1], Demand(NPU, 1), times={}, chip_of=lambda n: names.parse(n).chip)
    assert "d/a" in odd[0] and "Ascend910-x" in odd[0]
    _, odd = choice.candidates(pods[1:], Demand(NPU, 2), times={}, chip_of=lambda n: names.parse(n).chip)
    assert "names a chip twice" in odd[0]


# ---- kubelet's books


def entry(ids: Any, response: ContainerAllocateResponse) -> dict[str, Any]:
    return {
        "PodUID": "u", "ContainerName": "c", "ResourceName": NPU, "DeviceIDs": ids,
        "AllocResp": base64.b64encode(response.SerializeToString()).decode(),
    }  # fmt: skip


@pytest.mark.parametrize("ids", [["Ascend910-3", "Ascend910-1"], {"-1": ["Ascend910-1"], "0": ["Ascend910-3"]}])
def test_the_checkpoint_of_old_and_new_kubelets(ids: Any) -> None:
    response = ContainerAllocateResponse(envs={"ASCEND_VISIBLE_DEVICES": "4,6"})
    other = {"PodUID": "x", "ContainerName": "c", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ["g"]}
    raw = json.dumps({"Data": {"PodDeviceEntries": [entry(ids, response), other]}, "Checksum": 1}).encode()
    (found,) = parse_checkpoint(raw)
    assert (found.uid, found.ids, found.visible) == ("u", ("Ascend910-1", "Ascend910-3"), ("4", "6"))


def test_the_checkpoint_lists_device_nodes_too() -> None:
    nodes = [DeviceSpec(container_path=f"/dev/{name}", host_path="/x") for name in ("davinci5", "davinci_manager")]
    raw = json.dumps({"Data": {"PodDeviceEntries": [entry(["a"], ContainerAllocateResponse(devices=nodes))]}}).encode()
    assert parse_checkpoint(raw)[0].nodes == (5,)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"Data": 1}', b'{"Data": {"PodDeviceEntries": [{"ResourceName": 1}]}}'])
def test_what_is_no_checkpoint(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(raw)
    books = DeviceHoldings(tmp_path / "none", tmp_path / "c", 1.0)
    try:
        assert books.checkpoint() == ()
    except HoldingsError as error:
        assert "no checkpoint" in str(error)


def test_a_kubelet_that_has_the_older_service_only_is_read() -> None:
    pod = resources.PodResources(name="p", namespace="d")
    devices = resources.ContainerDevices(resource_name="huawei.com/Ascend910", device_ids=["Ascend910-1"])
    pod.containers.append(resources.ContainerResources(name="c", devices=[devices]))

    async def answer(request: Any, context: Any) -> Any:
        return resources.ListPodResourcesResponse(pod_resources=[pod])

    async def story(socket: Path) -> None:
        server = grpc.aio.server()
        listing = grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=resources.ListPodResourcesRequest.FromString,
            response_serializer=resources.ListPodResourcesResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler("v1alpha1.PodResourcesLister", {"List": listing})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        books = DeviceHoldings(socket, socket.parent / "none", 5.0)
        for _ in range(2):
            (found,) = await books.listed()
            assert (found.namespace, found.name, found.container) == ("d", "p", "c")
            assert (found.resource, found.ids) == ("huawei.com/Ascend910", ("Ascend910-1",))
        await books.close()
        await server.stop(None)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(story(Path(folder) / "s"))


# ---- the ledger


def test_the_ledger_survives_a_torn_line_and_puts_a_damaged_file_aside(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.open()
    grants = [Grant(n, NPU, (f"Ascend910-{n}",), (), ((n, 1),)) for n in (1, 2, 3)]
    ledger.change(grants, ())
    ledger.change((), [2])
    path = tmp_path / "grants"
    raw = path.read_bytes()
    path.write_bytes(raw[:-5])
    again = Ledger(tmp_path)
    again.open()
    assert [g.number for g in again.grants] == [1, 2, 3] and not again.lost
    path.write_bytes(raw.replace(b"Ascend910-1", b"Ascend910-7"))
    third = Ledger(tmp_path)
    third.open()
    assert third.grants == [] and "damaged" in third.lost
    assert (tmp_path / "grants.damaged").exists()


def test_the_ledger_does_not_grow_for_ever(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.open()
    for number in range(1, 4000):
        ledger.change([Grant(number, NPU, ("Ascend910-0",) * 8, (), ((0, 1),))], [number - 1])
    assert (tmp_path / "grants").stat().st_size <= 512 * 1024
    assert [g.number for g in ledger.grants] == [3999] and ledger.next() == 4000


# ---- the mapping


@st.composite
def nodes(draw: st.DrawFn) -> tuple[dict[str, int], dict[int, int], dict[str, int]]:
    parts = draw(st.sampled_from([1, 3]))
    chips = draw(st.integers(1, 6))
    own = {f"c-{chip}-{part}": chip for chip in range(chips) for part in range(parts)}
    ids = draw(st.lists(st.sampled_from(sorted(own)), unique=True))
    slots = [chip for chip in range(chips) for _ in range(parts)]
    real = draw(st.permutations(slots))[: len(ids)]
    return own, dict.fromkeys(range(chips), parts), dict(zip(ids, real, strict=True))


@settings(max_examples=300, deadline=None)
@given(nodes(), st.sets(st.integers(0, 5)))
def test_what_kubelet_has_left_is_what_is_free(
    node: tuple[dict[str, int], dict[int, int], dict[str, int]], bad: set[int]
) -> None:
    own, parts, held = node
    stands = mapping.stands_for(own, parts, held, {})
    assert all(stands[name] == chip for name, chip in held.items())
    assert Counter(stands.values()) == Counter(parts)
    left = Counter(parts) - Counter(held.values())
    assert sum(stands[name] not in bad for name in own if name not in held) == sum(
        count for chip, count in left.items() if chip not in bad
    )
    if not held:
        assert stands == own


@settings(max_examples=200, deadline=None)
@given(nodes(), st.data())
def test_preferred_ids_are_available_ones_and_those_of_the_wanted_chips(
    node: tuple[dict[str, int], dict[int, int], dict[str, int]], data: st.DataObject
) -> None:
    own, parts, held = node
    available = [name for name in own if name not in held]
    size = data.draw(st.integers(0, len(available)))
    must = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=size)) if available else []
    wanted = Counter(data.draw(st.permutations([c for c, n in parts.items() for _ in range(n)]))[:size])
    found = mapping.preferred(available, must, size, own, wanted, mapping.stands_for(own, parts, held, {}))
    assert len(found) == len(set(found)) == size
    assert set(must) <= set(found) <= set(available)
    if not must and not held:
        assert Counter(own[name] for name in found) == wanted


@pytest.mark.parametrize(("text", "found"), [("0-2,5", {0, 1, 2, 5}), ("", set()), ("x,3", {3}), ("7\n", {7})])
def test_lists_of_processors(text: str, found: set[int]) -> None:
    assert cpus(text) == found


def test_the_configuration_annotation_of_a_vnpu_has_the_address_of_this_host() -> None:
    known = NodeState(
        "n", machine("huawei.com/Ascend910", "910B3"), [Chip(id=2, logic_id=2, card=2, ip="10.0.0.3")],
        FaultLevels(NodePolicy("default", RULES)),
    )  # fmt: skip
    pod = facts({"metadata": {"uid": "u", "name": "p"}})
    whole = Grant(1, NPU, ("Ascend910-2",), ("Ascend910-2",), ((2, 1),), uid="u")
    for grant, address in (
        (whole, "10.0.0.3"),
        (msgspec.structs.replace(whole, vdev=132), "127.0.0.1"),
        (msgspec.structs.replace(whole, chips=((5, 1),)), "-1"),
    ):
        body = json.loads(annotate.configuration([grant], pod, known, "10.1.0.1"))
        assert [device["device_ip"] for device in body["devices"]] == [address]
