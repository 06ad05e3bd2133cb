"""The service `Config`: the global rank table of an inference service, pushed when every member's table is complete.

Source: component/clusterd/pkg/application/config, docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from belay.engine.log import get
from belay.engine.model.cluster import Pod
from belay.engine.model.labels import APP_LABEL, DEPLOY_NAME, JOB_NAME_LABEL, SERVICE_JOB_ID
from belay.engine.model.recovery import Code
from belay.engine.serve.grpc.observed_cluster import ObservedCluster
from belay.engine.serve.grpc.publishers import Publishers
from belay.engine.serve.grpc.streams import Context
from belay.engine.wire import globaltable
from belay.engine.wire.clusterd import config_pb2 as pb
from belay.engine.wire.globaltable import Group, GroupError, Manager

_log = get("grpc.config")
_MAX_READ = 4096
#: A service has one registration for all roles.
_ANY_ROLE = ""


class ConfigService:
    """The handlers, named as the RPCs."""

    def __init__(self, cluster: ObservedCluster) -> None:
        self._cluster = cluster
        self._publishers: Publishers[pb.RankTableStream] = Publishers(yields=True)
        self._complained: set[str] = set()
        self._read: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}

    async def Register(self, request: pb.ClientInfo, context: Context) -> pb.Status:
        """Register for a service's table, replacing an older registration of any role."""
        if self._publishers.register(request.jobId, _ANY_ROLE) is None:
            return pb.Status(code=int(Code.TOO_MANY_JOBS), info="out of max serve jobs")
        return pb.Status(code=int(Code.OK), info="register success")

    async def SubscribeRankTable(self, request: pb.ClientInfo, context: Context) -> None:
        """Stream the table, if it is complete, and every later one."""
        publisher = await self._publishers.find(request.jobId, _ANY_ROLE, context, shown_role=request.role)
        await publisher.serve(context, self._newest(request.jobId))

    async def run(self) -> None:
        """Push what changed, until cancelled."""
        with self._cluster.refreshes() as refreshed:
            while True:
                await refreshed.wait()
                refreshed.clear()
                self._publishers.publish(self._newest)

    def close(self) -> None:
        """End every stream."""
        self._publishers.close()

    def _newest(self, service: str, _: Collection[str] = ()) -> dict[str, pb.RankTableStream]:
        table = self.table(service)
        return {} if table is None else {service: table}

    def table(self, service: str) -> pb.RankTableStream | None:
        """The newest complete table of a service; None while there is none."""
        maps = self._cluster.rank_tables(service)
        if not service or not maps:
            return None
        namespaces = {str(raw["metadata"].get("namespace") or "") for raw in maps}
        pods = [
            pod
            for pod in self._cluster.observed.pods.values()
            if pod.namespace in namespaces and pod.labels.get(SERVICE_JOB_ID) == service and not pod.finished
        ]
        groups = []
        for raw in maps:
            name = str(raw["metadata"]["name"]).removeprefix(globaltable.PREFIX)
            labels = _labels(raw, name, pods)
            if labels.get(APP_LABEL, globaltable.SERVER) != globaltable.SERVER:
                continue
            try:
                deploys = globaltable.deploy_server(name, labels)
            except GroupError as error:
                self._complain(str(error))
                return None
            groups.append(Group(name, self._table(raw), deploys))
        if not globaltable.complete(groups):
            return None
        table = globaltable.build(
            groups, _managers(pods, globaltable.COORDINATOR), _managers(pods, globaltable.CONTROLLER)
        )
        return pb.RankTableStream(jobId=service, rankTable=globaltable.text(table))

    def _table(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The ConfigMap's table, read once per version."""
        metadata = raw["metadata"]
        key = (str(metadata.get("namespace")), str(metadata.get("name")))
        version = str(metadata.get("resourceVersion") or id(raw))
        known = self._read.get(key)
        if known is None or known[0] != version:
            if len(self._read) >= _MAX_READ:
                self._read.clear()  # mostly tables of services that are gone
            known = self._read[key] = (version, globaltable.read((raw.get("data") or {}).get(globaltable.FILE)))
        return known[1]

    def _complain(self, text: str) -> None:
        if text not in self._complained and len(self._complained) < 1000:
            self._complained.add(text)
            _log.warning("no global rank table", reason=text)


def _labels(raw: Mapping[str, Any], job: str, pods: list[Pod]) -> dict[str, str]:
    """Labels of the job's pods, overridden by those of the ConfigMap."""
    own = {str(k): str(v) for k, v in ((raw.get("metadata") or {}).get("labels") or {}).items()}
    for pod in pods:
        if job in (pod.owner_name, pod.labels.get(JOB_NAME_LABEL), pod.labels.get(DEPLOY_NAME)):
            return {**pod.labels, **own}
    return own


def _managers(pods: list[Pod], app: str) -> list[Manager]:
    return [
        Manager(pod.name, pod.host_ip, pod.pod_ip)
        for pod in pods
        if pod.labels.get(APP_LABEL) == app and pod.phase == "Running" and pod.pod_ip
    ]


__all__ = ["ConfigService"]
