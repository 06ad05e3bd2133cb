"""Belay in every state of the tables in `tests/peer/`: it answers as MindCluster does, or as the table says and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format, message_factory

from engine.model.cluster import NodeDevice, NodeReport, Observed, SwitchReport
from engine.model.plan_cache import PlanCache
from engine.plan import plan
from engine.serve.grpc import fault_view
from engine.serve.grpc.job_view import views
from engine.status.mindcluster import ClusterInfo
from engine.wire.clusterd import config_pb2, fault_pb2, job_pb2, profiling_pb2, pubfault_pb2, recover_pb2
from tests import peer_tables, worlds
from tests.grpc_world import Client, World, play
from tests.peer_tables import ABSENT

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
