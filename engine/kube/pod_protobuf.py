"""Bindings, and the main fields of pods' watch events, in protobuf.

The JSON of a whole pod costs the API server more than the binding that the event reports. Protobuf costs a tenth, and
unused fields are skipped. A server without protobuf sends JSON, which is read as well.
Source: Kubernetes API concepts, "Protobuf encoding" (magic number, envelope), "Alternate representations of resources".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from google.protobuf.message import DecodeError

from belay.engine.kube.api.pods_pb2 import (
    Binding,
    ObjectMeta,
    ObjectReference,
    Pod,
    Status,
    TypeMeta,
    Unknown,
    WatchEvent,
)
from belay.engine.kube.errors import KubeError, Unavailable, from_answer

_MAGIC: Final = b"k8s\x00"
_BINDING: Final = TypeMeta(api_version="v1", kind="Binding")

Head = dict[str, Any]


def binding(ns: str, pod: str, uid: str, node: str, annotations: Mapping[str, str]) -> bytes:
    """A Binding in its envelope."""
    metadata = ObjectMeta(name=pod, namespace=ns, uid=uid, annotations=annotations)
    target = ObjectReference(kind="Node", name=node, api_version="v1")
    body = Binding(metadata=metadata, target=target).SerializeToString()
    return _MAGIC + Unknown(type_meta=_BINDING, raw=body).SerializeToString()


def event(data: bytes, *, packed: bool, where: str) -> tuple[str, Head]:
    """One event: its type, and the pod with apiVersion, kind, of its metadata name, namespace, uid, resourceVersion,
    annotations and deletionTimestamp (any text: it is set), and spec.nodeName. A bookmark has only the version.

    Raises Gone when the version is too old, Unavailable when the event cannot be read.
    """
    try:
        return _packed(data, where) if packed else _plain(data, where)
    except (DecodeError, orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(f"{where}: an event cannot be read", reason="BadAnswer") from error


def _packed(data: bytes, where: str) -> tuple[str, Head]:
    found = WatchEvent.FromString(data)
    raw = found.object.raw
    if not raw.startswith(_MAGIC):
        raise DecodeError("no magic number")
    body = Unknown.FromString(raw[len(_MAGIC) :]).raw
    if found.type == "ERROR":
        status = Status.FromString(body)
        raise _error({"code": status.code, "reason": status.reason, "message": status.message}, where)
    pod = Pod.FromString(body)
    metadata = pod.metadata
    head: Head = {
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "resourceVersion": metadata.resource_version,
        "annotations": dict(metadata.annotations),
    }
    if metadata.HasField("deletion_timestamp"):
        head["deletionTimestamp"] = str(metadata.deletion_timestamp.seconds)
    return found.type, _pod(head, pod.spec.node_name)


def _plain(data: bytes, where: str) -> tuple[str, Head]:
    found = orjson.loads(data)
    kind, body = str(found["type"]), found["object"]
    if kind == "ERROR":
        raise _error(body, where)
    metadata = body["metadata"]
    head: Head = {
        key: metadata[key]
        for key in ("name", "namespace", "uid", "resourceVersion", "annotations", "deletionTimestamp")
        if metadata.get(key)
    }
    return kind, _pod(head, (body.get("spec") or {}).get("nodeName") or "")


def _pod(metadata: Head, node: str) -> Head:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node} if node else {}}


def _error(status: Head, where: str) -> KubeError:
    return from_answer(int(status.get("code") or 500), orjson.dumps(status), where)


__all__ = ["Head", "binding", "event"]
