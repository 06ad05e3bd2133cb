"""The service `TrainingDataTrace`: switches of light-weight profiling, in a ConfigMap where the job's pods mount it.

Source: component/clusterd/pkg/application/profiling, docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import grpc
import msgspec

from belay.engine.gangs.owners import POD_GROUP_APIS
from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError, Object, Unavailable
from belay.engine.log import get
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import SERVICE_JOB_ID
from belay.engine.serve.grpc.job_view import JobView
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.serve.grpc.publishers import Publishers
from belay.engine.serve.grpc.streams import Context
from belay.engine.wire.clusterd import profiling_pb2 as pb
from belay.engine.wire.gojson import go_json

_log = get("grpc.profiling")
PREFIX: Final = "data-trace-"
KEY: Final = "profilingSwitch"
SWITCHES: Final = ("CommunicationOperator", "Step", "SaveCheckpoint", "FP", "DataLoader")
#: These switches have one value.
TOGETHER: Final = ("Step", "SaveCheckpoint", "FP", "DataLoader")
OK, BAD, MISSING, FAILED = 200, 300, 404, 500
_FORMAT: Final = "the format of jobNsName is not namespace/jobName"
_TRIES: Final = 3
#: Seconds for which a client waits until its switches are written.
_PATIENCE: Final = 40.0


class TrainingDataTraceService:
    """The handlers, named as the RPCs."""

    def __init__(self, kube: Kube, cluster: ObservedCluster) -> None:
        self._kube = kube
        self._cluster = cluster
        self._publishers: Publishers[pb.DataStatusRes] = Publishers()
        self._switches: dict[str, dict[str, str]] = {}

    async def ModifyTrainingDataTraceSwitch(self, request: pb.DataTypeReq, context: Context) -> pb.DataTypeRes:
        """Write the switches, then send them to the subscribers."""
        wanted = {name: str(getattr(request.profilingSwitch, name)) for name in SWITCHES}
        wrong = _wrong(request.jobNsName, wanted)
        if wrong:
            return pb.DataTypeRes(code=BAD, message=wrong)
        view = self._job(request.jobNsName)
        if view is None:
            return pb.DataTypeRes(code=MISSING, message=f"job {request.jobNsName} not found")
        problem = await self.switch(view, wanted)
        if problem:
            return pb.DataTypeRes(code=FAILED, message=problem)  # no switch was changed
        return pb.DataTypeRes(code=OK, message="successfully changed profiling marker enable status")

    async def switch(self, view: JobView, wanted: Mapping[str, str]) -> str:
        """Write a job's switches and send them to its subscribers; what is in the way, empty when it was done."""
        traced = [self._cluster.container_settings(pod).data_trace for pod in view.pods]
        if traced and all(traced):
            if not await self._write(view, wanted):
                return f"ConfigMap {PREFIX}{view.name} cannot be written"
        elif not self._publishers.has_subscribers(view.id):
            return "notify subscribe failed"
        self._forget()
        self._switches[view.id] = dict(wanted)
        self._publishers.publish_to(view.id, _message(wanted))
        return ""

    async def GetTrainingDataTraceSwitch(self, request: pb.DataStatusReq, context: Context) -> pb.DataStatusRes:
        """Answer with the switches."""
        if not _split(request.jobNsName):
            return pb.DataStatusRes(code=BAD, message=_FORMAT)
        view = self._job(request.jobNsName)
        if view is None:
            return pb.DataStatusRes(code=MISSING, message=f"job {request.jobNsName} not found")
        try:
            live = await self._kube.get(CONFIGMAP, PREFIX + view.name, view.namespace)
        except KubeError as error:
            _log.warning("switches not read", job=request.jobNsName, reason=str(error))
            return pb.DataStatusRes(code=FAILED, message="the cluster does not answer")
        switches = _read(live) or self._switches.get(view.id)
        if switches is None:
            text = f"failed to found configmap:[{view.namespace}/{view.name}]"
            return pb.DataStatusRes(code=MISSING, message=text)
        text = f"successfully get the status of job[{view.namespace}/{view.name}]"
        return pb.DataStatusRes(code=OK, message=text, profilingSwitch=pb.ProfilingSwitch(**switches))

    async def SubscribeDataTraceSwitch(self, request: pb.ProfilingClientInfo, context: Context) -> None:
        """Stream the switches, if they were ever set, then every change."""
        job, stored = request.jobId, None
        view = self._cluster.jobs.get(job)
        if view is None and not self._serves(job):
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job} not registered, role={request.role}")
        if view is not None and job not in self._switches:
            try:
                stored = _read(await self._kube.get(CONFIGMAP, PREFIX + view.name, view.namespace))
            except KubeError as error:
                _log.warning("switches not read", job=job, reason=str(error))
        self._forget()
        publisher = self._publishers.register(job, request.role)
        if publisher is None:
            await context.abort(grpc.StatusCode.UNKNOWN, f"jobId={job} out of max serve jobs")
            raise AssertionError("abort raises")
        # a change during the read was sent before this subscription: the newest switches count
        switches = self._switches.get(job, stored)
        await publisher.serve(context, {job: _message(switches)} if switches is not None else {})

    def close(self) -> None:
        """End every stream."""
        self._publishers.close()

    def _job(self, name: str) -> JobView | None:
        """The job of that name; of two, one of which is going, the one that runs."""
        found = [view for view in self._cluster.jobs.values() if f"{view.namespace}/{view.name}" == name]
        return max(found, key=lambda view: view.running, default=None)

    def _serves(self, job: str) -> bool:
        """Whether it is an inference service of several jobs, which its pods name by their label."""
        return bool(job) and any(pod.labels.get(SERVICE_JOB_ID) == job for pod in self._cluster.observed.pods.values())

    def _forget(self) -> None:
        """Drop what is known of jobs that are gone."""
        jobs = self._cluster.jobs
        for gone in self._switches.keys() - jobs.keys():
            del self._switches[gone]
        self._publishers.forget(jobs.__contains__)

    async def _write(self, view: JobView, switches: Mapping[str, str]) -> bool:
        """Whether the ConfigMap holds the switches; after a lost answer it is read again."""
        name = PREFIX + view.name
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._written(view, name, switches)
        except TimeoutError:
            return False

    async def _written(self, view: JobView, name: str, switches: Mapping[str, str]) -> bool:
        for _ in range(_TRIES):
            try:
                live = await self._kube.get(CONFIGMAP, name, view.namespace)
                body = self._body(view, name, switches, live)
                if body != live:
                    await (self._kube.replace if live is not None else self._kube.create)(CONFIGMAP, body)
                return True
            except Conflict:
                continue
            except Unavailable as error:
                _log.warning("switches not written yet", job=f"{view.namespace}/{view.name}", reason=str(error))
            except KubeError as error:
                _log.warning("switches not written", job=f"{view.namespace}/{view.name}", reason=str(error))
                return False
        return False

    def _body(self, view: JobView, name: str, switches: Mapping[str, str], live: Object | None) -> Object:
        """The ConfigMap with the switches; equal to ``live`` when it holds them already."""
        metadata: dict[str, Any] = dict((live or {}).get("metadata") or {"name": name, "namespace": view.namespace})
        metadata["labels"] = {**(metadata.get("labels") or {}), "reset": "true"}
        owners = self._owners(view)
        if owners and not metadata.get("ownerReferences"):
            metadata["ownerReferences"] = owners
        data = {**((live or {}).get("data") or {}), KEY: go_json(dict(switches))}
        head = {"apiVersion": "v1", "kind": "ConfigMap"}
        return {**(live or {}), **head, "metadata": metadata, "data": data}

    def _owners(self, view: JobView) -> list[dict[str, Any]]:
        """The owner of the PodGroup, or that of the pods where there is none."""
        for api in POD_GROUP_APIS:
            raw = self._cluster.observed.objects.get(ObjectKey(api, "PodGroup", view.namespace, view.group))
            if raw is not None:
                return list((raw.get("metadata") or {}).get("ownerReferences") or [])
        pod = next((pod for pod in view.pods if pod.owner_uid == view.id), None)
        if pod is None:
            return []
        return [{"apiVersion": pod.owner_api, "kind": pod.owner_kind, "name": pod.owner_name, "uid": pod.owner_uid}]


def _split(name: str) -> tuple[str, str] | None:
    namespace, slash, job = name.partition("/")
    return (namespace, job) if slash and namespace and job and "/" not in job and len(name) <= 512 else None


def _wrong(name: str, switches: Mapping[str, str]) -> str:
    """What is wrong with a request; empty when it is valid."""
    if not _split(name):
        return _FORMAT
    for switch, value in switches.items():
        if value not in ("on", "off"):
            return f"profilingSwitch.{switch} must be on or off"
    if len({switches[switch] for switch in TOGETHER}) > 1:
        return f"{', '.join(TOGETHER)} are switched together"
    return ""


def _read(live: Mapping[str, Any] | None) -> dict[str, str] | None:
    text = ((live or {}).get("data") or {}).get(KEY)
    if not isinstance(text, str):
        return None
    try:
        rows = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return None
    return {name: "on" if rows.get(name) == "on" else "off" for name in SWITCHES}


def _message(switches: Mapping[str, str]) -> pb.DataStatusRes:
    text = "update profiling switch"
    return pb.DataStatusRes(code=OK, message=text, profilingSwitch=pb.ProfilingSwitch(**switches))


__all__ = ["TrainingDataTraceService"]
