"""Objects: create, patch, delete, scale, rank tables, signals to jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import orjson

from belay.engine.act import ssh_keys
from belay.engine.act.edge import Edge, Refused
from belay.engine.kube import CONFIGMAP, POD, Conflict, Invalid, NotFound, Object, resource_for
from belay.engine.model.actions import (
    CreateObject,
    DeleteObject,
    PatchObject,
    PatchType,
    Preconditions,
    ScaleJob,
    SignalJob,
    WriteRankTable,
)
from belay.engine.wire import links, rankfile, resetinfo
from belay.engine.wire.errors import WireError
from belay.engine.wire.names import SYSTEM
from belay.engine.wire.seals import seal_of

RANK_TABLE_KEY = "hccl.json"
_TRIES = 5
#: Versions of the same form, for API servers that do not serve the newer one yet.
_EARLIER = {("autoscaling/v2", "HorizontalPodAutoscaler"): "autoscaling/v2beta2"}
_SCALED = {
    "Deployment": ("apps/v1", "replicas"),
    "StatefulSet": ("apps/v1", "replicas"),
    "ReplicaSet": ("apps/v1", "replicas"),
    "Job.batch": ("batch/v1", "parallelism"),
}


async def create_object(edge: Edge, action: CreateObject) -> bool:
    """Server-side apply, so that a doubled task changes nothing; key pairs are made here and created once."""
    if action.generate is not None:
        return await ssh_keys.create_keys(edge, action, action.generate.owner)
    earlier = _EARLIER.get((action.api_version, action.object_kind))
    body = await _sealed(edge, action.api_version, action.object_kind, action.object)
    try:
        edge.wrote(await edge.kube.apply(body))
    except NotFound:
        if earlier is None:
            raise
        edge.wrote(await edge.kube.apply({**action.object, "apiVersion": earlier}))
    return True


async def patch_object(edge: Edge, action: PatchObject) -> bool:
    """Apply or merge; a patch of ``status`` alone goes to the status subresource, and so do labels and annotations of a
    pod: who may write there can change no image.

    A ``uid`` or ``resourceVersion`` among the preconditions travels in the patch, so the server itself refuses another
    object.
    """
    res = await edge.kube.resource(action.api_version, action.object_kind)
    own = set(action.patch) - {"apiVersion", "kind", "metadata"}
    subresource = "status" if own == {"status"} or (res == POD and not own) else None
    patch = _guarded(action.patch, action.preconditions)
    namespace = action.namespace or None
    try:
        if action.patch_type is PatchType.MERGE:
            written = await edge.kube.patch(res, action.name, patch, namespace, subresource=subresource)
        else:
            patch |= {"apiVersion": action.api_version, "kind": action.object_kind}
            patch = await _sealed(edge, action.api_version, action.object_kind, patch)
            patch["metadata"] = {**patch.get("metadata", {}), "name": action.name}
            if namespace:
                patch["metadata"]["namespace"] = namespace
            written = await edge.kube.apply(patch, subresource=subresource)
    except NotFound as error:
        raise Refused(f"{action.object_kind} {action.name} is gone") from error
    except Invalid as error:
        if any(field == "metadata.uid" for field, _ in error.causes):
            raise Refused(f"{action.object_kind} {action.name} was recreated") from error
        raise
    edge.wrote(written)
    return True


async def _sealed(edge: Edge, api_version: str, kind: str, body: Object) -> Object:
    """The object as it is written: orders for links between clusters bear the engine's seal, as orders for chips do."""
    metadata = body.get("metadata") or {}
    name = str(metadata.get("name", ""))
    is_order = (api_version, kind) == ("v1", "ConfigMap") and name.startswith(links.PREFIX)
    if edge.keys.signing is None or not is_order or metadata.get("namespace") != SYSTEM:
        return body
    sealed = {**body, "data": dict(body.get("data") or {})}
    live = await edge.kube.get(CONFIGMAP, name, SYSTEM)
    before = seal_of(live) if live is not None and not edge.keys.problem(live) else None
    edge.keys.seal(sealed, int(edge.now() * 1000), before)
    return sealed


async def delete_object(edge: Edge, action: DeleteObject) -> bool:
    """Delete under the uid and version that the plan saw; an object that is gone counts as deleted.

    ``after`` among the preconditions names objects that must exist first: the object may have been renamed, and a new
    one that the server refuses must not cost the old one.
    """
    for api_version, kind, namespace, name in action.preconditions.after:
        if await edge.kube.get(await edge.kube.resource(api_version, kind), name, namespace or None) is None:
            raise Refused(f"{action.object_kind} {action.name} stays until {kind} {name}, declared now, exists")
    res = await edge.kube.resource(action.api_version, action.object_kind)
    uid = action.preconditions.uid or ""
    try:
        await edge.kube.delete(
            res,
            action.name,
            action.namespace or None,
            uid=uid or None,
            rv=action.preconditions.resource_version or None,
            propagation=action.propagation or "Background",
        )
    except NotFound:
        return False
    edge.removed(action.api_version, action.object_kind, action.namespace, action.name, uid)
    return True


async def scale_job(edge: Edge, action: ScaleJob) -> bool:
    """Set the replica count of a kind that has one."""
    if action.job_kind not in _SCALED:
        raise Refused(f"a {action.job_kind} has no replica count that can be set")
    api_version, field = _SCALED[action.job_kind]
    res = resource_for(api_version, action.job_kind.partition(".")[0])
    patch = _guarded({"spec": {field: action.replicas}}, action.preconditions)
    try:
        edge.wrote(await edge.kube.patch(res, action.name, patch, action.namespace))
    except NotFound as error:
        raise Refused(f"{action.job_kind} {action.namespace}/{action.name} is gone") from error
    return True


async def write_rank_table(edge: Edge, action: WriteRankTable) -> bool:
    """Write the table into the job's ConfigMap, unless the ConfigMap was recreated; a table that becomes a file goes to
    the nodes' agents (``belay.engine.wire.rankfile``).
    """
    if action.file is not None:
        return await _file_rank_table(edge, action)
    name = action.config_map or f"rings-config-{action.name}"
    uid = action.preconditions.uid or ""
    table = orjson.dumps(action.table).decode()

    def change(live: Object) -> bool:
        if uid and live["metadata"].get("uid") != uid:
            raise Refused(f"ConfigMap {name} was recreated")
        data = live.setdefault("data", {})
        if data.get(RANK_TABLE_KEY) == table:
            return False
        data[RANK_TABLE_KEY] = table
        if action.version is not None:
            data["version"] = action.version
        return True

    return await change_config_map(edge, action.namespace, name, change)


async def _file_rank_table(edge: Edge, action: WriteRankTable) -> bool:
    """Create or replace the ConfigMap from which agents write the file."""
    body = rankfile.build(rankfile.of(action))
    place = body["metadata"]["namespace"], body["metadata"]["name"]
    for attempt in range(_TRIES):
        live = await edge.kube.get(CONFIGMAP, place[1], place[0])
        if live is not None and all(live.get(key) == body.get(key) for key in ("data", "binaryData")):
            return False
        if live is not None:
            body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
        try:
            edge.wrote(await (edge.kube.replace if live is not None else edge.kube.create)(CONFIGMAP, body))
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return True
    return False


async def signal_job(edge: Edge, action: SignalJob) -> bool:
    """Signal a job's processes through ``reset-config-<job>`` in MindCluster's format
    (``belay.engine.wire.resetinfo``).

    If the owner also made ``fault-config-<job>``, which older managers read, that is written first: after an
    interruption both are written again.
    """

    def legacy(live: Object) -> bool:
        data = resetinfo.with_legacy_signal(live, action.signal, action.ranks, int(edge.now()))
        if data is not None:
            live["data"] = data
        return data is not None

    if action.signal in resetinfo.LEGACY:
        name = resetinfo.LEGACY_PREFIX + action.name
        if await edge.kube.get(CONFIGMAP, name, action.namespace) is not None:
            await change_config_map(edge, action.namespace, name, legacy)

    def change(live: Object) -> bool:
        try:
            rank_list = msgspec.to_builtins(action.rank_list or ())
            data = resetinfo.with_signal(live, action.signal, action.ranks, int(edge.now()), rank_list=rank_list)
        except (WireError, ValueError) as error:
            raise Refused(str(error)) from error
        if data is not None:
            live["data"] = data
        return data is not None

    return await change_config_map(edge, action.namespace, resetinfo.PREFIX + action.name, change)


async def change_config_map(edge: Edge, namespace: str, name: str, change: Callable[[Object], bool]) -> bool:
    """Read, change and replace over the version read; retried when another writer was faster.

    ``change`` edits the object in place and says whether it did. Raises Refused when there is no such ConfigMap.
    """
    for attempt in range(_TRIES):
        live = await edge.kube.get(CONFIGMAP, name, namespace)
        if live is None:
            raise Refused(f"ConfigMap {namespace}/{name} does not exist")
        if not change(live):
            return False
        try:
            edge.wrote(await edge.kube.replace(CONFIGMAP, live))
        except Conflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return True
    return False


def _guarded(patch: dict[str, Any], preconditions: Preconditions) -> dict[str, Any]:
    seen = (("uid", preconditions.uid), ("resourceVersion", preconditions.resource_version))
    guards = {key: value for key, value in seen if value}
    return {**patch, "metadata": {**(patch.get("metadata") or {}), **guards}} if guards else dict(patch)
