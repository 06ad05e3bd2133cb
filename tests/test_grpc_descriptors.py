"""The descriptors of our messages against the tables of MindCluster's interface: every name, number, type and rpc."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from belay.engine.wire.clusterd import (
    config_pb2,
    fault_pb2,
    job_pb2,
    profiling_pb2,
    pubfault_pb2,
    recover_pb2,
    tasknet_pb2,
)

# component/clusterd/pkg/interface/grpc/*.proto, component/taskd; "*" marks repeated, "k>v" a map
MESSAGES: dict[Any, dict[str, str]] = {
    recover_pb2: {
        "Status": "int32 code=1; string info=2",
        "ClientInfo": "string jobId=1; string role=2",
        "FaultRank": "string rankId=1; string faultType=2",
        "ProcessManageSignal": (
            "string uuid=1; string jobId=2; string signalType=3; *string actions=4; *FaultRank faultRanks=5;"
            " string changeStrategy=6; int64 timeout=7; *string nodeRankIds=8; string extraParams=9"
        ),
        "StopCompleteRequest": "string jobId=1; Status status=2; *FaultRank faultRanks=3",
        "RecoverStrategyRequest": "string jobId=1; *FaultRank faultRanks=2; *string strategies=3",
        "RecoverStatusRequest": "string jobId=1; Status status=2; string strategy=3; *string isolateRankIds=4",
        "ProcessFaultRequest": "string jobId=1; *FaultRank faultRanks=2",
        "SwitchNicResponse": "string jobID=1; string msg=2",
        "SwitchNicRequest": "string jobID=1",
        "SwitchNics": "string jobID=1; string>DeviceList nicOps=2",
        "DeviceList": "*string dev=1; *bool op=2",
        "SwitchRankList": "*string rankID=1; *bool op=2; string jobId=3",
        "SwitchResult": "string jobId=1; bool result=2",
        "StressOpList": "*int64 ops=1",
        "StressTestParam": "string jobID=1; string>StressOpList stressParam=2; *int64 allNodesOps=3",
        "StressTestRequest": "string jobID=1",
        "StressTestResponse": "string jobID=1; string msg=2",
        "StressTestRankParams": "string>StressOpList stressParam=1; string jobId=2",
        "StressTestResult": "string jobId=1; string>StressTestRankResult stressResult=2",
        "StressTestRankResult": "string>StressTestOpResult rankResult=1",
        "StressTestOpResult": "string code=1; string result=2",
    },
    config_pb2: {
        "ClientInfo": "string jobId=1; string role=2",
        "Status": "int32 code=1; string info=2",
        "RankTableStream": "string jobId=1; string rankTable=2",
    },
    fault_pb2: {
        "ClientInfo": "string jobId=1; string role=2",
        "Status": "int32 code=1; string info=2",
        "FaultQueryResult": "int32 code=1; string info=2; FaultMsgSignal faultSignal=3",
        "FaultMsgSignal": "string uuid=1; string jobId=2; string signalType=3; *NodeFaultInfo nodeFaultInfo=4",
        "NodeFaultInfo": (
            "string nodeName=1; string nodeIP=2; string nodeSN=3; string faultLevel=4; *DeviceFaultInfo faultDevice=5"
        ),
        "DeviceFaultInfo": (
            "string deviceId=1; string deviceType=2; *string faultCodes=3; string faultLevel=4; *string faultType=5;"
            " *string faultReason=6; *SwitchFaultInfo switchFaultInfos=7; *string faultLevels=8"
        ),
        "SwitchFaultInfo": (
            "string faultCode=1; string switchChipId=2; string switchPortId=3; string faultTime=4; string faultLevel=5"
        ),
    },
    job_pb2: {
        "ClientInfo": "string role=1; string clientId=3",
        "Status": "int32 code=1; string info=2; string clientId=3",
        "JobSummarySignal": (
            "string uuid=1; string jobId=2; string jobName=3; string namespace=4; string frameWork=5;"
            " string jobStatus=6; string time=7; string cmIndex=8; string total=9; string HcclJson=10;"
            " string deleteTime=11; string sharedTorIp=12; string masterAddr=13; string operator=14; string sid=15"
        ),
        "JobSummarySignalList": "*JobSummarySignal jobSummarySignals=1; string ReportTime=2; int32 JobTotalNum=3",
    },
    profiling_pb2: {
        "ProfilingSwitch": (
            "string CommunicationOperator=1; string Step=2; string SaveCheckpoint=3; string FP=4; string DataLoader=5"
        ),
        "DataTypeReq": "string jobNsName=1; ProfilingSwitch profilingSwitch=2",
        "DataTypeRes": "string message=1; int32 code=2",
        "DataStatusReq": "string jobNsName=1",
        "DataStatusRes": "string message=1; ProfilingSwitch profilingSwitch=2; int32 code=3",
        "ProfilingClientInfo": "string jobId=1; string role=2",
    },
    pubfault_pb2: {
        "PublicFaultRequest": "string id=1; int64 timestamp=2; string version=3; string resource=4; *Fault faults=5",
        "Fault": (
            "string faultId=1; string faultType=2; string faultCode=3; int64 faultTime=4; string assertion=5;"
            " string>string faultLocation=6; *PubFaultInfo influence=7; string description=8"
        ),
        "PubFaultInfo": "string nodeName=1; string nodeSN=2; *int32 deviceIds=3",
        "RespStatus": "int32 code=1; string info=2",
    },
    tasknet_pb2: {
        "RegisterReq": "string uuid=1; Position pos=2",
        "Ack": "string uuid=1; uint32 code=2; Position src=3",
        "PathDiscoveryReq": "string uuid=1; Position proxyPos=2; *Position path=3",
        "Message": "MessageHeader header=1; string body=2",
        "MessageHeader": (
            "string uuid=1; string mtype=2; bool sync=3; Position src=4; Position dst=5; int64 createTime=6"
        ),
        "Position": "string role=1; string serverRank=2; string processRank=3",
    },
}

# path: request -> response, "*" marks a stream
METHODS: dict[Any, dict[str, str]] = {
    recover_pb2: {
        "/Recover/Init": "ClientInfo -> Status",
        "/Recover/Register": "ClientInfo -> Status",
        "/Recover/SubscribeProcessManageSignal": "ClientInfo -> *ProcessManageSignal",
        "/Recover/ReportStopComplete": "StopCompleteRequest -> Status",
        "/Recover/ReportRecoverStrategy": "RecoverStrategyRequest -> Status",
        "/Recover/ReportRecoverStatus": "RecoverStatusRequest -> Status",
        "/Recover/ReportProcessFault": "ProcessFaultRequest -> Status",
        "/Recover/SwitchNicTrack": "SwitchNics -> Status",
        "/Recover/SubscribeSwitchNicSignal": "SwitchNicRequest -> *SwitchNicResponse",
        "/Recover/SubscribeNotifySwitch": "ClientInfo -> *SwitchRankList",
        "/Recover/ReplySwitchNicResult": "SwitchResult -> Status",
        "/Recover/HealthCheck": "ClientInfo -> Status",
        "/Recover/StressTest": "StressTestParam -> Status",
        "/Recover/SubscribeStressTestResponse": "StressTestRequest -> *StressTestResponse",
        "/Recover/SubscribeNotifyExecStressTest": "ClientInfo -> *StressTestRankParams",
        "/Recover/ReplyStressTestResult": "StressTestResult -> Status",
    },
    config_pb2: {
        "/config.Config/Register": "ClientInfo -> Status",
        "/config.Config/SubscribeRankTable": "ClientInfo -> *RankTableStream",
    },
    fault_pb2: {
        "/fault.Fault/Register": "ClientInfo -> Status",
        "/fault.Fault/SubscribeFaultMsgSignal": "ClientInfo -> *FaultMsgSignal",
        "/fault.Fault/GetFaultMsgSignal": "ClientInfo -> FaultQueryResult",
    },
    job_pb2: {
        "/job.Job/Register": "ClientInfo -> Status",
        "/job.Job/SubscribeJobSummarySignal": "ClientInfo -> *JobSummarySignal",
        "/job.Job/SubscribeJobSummarySignalList": "ClientInfo -> *JobSummarySignalList",
    },
    profiling_pb2: {
        "/TrainingDataTrace/ModifyTrainingDataTraceSwitch": "DataTypeReq -> DataTypeRes",
        "/TrainingDataTrace/GetTrainingDataTraceSwitch": "DataStatusReq -> DataStatusRes",
        "/TrainingDataTrace/SubscribeDataTraceSwitch": "ProfilingClientInfo -> *DataStatusRes",
    },
    pubfault_pb2: {"/PubFault/SendPublicFault": "PublicFaultRequest -> RespStatus"},
    tasknet_pb2: {
        "/TaskNet/Register": "RegisterReq -> Ack",
        "/TaskNet/PathDiscovery": "PathDiscoveryReq -> Ack",
        "/TaskNet/TransferMessage": "Message -> Ack",
        "/TaskNet/InitServerDownStream": "*Ack -> *Message",
    },
}
SCALARS = {
    getattr(FieldDescriptor, f"TYPE_{name.upper()}"): name for name in ("string", "int32", "int64", "uint32", "bool")
}


def type_of(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is None:
        return SCALARS[field.type]
    if message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        return f"{type_of(key)}>{type_of(value)}"
    return str(message.name)


def written(field: FieldDescriptor) -> str:
    kind = type_of(field)
    mark = "*" if field.is_repeated and ">" not in kind else ""
    return f"{mark}{kind} {field.name}={field.number}"


@pytest.mark.parametrize("module", list(MESSAGES), ids=lambda module: module.__name__.rpartition(".")[2])
def test_messages_are_those_of_the_interface(module: Any) -> None:
    found = {
        name: "; ".join(written(field) for field in message.fields)
        for name, message in module.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == MESSAGES[module]
    assert not module.DESCRIPTOR.enum_types_by_name


@pytest.mark.parametrize("module", list(METHODS), ids=lambda module: module.__name__.rpartition(".")[2])
def test_services_are_those_of_the_interface(module: Any) -> None:
    found = {}
    for service in module.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            asked = ("*" if method.client_streaming else "") + method.input_type.name
            answered = ("*" if method.server_streaming else "") + method.output_type.name
            found[f"/{service.full_name}/{method.name}"] = f"{asked} -> {answered}"
    assert found == METHODS[module]
