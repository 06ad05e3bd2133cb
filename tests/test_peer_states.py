"""Belay in every state of the tables in `tests/peer/`: it answers as MindCluster does, or as the table says and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import yaml
from google.protobuf import json_format, message_factory

from belay.agents.drivers.server_models import SERVER_MODELS, from_product
from belay.agents.drivers.simulated import ServerModel
from belay.agents.drivers.surroundings import Alarm, SwitchFault
from belay.agents.kubelet.annotate import configuration
from belay.agents.kubelet.ledger import Grant
from belay.agents.kubelet.pods import PodFacts
from belay.agents.node.detect import hardware, switch_info
from belay.agents.node.port_faults import PortsDown
from belay.agents.node.shipped import shipped_policy
from belay.agents.node.state import NodeState
from belay.agents.node.surroundings_monitor import default_tables
from belay.engine.model.cluster import NodeDevice, NodeReport, Observed, SwitchReport
from belay.engine.model.plan_cache import PlanCache
from belay.engine.plan import plan
from belay.engine.serve.grpc import fault_view
from belay.engine.serve.grpc.job_view import views
from belay.engine.status.mindcluster import ClusterInfo
from belay.engine.wire import deviceinfo
from belay.engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX
from tests import peer_tables, worlds
from tests.agent_world import NODE, scenario
from tests.agent_world import World as AgentWorld
from tests.grpc_world import Client, World, play
from tests.peer_tables import ABSENT, PeerTable

TABLES = peer_tables.tables()
SERVICES = {
    service.full_name: service
    for module in (config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}


def filled(value: Any, names: Mapping[str, str]) -> Any:
    """A value of a table with the ids of this run."""
    if isinstance(value, dict):
        return {key: filled(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if not isinstance(value, str):
        return value
    for name, text in names.items():
        value = value.replace("{" + name + "}", text)
    return value


def flat(message: Any, path: str = "") -> dict[str, Any]:
    """The scalar fields of a message by their path; those of proto3's default value as such."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.is_repeated:
            continue
        value = getattr(message, field.name)
        if field.type == field.TYPE_MESSAGE:
            found |= flat(value, f"{path}{field.name}.") if message.HasField(field.name) else {}
        else:
            found[f"{path}{field.name}"] = value
    return found


async def answer(client: Client, call: str, request: dict[str, Any]) -> dict[str, Any]:
    """What a call is answered: the fields, or ``error``."""
    service, _, name = call.partition("/")
    method = SERVICES[service].methods_by_name[name]
    message = json_format.ParseDict(request, message_factory.GetMessageClass(method.input_type)())
    reply = message_factory.GetMessageClass(method.output_type)
    try:
        if method.server_streaming:
            first = await client.stream(name, message, reply, service).read()
            assert first is not grpc.aio.EOF
            return flat(first)
        return flat(await client.call(name, message, reply, service))
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNKNOWN
        return {"error": error.details()}


def test_services(tmp_path: Path) -> None:
    table = TABLES["services"]

    async def story(world: World) -> None:
        names = {"job": await world.job()}
        names["off"] = await world.job("off", labels={"process-recover-enable": "off"}, nodes=False, pods=1)
        found: dict[str, dict[str, Any]] = {}
        async with world.server() as server:
            client = Client(server.port, names["job"])
            for state in table.states:
                replied = await answer(client, state.do["call"], filled(state.do["with"], names))
                found[state.state] = {**dict.fromkeys(filled(state.expected, names), ABSENT), **replied}
            await client.close()

        # the ids of this run stand in the answers
        ids = {text: "{" + name + "}" for name, text in names.items()}
        shown = {name: {place: unfilled(value, ids) for place, value in row.items()} for name, row in found.items()}
        peer_tables.compare(table, shown)

    play(tmp_path, story)


def unfilled(value: Any, ids: Mapping[str, str]) -> Any:
    """A value with the names of a table for the ids of this run."""
    for text, name in ids.items():
        value = value.replace(text, name) if isinstance(value, str) else value
    return value


def snapshot(do: Mapping[str, Any]) -> Observed:
    """Node n0, where job j works on chips 0 to 3, and n1; ``do`` says what their reports say of n0."""
    faults, switch, hardware = [], do.get("switch"), do.get("hardware", ())
    for chip, code, level, *kind in do.get("faults", ()):
        faults.append(worlds.fault(chip, code, level, kind=kind[0] if kind else "CardUnhealthy"))
    more = {name: do[name] for name in ("unhealthy", "network", "manual") if name in do}
    first = worlds.report("n0", faults=faults, switch=switch and switch_report(**switch), **more)
    boards = [NodeDevice(kind, number, tuple(codes), level) for kind, number, codes, level in hardware]
    status = do.get("status", "Healthy")
    return worlds.observed(
        [worlds.node("n0", ready=do.get("ready", True)), worlds.node("n1")],
        [first, worlds.report("n1")],
        [worlds.pod("j-0", node="n0", chips=range(4), owner=("AscendJob", "j"), rank=0)],
        node_reports=[NodeReport("n0", tuple(boards), status)] if boards else (),
    )


def switch_report(level: str, status: str, faults: list[list[Any]]) -> SwitchReport:
    """A switch report; each fault has code, chip, port and level."""
    events = [
        {"AssembledFaultCode": c, "SwitchChipId": n, "SwitchPortId": p, "AlarmRaisedTime": 7} for c, n, p, _ in faults
    ]
    times = {f"{c}_{n}_{p}": {"fault_time": 7, "fault_level": own} for c, n, p, own in faults}
    body = {"FaultCode": [json.dumps(event) for event in events], "FaultTimeAndLevelMap": times}
    codes = tuple(sorted({code for code, *_ in faults}))
    return SwitchReport(level=level, node_status=status, codes=codes, update_time=worlds.NOW - 2, text=json.dumps(body))


def shown_signal(nodes: list[fault_pb2.NodeFaultInfo]) -> list[str]:
    """The devices of a signal, each as one line."""
    lines = []
    for node in nodes:
        for device in node.faultDevice:
            assert not device.faultType and not device.faultReason, "reserved"
            codes = [f"{code}={level}" for code, level in zip(device.faultCodes, device.faultLevels, strict=True)]
            ports = [f"{one.switchChipId}/{one.switchPortId}={one.faultLevel}" for one in device.switchFaultInfos]
            lines.append(
                " ".join([node.nodeName, device.deviceType, device.deviceId, device.faultLevel, *codes, *ports])
            )
    return lines


def shown_info(seen: Observed) -> dict[str, Any]:
    """What `cluster-info-device-*` says of n0 after a pass."""
    bodies = ClusterInfo().bodies(plan(worlds.desired(), seen, worlds.NOW), seen)
    entries = [
        json.loads(text)
        for body in bodies
        for name, text in body["data"].items()
        if name.startswith("cluster-info-device")
    ]
    lists = entries[0]["mindx-dl-deviceinfo-n0"]["DeviceList"]
    faults = json.loads(lists["huawei.com/Ascend910-Fault"])
    return {
        "info.unhealthy": lists["huawei.com/Ascend910-Unhealthy"],
        "info.network": lists["huawei.com/Ascend910-NetworkUnhealthy"],
        "info.faults": [
            f"{one['npu_name']} {one['fault_type']} {one['fault_code']} {one['fault_level']}" for one in faults
        ],
    }


def faults_in(do: Mapping[str, Any]) -> dict[str, Any]:
    """What readers learn of a state: the job's signal, a query of the cluster, the ConfigMap."""
    seen = snapshot(do)
    (view,) = views(seen, PlanCache()).values()
    job, cluster = fault_view.of_jobs([view], seen), fault_view.of_cluster(seen)
    return {
        "job": shown_signal(job) or "normal",
        "query": shown_signal(cluster) or "normal",
        **shown_info(seen),
    }


def test_faults() -> None:
    table = TABLES["faults"]
    peer_tables.compare(table, {state.state: faults_in(state.do) for state in table.states})


MS = 1_788_249_600_000
PLANES = shipped_policy().rules.planes
NODE_TABLE, SWITCH_TABLE = default_tables(PLANES["node"], PLANES["switch"])()


def shown_boards(do: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent reports of a node's bus switch, or of its boards."""
    if "switch" in do:
        faults = [SwitchFault(code, chip, port, MS) for code, chip, ports in do["switch"] for port in ports]
        body = switch_info(faults, SWITCH_TABLE, MS // 1000)
        levels = {row["fault_level"] for row in body["FaultTimeAndLevelMap"].values()}
        found = {"level": body["FaultLevel"], "status": body["NodeStatus"], "faults": len(body["FaultCode"])}
        return {**found, "levels": ", ".join(sorted(levels))}
    devices, status = hardware([Alarm(*row) for row in do["boards"]], NODE_TABLE)
    lines = [f"{one.device_type} {one.device_id} {','.join(one.codes)} {one.level}" for one in devices]
    return {"status": status, "boards": lines}


def test_boards() -> None:
    table = TABLES["boards"]
    peer_tables.compare(table, {state.state: shown_boards(state.do) for state in table.states})


NODE_TABLES = sorted(name for name, table in TABLES.items() if table.part == "agent")


def ranges(names: str) -> str:
    """The chips of a list by number, in its order; ``0-2`` for 0, 1, 2."""
    numbers = [int(name.rpartition("-")[2]) for name in names.split(",") if name]
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def shown_fault(element: Mapping[str, Any]) -> str:
    """An element of a report's faults: chip, plane, codes, level; and the level of each code."""
    level = element["fault_level"]
    assert level == element["fault_handling"] == element["large_model_fault_level"]
    codes = ",".join(sorted(element["fault_code"].split(",")))
    each = [f"{code}={row['fault_level']}" for code, row in sorted(element["fault_time_and_level_map"].items())]
    return f"{element['npu_name']} {element['fault_type']} {codes} {level}: {' '.join(each)}"


def shown_node(world: AgentWorld) -> dict[str, Any]:
    """What the agent has written about its node."""
    body = world.cluster.maps[(DEVICE_NAMESPACE, DEVICE_PREFIX + NODE)]
    assert deviceinfo.parse(body), "its CheckCode is right"
    info = json.loads(body["data"]["DeviceInfoCfg"])
    found: dict[str, Any] = {key: info[key] for key in ("SuperPodID", "ServerIndex", "RackID") if key in info}
    for key, value in info["DeviceInfo"]["DeviceList"].items():
        short = key.removeprefix("huawei.com/")
        faults = short.endswith("-Fault")
        found[short] = [shown_fault(one) for one in json.loads(value)] if faults else ranges(value)
    found["ManuallySeparateNPU"] = body["data"]["ManuallySeparateNPU"]
    found["UpgradeFaultReason"] = shown_upgrades(json.loads(body["data"]["UpgradeFaultReason"]))

    metadata = world.cluster.nodes[NODE]["metadata"]
    found |= {f"label {key}": value for key, value in metadata["labels"].items()}
    found |= {f"annotation {key}": value for key, value in metadata["annotations"].items()}
    devices = json.loads(found["annotation baseDeviceInfos"])
    keys = sorted({key for device in devices.values() for key in device})
    found["annotation baseDeviceInfos"] = f"{len(devices)} chips with {', '.join(keys)}"
    assert world.agent.state is not None
    if world.agent.state.machine.training:
        found["pod configuration"] = configured(world.agent.state)
    del found["annotation ResetInfo"]  # a row of its own: the device plugin writes it when it resets chips itself
    return found


def configured(state: NodeState) -> str:
    """The rank configuration of a pod on the node's first two chips, without its name and addresses."""
    chips = ((0, 100), (1, 100))
    grant = Grant(1, state.machine.resource, ids=(), real=(), chips=chips)
    pod = PodFacts(
        uid="uid", namespace="d", name="p", phase="Running", reason="", deleting=False, annotations={}, labels={},
        limits={}, initial={}, owner="",
    )  # fmt: skip
    body = json.loads(configuration([grant], pod, state, "10.0.0.1"))
    for device in body["devices"]:
        del device["device_ip"]
    rest = {name: body[name] for name in ("super_pod_id", "rack_id", "server_index", "devices")}
    return json.dumps(rest, separators=(",", ":"))


def shown_upgrades(reasons: Mapping[str, Any]) -> str:
    """``UpgradeFaultReason``: each chip with its codes and levels, without times."""
    rows = [f"{chip} {one['fault_code']} {one['fault_level']}" for chip, all_ in reasons.items() for one in all_]
    return ", ".join(rows) or "none"


async def reach(world: AgentWorld, do: Mapping[str, Any]) -> None:
    """Bring the node's hardware into a state."""
    for act in ("inject", "clear"):
        for chip, code, *more in do.get(act, ()):
            getattr(world.driver, act)(chip, code, **(more[0] if more else {}))
    for act, gone in (("drop", True), ("back", False)):
        for (chip,) in do.get(act, ()):
            world.driver.drop(chip, gone)
    assert world.agent.state is not None
    for chip, ethernet, bus in do.get("ports", ()):
        world.agent.state.ports_down[chip] = PortsDown(ethernet, bus)
    await world.run(do.get("seconds", 3))


def row_of(table: PeerTable) -> ServerModel:
    """The server model of a table."""
    row = SERVER_MODELS.get(table.product)
    if row is None:
        file = peer_tables.ROOT / "policies" / "products" / f"{table.product}.yaml"
        spec = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]
        alone = spec["reset"]["scope"] == "chip"
        groups = [(first, first + 1) for first in range(0, spec["chipsPerNode"], 2)]
        row = from_product(spec, () if alone else groups, chip_name=table.machine["chip_name"])
    return msgspec.structs.replace(row, machine=msgspec.structs.replace(row.machine, **table.machine))


@pytest.mark.parametrize("name", NODE_TABLES)
def test_nodes(name: str, tmp_path: Path) -> None:
    table = TABLES[name]
    found: dict[str, dict[str, Any]] = {}

    async def story(world: AgentWorld) -> None:
        await world.start(10)
        for state in table.states:
            await reach(world, state.do)
            found[state.state] = shown_node(world)
            await reach(world, {**state.do.get("then", {}), "seconds": state.do.get("after", 3)})

    scenario(tmp_path, story, row=row_of(table), rules=shipped_policy().rules)
    peer_tables.compare(table, found)
