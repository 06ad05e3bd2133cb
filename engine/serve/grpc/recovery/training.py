"""The service `belay.training.v1.Training`: recoveries that training carried out on its own, reported by `belay train`.

Each becomes an account on the job's PodGroup, as the conversations of `Recover` do: the planner enters it in the ledger
of training time, which `belay-job-*` and `belay explain job` show. It also becomes an Event and a histogram. A chip
that computed a wrong result gets a public fault.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from belay.engine.kube import EVENT, Conflict, KubeError
from belay.engine.log import get
from belay.engine.metrics import BY_NAME
from belay.engine.model.labels import PROCESS_RECOVERIES
from belay.engine.model.recovery import summary
from belay.engine.model.recovery.conversation import StepRecord
from belay.engine.model.recovery.summary import RecoverySummary
from belay.engine.model.times import rfc3339
from belay.engine.serve.grpc.job_view import JobView, places
from belay.engine.serve.grpc.public_faults import PubFaultService
from belay.engine.serve.grpc.recovery.registry import Registry
from belay.engine.serve.grpc.recovery.wrong_results import wrong_results
from belay.engine.serve.grpc.streams import Context
from belay.engine.wire.names import REPORTING_COMPONENT
from belay.engine.wire.training import training_pb2 as pb

_log = get("grpc.training")
OK, BAD, MISSING, AGAIN = 0, 400, 404, 503
REASON: Final = "TrainingRecovered"
MAX_STAGES: Final = 16
MAX_RANKS: Final = 1024
#: `belay train` reports a recovery for ten minutes; older reports are refused.
MAX_AGE_US: Final = 3600 * 1_000_000
#: Accounts that an annotation keeps, as `model.recovery.account` reads them.
_KEPT: Final = 3
_KNOWN: Final = 4096
#: Stages as `belay train` names them; others are shown, but get no histogram.
STAGES: Final = frozenset({"freed", "aligned", "formed", "repaired", "entered", "stepped"})


class TrainingService:
    """The handlers, named as the RPCs."""

    def __init__(self, registry: Registry, public: PubFaultService) -> None:
        self._registry, self._public = registry, public
        self._written: dict[str, str] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.metrics = CollectorRegistry(auto_describe=False)
        seconds, ranks = BY_NAME["belay_training_recovery_seconds"], BY_NAME["belay_training_ranks_lost"]
        self._seconds = Histogram(
            seconds.name, seconds.text, list(seconds.labels), buckets=seconds.buckets, registry=self.metrics
        )
        self._ranks = Counter(ranks.name, ranks.text, list(ranks.labels), registry=self.metrics)

    async def ReportRecovery(self, request: pb.Recovery, context: Context) -> pb.Answer:
        """Keep the account of a recovery; one that was reported before changes nothing."""
        wrong = _wrong(request)
        if wrong:
            return pb.Answer(code=BAD, info=wrong)
        view = self._registry.cluster.jobs.get(request.job_id)
        if view is None:
            return pb.Answer(code=MISSING, info=f"there is no job {request.job_id}")
        if len(self._written) > _KNOWN:
            self._written.clear()
            self._locks = {job: lock for job, lock in self._locks.items() if lock.locked()}
        async with self._locks.setdefault(view.id, asyncio.Lock()):
            fresh = _account(request, self._registry.clock())
            known = summary.read(self._written.get(view.id) or view.annotations.get(PROCESS_RECOVERIES, ""))
            if any(_reported(one, request) and abs(one.begun - fresh.begun) < MAX_AGE_US / 1000 for one in known):
                return pb.Answer(code=OK, info="known")
            # the planner goes by when accounts began: two of one millisecond are one after the other
            begun = max([fresh.begun, *(one.begun + 1 for one in known if one.begun >= fresh.begun)])
            fresh = msgspec.structs.replace(fresh, begun=begun, ended=max(fresh.ended, begun))
            text = msgspec.json.encode((*known, fresh)[-_KEPT:]).decode()
            if not await self._registry.writer.mark_group(view, notes={PROCESS_RECOVERIES: text}):
                return pb.Answer(code=AGAIN, info="the account could not be written")
            self._written[view.id] = text
        await self._suspect(request, view)
        self._count(request, view)
        await self._announce(request, view)
        return pb.Answer(code=OK, info="taken")

    async def _suspect(self, request: pb.Recovery, view: JobView) -> None:
        """Report the chips of ranks that computed a wrong result."""
        placed = places(view, self._registry.cluster.observed)
        body = wrong_results(request, f"{view.namespace}/{view.name}", placed, self._registry.clock())
        if body is not None and (problem := await self._public.report(body)):
            _log.warning("a wrong result is not stored as a fault", job=f"{view.namespace}/{view.name}", reason=problem)

    def _count(self, request: pb.Recovery, view: JobView) -> None:
        for stage in request.stages:
            if stage.name in STAGES:
                self._seconds.labels(stage.name).observe(stage.after_us / 1e6)
        self._ranks.labels(view.namespace, view.name).inc(len(request.ranks))

    async def _announce(self, request: pb.Recovery, view: JobView) -> None:
        now = self._registry.clock() / 1000
        text = sentence(request)
        digest = hashlib.sha256(f"{view.id}|{request.generation}|{text}".encode()).hexdigest()[:16]
        api = "mindxdl.gitee.com/v1" if view.kind == "AscendJob" else ""
        subject = {"apiVersion": api, "kind": view.kind, "namespace": view.namespace, "name": view.name, "uid": view.id}
        moment = rfc3339(float(int(now)))
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{view.name[:200]}.{digest}", "namespace": view.namespace},
            "type": "Normal",
            "reason": REASON,
            "action": "RecoverTraining",
            "message": text,
            "involvedObject": {key: value for key, value in subject.items() if value},
            "source": {"component": "belay"},
            "reportingComponent": REPORTING_COMPONENT,
            "reportingInstance": "belay",
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        try:
            await self._registry.kube.create(EVENT, body)
        except Conflict:
            return  # written before
        except KubeError as error:
            _log.warning("Event not written", job=f"{view.namespace}/{view.name}", reason=str(error))


def sentence(request: pb.Recovery) -> str:
    """The recovery in one line of at most 1,000 characters."""
    ranks = ", ".join(map(str, request.ranks[:8])) + (" …" if len(request.ranks) > 8 else "")
    who = f"{'rank' if len(request.ranks) == 1 else 'ranks'} {ranks} of {request.world_size} lost" if ranks else "fault"
    stages = ", ".join(f"{stage.name} {stage.after_us / 1000:g} ms" for stage in request.stages)
    return f"{who} ({request.cause[:300]}): training goes on at step {request.step}; {stages}"[:1000]


def _wrong(request: pb.Recovery) -> str:
    """What is wrong with the message; empty when it is valid."""
    if not request.job_id or len(request.job_id) > 253:
        return "job_id must name the job, with at most 253 characters"
    if not request.stages or len(request.stages) > MAX_STAGES:
        return f"stages: {len(request.stages)} given, 1 to {MAX_STAGES} are needed"
    if request.age_us > MAX_AGE_US:
        return f"age_us: {request.age_us} is more than an hour"
    if max(len(request.ranks), len(request.wrong)) > MAX_RANKS:
        return f"ranks: {max(len(request.ranks), len(request.wrong))} given, at most {MAX_RANKS} are accepted"
    for stage in request.stages:
        if not stage.name.isidentifier() or len(stage.name) > 32 or stage.after_us > request.age_us:
            return f"stages: {stage.name[:32]!r} after {stage.after_us} µs does not lie between the fault and now"
    return ""


def _account(request: pb.Recovery, now_ms: int) -> RecoverySummary:
    begun = now_ms - request.age_us // 1000
    stages = sorted(request.stages, key=lambda stage: stage.after_us)
    per_pod = max(1, request.local_world_size)
    note = f"generation {request.generation}"
    steps = (StepRecord(begun, "fault", note), *(StepRecord(begun + s.after_us // 1000, s.name, "") for s in stages))
    return RecoverySummary(
        begun=begun,
        ended=begun + stages[-1].after_us // 1000,
        level=summary.PROCESS,
        good=True,
        pods=tuple(sorted({rank // per_pod for rank in request.ranks}))[:256],
        steps=steps,
    )


def _reported(one: RecoverySummary, request: pb.Recovery) -> bool:
    return bool(one.steps) and one.steps[0].state == f"generation {request.generation}"


__all__ = ["REASON", "TrainingService", "sentence"]
