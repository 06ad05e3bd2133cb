"""The service `PubFault`: public faults by gRPC, stored in the same inbox ConfigMap as those from other sources.

An accepted message is in the cluster before the answer is sent. It leaves the inbox when the planner's memory holds all
its faults. Source: component/clusterd/pkg/application/publicfault, docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from belay.engine.kube import CONFIGMAP, Conflict, Kube, KubeError, Object
from belay.engine.log import get
from belay.engine.model import public_faults
from belay.engine.model.labels import PUBLIC_FAULT_CONSUMER
from belay.engine.model.public_faults import BAD_PARAMETER, BURST, OK, RATE_LIMITED
from belay.engine.serve.grpc.observed_cluster import ObservedCluster, clock_ms
from belay.engine.serve.grpc.streams import Context
from belay.engine.wire import publicinfo
from belay.engine.wire.clusterd import pubfault_pb2 as pb
from belay.engine.wire.gojson import go_json

_log = get("grpc.pubfault")
SENT: Final = "public fault send successfully"
BAD: Final = "check public fault info failed, error: {}"
LIMITED: Final = "limiter work by resource failed"
#: Bytes that the inbox may hold; a ConfigMap holds 1 MiB.
MAX_INBOX: Final = 900 * 1024
MAX_WAITING: Final = 1_000
CLEAN_SECONDS: Final = 30.0
_TRIES: Final = 8
_MAX_SENDERS: Final = 1_000


class PublicFaultTable(NamedTuple):
    """The senders that are allowed and the codes that are known."""

    senders: frozenset[str]
    codes: frozenset[str]


@functools.cache
def _shipped() -> Any:
    from belay.engine.load import load  # documents take 14 MiB, and few clusters send public faults

    return load({}).desired


def table_of(desired: Any) -> PublicFaultTable:
    """The table of a desired state."""
    table = desired.tables.get("public")
    if table is None:
        return PublicFaultTable(frozenset(), frozenset())
    return PublicFaultTable(frozenset(table.spec.senders), frozenset(table.code_levels))


def too_large(body: Mapping[str, Any]) -> bool:
    """Whether a message can never be stored: it is larger than the whole inbox."""
    return len(go_json(dict(body)).encode()) > MAX_INBOX


class PubFaultService:
    """The handlers, named as the RPCs. ``table`` None: the shipped one, overridden by the cluster's."""

    def __init__(
        self,
        kube: Kube,
        cluster: ObservedCluster,
        table: Callable[[], PublicFaultTable] | None = None,
        *,
        clock: Callable[[], int] = clock_ms,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._table = table or self._in_force
        self._clock = clock
        self._tokens: dict[str, tuple[float, int]] = {}
        self._waiting: list[tuple[str, str, asyncio.Future[bool]]] = []
        self._news = asyncio.Event()

    async def SendPublicFault(self, request: pb.PublicFaultRequest, context: Context) -> pb.RespStatus:
        """Check a message, apply the rate limit and store it."""
        body = body_of(request)
        table = self._table()
        code, info, message = public_faults.respond(body, table.senders, table.codes)
        if message is None:
            return pb.RespStatus(code=code, info=BAD.format(info))
        if not self._spend(message.resource) or len(self._waiting) >= MAX_WAITING:
            return pb.RespStatus(code=RATE_LIMITED, info=LIMITED)
        text = go_json(body)
        if len(text.encode()) > MAX_INBOX:
            return pb.RespStatus(
                code=BAD_PARAMETER, info=BAD.format(f"larger than {MAX_INBOX} bytes: send it in parts")
            )
        if not await self._stored(message.id, text):
            return pb.RespStatus(code=RATE_LIMITED, info=LIMITED)
        return pb.RespStatus(code=OK, info=SENT)

    async def report(self, body: Mapping[str, Any]) -> str:
        """Store a message of this process itself, which no rate limits; why it was not stored, empty when it was."""
        table = self._table()
        _, info, message = public_faults.respond(body, table.senders, table.codes)
        if message is None:
            return BAD.format(info)
        return "" if await self._stored(message.id, go_json(dict(body))) else LIMITED

    async def _stored(self, name: str, text: str) -> bool:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((name, text, future))
        self._news.set()
        return await future

    async def run(self) -> None:
        """Store messages and clean up the inbox until cancelled."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLEAN_SECONDS):
                        await self._news.wait()
                self._news.clear()
                batch, self._waiting = self._waiting, []
                kept = False
                try:
                    kept = await self._keep([(name, text) for name, text, _ in batch])
                except KubeError as error:
                    _log.warning("public faults not stored", messages=len(batch), reason=str(error))
                finally:
                    _settle(batch, kept)
        finally:
            _settle(self._waiting, False)

    def _spend(self, sender: str) -> bool:
        now = self._clock()
        tokens, since = self._tokens.get(sender, (float(BURST), now))
        left, passed = public_faults.spend(tokens, since, now)
        if len(self._tokens) < _MAX_SENDERS or sender in self._tokens:
            self._tokens[sender] = (left, now)
        return passed

    async def _keep(self, fresh: list[tuple[str, str]]) -> bool:
        """Add messages to the inbox and drop those that the planner remembers; False when there is no room."""
        for _ in range(_TRIES):
            live = await self._kube.get(CONFIGMAP, publicinfo.MESSAGES, publicinfo.MESSAGES_NAMESPACE)
            old: dict[str, str] = dict((live or {}).get("data") or {})
            data = publicinfo.with_messages({k: t for k, t in old.items() if not self._remembered(t)}, fresh)
            if sum(len(key) + len(text.encode()) for key, text in data.items()) > MAX_INBOX:
                _log.warning("the inbox of public faults is full", messages=len(old))
                return False
            if data == old:
                return True
            try:
                await self._write(live, data)
            except Conflict:
                continue
            return True
        return False

    async def _write(self, live: Object | None, data: dict[str, str]) -> None:
        if live is None:
            await self._kube.create(CONFIGMAP, {**publicinfo.build_messages(()), "data": data})
            return
        metadata = dict(live["metadata"])
        metadata.pop("managedFields", None)
        metadata["labels"] = {**(metadata.get("labels") or {}), PUBLIC_FAULT_CONSUMER: "true"}
        await self._kube.replace(CONFIGMAP, {**live, "metadata": metadata, "data": data})

    def _remembered(self, text: str) -> bool:
        """Whether the planner's memory holds every fault of a message in the inbox."""
        observed = self._cluster.observed
        report = observed.public.get(f"{publicinfo.MESSAGES_NAMESPACE}/{publicinfo.MESSAGES}")
        message = publicinfo.message_of(text)
        if report is None or message is None or message not in report.messages:
            return False
        memory = {node: row.public for node, row in observed.history.nodes.items()}
        return public_faults.consumed(message, memory)

    def _in_force(self) -> PublicFaultTable:
        from belay.engine.plan import tables_in_force

        return table_of(tables_in_force(_shipped(), self._cluster.observed, self._cluster.cache))


def body_of(request: pb.PublicFaultRequest) -> dict[str, Any]:
    """The request in the form that ConfigMaps have."""
    return {
        "id": request.id,
        "timestamp": request.timestamp,
        "version": request.version,
        "resource": request.resource,
        "faults": [_fault(row) for row in request.faults],
    }


def _fault(row: pb.Fault) -> dict[str, Any]:
    body: dict[str, Any] = {
        "faultId": row.faultId,
        "faultType": row.faultType,
        "faultCode": row.faultCode,
        "faultTime": row.faultTime,
        "assertion": row.assertion,
        "influence": [_influence(item) for item in row.influence],
    }
    if row.faultLocation:
        body["faultLocation"] = {key: row.faultLocation[key] for key in sorted(row.faultLocation)}
    if row.description:
        body["description"] = row.description
    return body


def _influence(item: pb.PubFaultInfo) -> dict[str, Any]:
    names = {"nodeName": item.nodeName, "nodeSN": item.nodeSN}
    return {**{key: value for key, value in names.items() if value}, "deviceIds": list(item.deviceIds)}


def _settle(batch: list[tuple[str, str, asyncio.Future[bool]]], kept: bool) -> None:
    for _, _, future in batch:
        if not future.done():
            future.set_result(kept)


__all__ = ["PubFaultService", "PublicFaultTable", "body_of", "table_of"]
