"""Names of resources and chips as a vendor shows them: translated at the edges, while the agent uses the internal ones.

The edges are kubelet (resources, device ids) and the API server (pods, the device information, annotations of the
node). Source: component/ascend-device-plugin/pkg/next/devicefactory/customname. A scheduler must know the public names:
Belay's own goes by the internal ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from belay.agents.common.client import KubeClient
from belay.agents.common.log import Log
from belay.engine.model.labels import ASCEND_REAL, BASE_DEVICES, CONFIGURATION_910, HUAWEI_PREFIX, KUBELET_DEVICES
from belay.engine.wire.deviceinfo import MANUAL_KEY, UPGRADES_KEY
from belay.engine.wire.gojson import check_code, go_json
from belay.engine.wire.names import DEVICE_NAMESPACE, DEVICE_PREFIX

FILE: Final = Path("/usr/local/deviceNameCustomization.json")
MAX_FILE: Final = 1 << 20
_FIELDS: Final = ("ResourceType", "DevicePublicType", "DevicePublicNamePre", "PodConfigurationName")
_log = Log("agent")
KINDS: Final = ("Ascend910", "Ascend310", "Ascend310P")
_TYPE: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9./]{8,30}[a-zA-Z0-9]")
_PREFIX: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{1,15}")
_CONFIGURATION: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9./-]{8,61}[a-zA-Z0-9]")
_REFERENCE: Final = re.compile(r"(metadata\.annotations\[')([^']+)('\])")
_RAISED: Final = (MANUAL_KEY, UPGRADES_KEY)


class PublicName(NamedTuple):
    """One kind's names: internal resource and id prefix, and what others see instead; ``configuration`` may be ""."""

    kind: str
    resource: str
    prefix: str
    configuration: str = ""

    def swap(self, text: str, *, outward: bool) -> str:
        """A resource, or the same with a vNPU's suffix, in the other spelling; anything else stays."""
        own = HUAWEI_PREFIX + self.kind
        old, new = (own, self.resource) if outward else (self.resource, own)
        return new + text[len(old) :] if text == old or text.startswith(f"{old}-") else text

    def device(self, name: str, *, outward: bool) -> str:
        """A device id in the other spelling."""
        own = f"{self.kind}-"
        old, new = (own, self.prefix) if outward else (self.prefix, own)
        return new + name[len(old) :] if name.startswith(old) else name


class PublicNames:
    """All of a node. Without any, everything stays as it is."""

    def __init__(self, names: Iterable[PublicName] = ()) -> None:
        self._names = tuple(names)

    def __bool__(self) -> bool:
        return bool(self._names)

    def resource(self, text: str, *, outward: bool) -> str:
        """A resource's name in the other spelling."""
        for name in self._names:
            if (found := name.swap(text, outward=outward)) != text:
                return found
        return text

    def device(self, text: str, *, outward: bool) -> str:
        """A device id in the other spelling."""
        for name in self._names:
            if (found := name.device(text, outward=outward)) != text:
                return found
        return text

    def devices(self, text: str, *, outward: bool) -> str:
        """Device ids, separated by commas."""
        return ",".join(self.device(part, outward=outward) for part in text.split(","))

    def _key(self, key: str, *, outward: bool) -> str:
        for name in self._names:
            if name.configuration and name.kind == "Ascend910":
                old, new = (CONFIGURATION_910, name.configuration)[:: 1 if outward else -1]
                if key == old:
                    return new
        return self.resource(key, outward=outward)

    def annotations(self, annotations: Mapping[str, str], *, outward: bool) -> dict[str, str]:
        """Annotations of a pod: the keys, and the device ids in those that hold some."""
        out = {}
        for key, value in annotations.items():
            other = self._key(key, outward=outward)
            held = key in (ASCEND_REAL, KUBELET_DEVICES) or self.resource(key, outward=outward) != key
            out[other] = self.devices(value, outward=outward) if held else value
        return out

    def pod(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A pod of the API server with internal names."""
        metadata, spec = dict(body.get("metadata") or {}), dict(body.get("spec") or {})
        metadata["annotations"] = self.annotations(metadata.get("annotations") or {}, outward=False)
        for key in ("containers", "initContainers"):
            if spec.get(key):
                spec[key] = [self._container(container) for container in spec[key]]
        return {**body, "metadata": metadata, "spec": spec}

    def _container(self, container: Mapping[str, Any]) -> dict[str, Any]:
        out = dict(container)
        resources = {
            kind: {self.resource(key, outward=False): amount for key, amount in (amounts or {}).items()}
            if kind in ("limits", "requests")
            else amounts
            for kind, amounts in (container.get("resources") or {}).items()
        }
        if resources:
            out["resources"] = resources
        if container.get("env"):
            out["env"] = [self._variable(entry) for entry in container["env"]]
        return out

    def _variable(self, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        field = ((entry.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        found = _REFERENCE.fullmatch(field) if isinstance(field, str) else None
        if found is None:
            return entry
        path = found[1] + self._key(found[2], outward=False) + found[3]
        return {**entry, "valueFrom": {"fieldRef": {**entry["valueFrom"]["fieldRef"], "fieldPath": path}}}

    def device_information(self, data: Mapping[str, str], *, outward: bool) -> dict[str, str]:
        """Data of the device-information ConfigMap; its check code is that of the names in it."""
        out = dict(data)
        if "DeviceInfoCfg" in data:
            whole = json.loads(data["DeviceInfoCfg"])
            info = whole["DeviceInfo"]
            info["DeviceList"] = {
                self.resource(key, outward=outward): self._everywhere(value, outward=outward)
                for key, value in info["DeviceList"].items()
            }
            out["DeviceInfoCfg"] = go_json({**whole, "CheckCode": check_code(info)})
        for key in _RAISED:
            if key in data:
                out[key] = self._everywhere(data[key], outward=outward)
        return out

    def node_annotations(self, annotations: Mapping[str, str], *, outward: bool) -> dict[str, str]:
        """Annotations of a node: the chips' names in ``baseDeviceInfos``."""
        out = dict(annotations)
        if BASE_DEVICES in out:
            out[BASE_DEVICES] = self._everywhere(out[BASE_DEVICES], outward=outward)
        return out

    def _everywhere(self, text: str, *, outward: bool) -> str:
        for name in self._names:
            own = f"{name.kind}-"
            old, new = (own, name.prefix) if outward else (name.prefix, own)
            # a name begins where no letter or digit stands before it
            text = re.sub(rf"(?<![A-Za-z0-9.-]){re.escape(old)}(?=\d)", lambda _, new=new: new, text)  # type: ignore[misc]
        return text


def read_names(file: Path = FILE) -> PublicNames:
    """The names that a file gives; none when there is no file. Raises ValueError naming file, entry and field."""
    try:
        with file.open("rb") as source:
            data = source.read(MAX_FILE + 1)
    except FileNotFoundError:
        return PublicNames()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    try:
        rows = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if len(data) > MAX_FILE or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file} must be a list of objects, 1 MiB at most")
    names: list[PublicName] = []
    for at, row in enumerate(rows):
        if not any(row.get(field) for field in _FIELDS):
            # MindCluster ships one such entry, with examples in fields of other names
            _log.warning("an entry for names of resources is empty and does not count", file=str(file), entry=at)
            continue
        kind = row.get("ResourceType")
        if kind not in KINDS or any(name.kind == kind for name in names):
            raise ValueError(f"{file}: [{at}].ResourceType must be one of {', '.join(KINDS)}, each at most once")
        texts = []
        for field, pattern, needed in (
            ("DevicePublicType", _TYPE, True),
            ("DevicePublicNamePre", _PREFIX, True),
            ("PodConfigurationName", _CONFIGURATION, False),
        ):
            text = row.get(field) or ""
            if not isinstance(text, str) or ((text or needed) and not pattern.fullmatch(text)):
                raise ValueError(f"{file}: [{at}].{field} must match ^{pattern.pattern}$")
            texts.append(text)
        names.append(PublicName(str(kind), texts[0], texts[1], texts[2]))
    return PublicNames(names)


class _NamedClient:
    """A client whose names are public on the API server's side and internal on this one."""

    def __init__(self, client: Any, names: PublicNames) -> None:
        self._client, self._names = client, names

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def list_pods(self, node: str) -> Sequence[Mapping[str, Any]]:
        return [self._names.pod(body) for body in await self._client.list_pods(node)]

    async def pods(self, node: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        async for bodies in self._client.pods(node):
            yield [self._names.pod(body) for body in bodies]

    async def patch_pod(self, namespace: str, name: str, uid: str, annotations: Mapping[str, str]) -> None:
        await self._client.patch_pod(namespace, name, uid, self._names.annotations(annotations, outward=True))

    async def get_config_map(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._inward(namespace, name, await self._client.get_config_map(namespace, name))

    async def config_map(self, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        async for body in self._client.config_map(namespace, name):
            yield self._inward(namespace, name, body)

    def _inward(self, namespace: str, name: str, body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        if body is None or namespace != DEVICE_NAMESPACE or not name.startswith(DEVICE_PREFIX):
            return body
        try:
            return {**body, "data": self._names.device_information(body.get("data") or {}, outward=False)}
        except (ValueError, KeyError, TypeError, AttributeError):
            return body  # the reader reports the problem

    async def put_config_map(self, body: Mapping[str, Any]) -> None:
        metadata = body["metadata"]
        if metadata.get("namespace") == DEVICE_NAMESPACE and str(metadata["name"]).startswith(DEVICE_PREFIX):
            body = {**body, "data": self._names.device_information(body["data"], outward=True)}
        await self._client.put_config_map(body)

    async def get_node(self, node: str) -> Mapping[str, Any] | None:
        body = await self._client.get_node(node)
        if body is None:
            return None
        metadata = dict(body.get("metadata") or {})
        metadata["annotations"] = self._names.node_annotations(metadata.get("annotations") or {}, outward=False)
        return {**body, "metadata": metadata}

    async def patch_node(self, node: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        await self._client.patch_node(node, labels, self._names.node_annotations(annotations, outward=True))


def named(client: KubeClient, names: PublicNames) -> KubeClient:
    """The same client with names swapped; without names the client itself."""
    return cast(KubeClient, _NamedClient(client, names)) if names else client
