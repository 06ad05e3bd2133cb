"""Operations on a running job, link switch and stress test: parameter checks, messages to ranks, results.

Texts are ClusterD's, spelling mistakes included (component/clusterd/pkg/application/recover, om).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from belay.engine.model.cluster import Observed
from belay.engine.model.recovery import FaultyRank
from belay.engine.model.recovery.conversation import Operation, Replied, Report
from belay.engine.model.recovery.protocol import NORMAL, Code
from belay.engine.serve.grpc.job_view import JobView, ranks_of
from belay.engine.wire.clusterd import recover_pb2 as pb
from belay.engine.wire.gojson import go_json

NIC: Final = "nic"
STRESS: Final = "stress"
SUPPORTED: Final = (0, 1)
FAULT_FOUND: Final = "2"
#: Results that make the tested ranks themselves faults: time-out, voltage not restored.
RANK_FAULTS: Final = frozenset({"3", "4"})
ACCEPTED: Final = {
    NIC: "switching operation was successfully distributed",
    STRESS: "stress test operation was successfully distributed",
}
BUSY: Final = {
    NIC: "jobId={} nic is swtiching, or job recovering",
    STRESS: "jobId={} om is running, or job recovering",
}
NO_RESULT: Final = {
    NIC: "report switch nic result timeout, please check manually",
    STRESS: "report stress test result timeout, please check manually",
}
NOT_RUNNING: Final = {NIC: "jobId={} is not swtiching nic", STRESS: "jobId={} is not stress test"}


class BadParameter(ValueError):
    """A request that cannot be carried out; the text is ClusterD's."""


class _Nic(msgspec.Struct, frozen=True):
    ranks: tuple[str, ...] = ()
    ops: tuple[bool, ...] = ()


def switch(request: pb.SwitchNics, view: JobView | None, registered: bool, observed: Observed) -> Operation:
    """The link switch that a request asks for.

    Raises:
        BadParameter: the request cannot be carried out.
    """
    job = request.jobID
    if view is None:
        raise BadParameter(f"job:{job} not exist")
    if not registered:
        raise BadParameter(f"job:{job} is not registered")
    if not view.running:
        raise BadParameter(f"job:{job} is not running")
    if not request.nicOps:
        raise BadParameter("nics is nil")
    ranks: list[tuple[int, bool]] = []
    for node in sorted(request.nicOps):
        devices = request.nicOps[node]
        known = ranks_of(view, observed, node)
        report = observed.reports.get(node)
        if not known or report is None:
            raise BadParameter(f"node:{node} not exist in job:{job}")
        if len(devices.dev) != len(devices.op):
            raise BadParameter("dev and op length is not equal")
        if not devices.dev:
            raise BadParameter("dev or op is empty")
        for device in devices.dev:
            if device not in known:
                raise BadParameter(f"device:{device} not exist in node:{node}")
        if report.super_pod_id < 0:
            raise BadParameter(f"node:{node} should operate in superPodID")
        ranks += [(known[device], op) for device, op in zip(devices.dev, devices.op, strict=True)]
    ranks.sort()
    body = _Nic(tuple(str(rank) for rank, _ in ranks), tuple(op for _, op in ranks))
    return Operation(NIC, msgspec.json.encode(body).decode())


def stress(request: pb.StressTestParam, view: JobView | None, registered: bool, observed: Observed) -> Operation:
    """The stress test that a request asks for; ``allNodesOps`` overrides single nodes.

    Raises:
        BadParameter: the request cannot be carried out.
    """
    job = request.jobID
    if view is None:
        raise BadParameter(f"job:{job} not exist")
    if not registered:
        raise BadParameter(f"job:{job} is not registered")
    known = {pod.node for pod in view.pods if pod.holds_chips}
    if request.allNodesOps:
        wanted: dict[str, Sequence[int]] = dict.fromkeys(sorted(known), request.allNodesOps)
    else:
        wanted = {node: request.stressParam[node].ops for node in sorted(request.stressParam)}
    if not wanted:
        raise BadParameter("stress test node is nil")
    params: dict[str, list[int]] = {}
    for node, ops in wanted.items():
        if not ops:
            raise BadParameter(f"node:{node} stress test ops is 0")
        if node not in known:
            raise BadParameter(f"node:{node} not exist in job:{job}")
        for op in ops:
            if op not in SUPPORTED:
                raise BadParameter(f"op:{op} not exist in support operation:[0 1]")
        if len(set(ops)) != len(ops):
            raise BadParameter(f"node:{node} stress test ops should not repeat")
        params |= {str(rank): list(ops) for rank in ranks_of(view, observed, node).values()}
    ordered = {rank: params[rank] for rank in sorted(params, key=int)}
    return Operation(STRESS, msgspec.json.encode(ordered).decode(), tested=tuple(sorted(wanted)))


def message(job: str, kind: str, request: str) -> pb.SwitchRankList | pb.StressTestRankParams:
    """The message that makes the training processes carry out an operation."""
    if kind == NIC:
        body = msgspec.json.decode(request, type=_Nic)
        return pb.SwitchRankList(rankID=body.ranks, op=body.ops, jobId=job)
    params = msgspec.json.decode(request, type=dict[str, list[int]])
    return pb.StressTestRankParams(
        stressParam={rank: pb.StressOpList(ops=ops) for rank, ops in params.items()}, jobId=job
    )


def result(job: str, kind: str, text: str) -> pb.SwitchNicResponse | pb.StressTestResponse:
    """The result of an operation, for the operator who requested it."""
    return pb.SwitchNicResponse(jobID=job, msg=text) if kind == NIC else pb.StressTestResponse(jobID=job, msg=text)


def switched(request: pb.SwitchResult) -> Replied:
    """The result of a link switch as the training processes report it."""
    return Replied(Report(int(Code.OK if request.result else Code.CLIENT_ERROR)))


def stressed(request: pb.StressTestResult, view: JobView | None, observed: Observed) -> Replied:
    """The result of a stress test. A fault isolates its node, and all ranks there count as faulty; a time-out, or a
    voltage that was not restored, makes one rank faulty.
    """
    rows: dict[str, dict[str, dict[str, str]]] = {}
    broken: set[int] = set()
    stuck: set[int] = set()
    for rank in sorted(request.stressResult, key=lambda text: (len(text), text)):
        answers = request.stressResult[rank].rankResult
        rows[rank] = {op: {"code": answers[op].code, "result": answers[op].result} for op in sorted(answers)}
        codes = {answers[op].code for op in answers}
        if rank.isascii() and rank.isdecimal():
            broken |= {int(rank)} if FAULT_FOUND in codes else set()
            stuck |= {int(rank)} if codes & RANK_FAULTS else set()
    text = go_json(rows)
    by_rank = _nodes(view, observed)
    nodes = tuple(sorted({by_rank[rank] for rank in broken if rank in by_rank}))
    faulty = stuck | broken | {rank for rank, node in by_rank.items() if node in nodes}
    ranks = tuple(FaultyRank(str(rank), NORMAL) for rank in sorted(faulty))
    return Replied(Report(int(Code.CLIENT_ERROR if ranks else Code.OK), text, ranks=ranks), nodes)


def _nodes(view: JobView | None, observed: Observed) -> Mapping[int, str]:
    if view is None:
        return {}
    names = sorted({pod.node for pod in view.pods if pod.node})
    return {rank: node for node in names for rank in ranks_of(view, observed, node).values()}


__all__ = [
    "ACCEPTED", "BUSY", "NIC", "NOT_RUNNING", "STRESS", "BadParameter", "message", "result", "stress", "stressed",
    "switch", "switched",
]  # fmt: skip
