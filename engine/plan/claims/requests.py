"""What a claim asks for: its requests with the rules of their classes, and the constraints between them.

Source: resource.k8s.io/v1 (DeviceClaim, DeviceRequest, DeviceConstraint, DeviceClass). In v1beta1 a request's fields
stand beside its name, in v1 and v1beta2 below ``exactly``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.labels import ADMIN_ACCESS
from belay.engine.model.unstructured import nested_list, nested_map
from belay.engine.plan.claims.cel import CelError, Expression, holds, parse
from belay.engine.plan.claims.devices import ClaimDevice

ALL: Final = -1
MAX_DEVICES: Final = 32
"""Most devices of one claim (resource.k8s.io/v1, AllocationResultsMaxSize)."""


class RequestError(Exception):
    """The claim cannot be served, or not yet; the text says why."""


class Request(msgspec.Struct, frozen=True):
    """One request: ``name`` with that of the chosen alternative, as results spell it; ``count`` devices, ``ALL`` for
    every one of a node; ``admin``: devices that others use too;
    ``key``: equal for requests that the same devices suit.
    """

    name: str
    count: int
    admin: bool
    selectors: tuple[Expression, ...]
    tolerations: tuple[Mapping[str, Any], ...]
    class_config: tuple[Mapping[str, Any], ...] = ()
    key: str = ""

    def takes(self, device: ClaimDevice) -> bool:
        """Whether a device suits the request, and its taints are tolerated."""
        return self.selects(device) and all(_tolerated(taint, self.tolerations) for taint in device.taints)

    def selects(self, device: ClaimDevice) -> bool:
        """Whether the selectors take a device. One that has no value for the device does not."""
        try:
            return all(holds(selector, {"device": device.seen}) for selector in self.selectors)
        except CelError:
            return False


class Constraint(msgspec.Struct, frozen=True):
    """The devices of these requests (none named: of all) have one value of an attribute, or all different ones."""

    attribute: str
    requests: frozenset[str]
    distinct: bool

    def concerns(self, request: Request) -> bool:
        """Whether it binds the devices of a request."""
        main = request.name.partition("/")[0]
        return not self.requests or request.name in self.requests or main in self.requests


class ClaimRequests(msgspec.Struct, frozen=True):
    """What one claim asks for: for each request its alternatives in the order of preference, and the constraints."""

    requests: tuple[tuple[Request, ...], ...]
    constraints: tuple[Constraint, ...]


def read(
    claim: Mapping[str, Any],
    classes: Mapping[str, Mapping[str, Any]],
    namespace: Mapping[str, Any] | None,
    known: dict[str, Expression],
) -> ClaimRequests:
    """Read a claim's spec. Raises RequestError.

    Args:
        classes: DeviceClasses by name.
        namespace: the claim's Namespace, if it is known.
        known: selectors that were parsed before, by text; it grows.
    """
    asked = nested_map(claim, "spec", "devices")
    found = []
    for row in nested_list(asked, "requests"):
        name = str(row.get("name"))
        several = nested_list(row, "firstAvailable")
        forms = [(f"{name}/{one.get('name')}", one) for one in several] or [(name, nested_map(row, "exactly") or row)]
        found.append(tuple(_request(text, form, classes, namespace, known) for text, form in forms))
    if not found:
        raise RequestError("it asks for no devices")
    constraints = []
    for row in nested_list(asked, "constraints"):
        attribute = row.get("matchAttribute") or row.get("distinctAttribute")
        if not isinstance(attribute, str) or "/" not in attribute:
            raise RequestError("a constraint names no attribute with its domain, such as npu.huawei.com/ring")
        names = frozenset(str(one) for one in row.get("requests") or ())
        constraints.append(Constraint(attribute, names, not row.get("matchAttribute")))
    return ClaimRequests(tuple(found), tuple(constraints))


def _request(
    name: str,
    raw: Mapping[str, Any],
    classes: Mapping[str, Mapping[str, Any]],
    namespace: Mapping[str, Any] | None,
    parsed: dict[str, Expression],
) -> Request:
    device_class = str(raw.get("deviceClassName") or "")
    known = classes.get(device_class)
    if known is None:
        raise RequestError(f"request {name} names DeviceClass {device_class!r}, which does not exist")
    selectors = [row for one in (nested_map(known, "spec"), raw) for row in nested_list(one, "selectors")]
    texts = [str(nested_map(row, "cel").get("expression") or "") for row in selectors]
    try:
        for text in texts:
            if text not in parsed:
                parsed[text] = parse(text)
    except CelError as error:
        raise RequestError(f"request {name}: a selector cannot be read: {error}") from error
    admin = raw.get("adminAccess") is True
    labels = nested_map(namespace or {}, "metadata", "labels")
    if admin and labels.get(ADMIN_ACCESS) != "true":
        raise RequestError(f"request {name} asks for admin access, its namespace lacks the label {ADMIN_ACCESS}=true")
    mode, count = raw.get("allocationMode") or "ExactCount", raw.get("count")
    if mode not in ("ExactCount", "All"):
        raise RequestError(f"request {name} has allocationMode {str(mode)[:40]!r}, known are ExactCount and All")
    if nested_map(raw, "capacity"):
        raise RequestError(f"request {name} asks for a part of a device's capacity, which chips do not offer")
    exact = count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 1
    if exact > MAX_DEVICES:
        raise RequestError(f"request {name} asks for {exact} devices, a claim may have {MAX_DEVICES}")
    config = tuple(nested_list(known, "spec", "config"))
    tolerations = tuple(nested_list(raw, "tolerations"))
    return Request(
        name=name,
        count=ALL if mode == "All" else exact,
        admin=admin,
        selectors=tuple(parsed[text] for text in texts),
        tolerations=tolerations,
        class_config=config,
        key=msgspec.json.encode((texts, tolerations), order="deterministic").decode(),
    )


def _tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    for one in tolerations:
        if one.get("effect") not in (None, "", taint.get("effect")) or one.get("key") not in (
            None,
            "",
            taint.get("key"),
        ):
            continue
        if one.get("operator") == "Exists" or (one.get("key") and one.get("value", "") == taint.get("value", "")):
            return True
    return False


def namespace_of(objects: Mapping[ObjectKey, Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    """The Namespace of that name."""
    return objects.get(ObjectKey("v1", "Namespace", "", name))


__all__ = ["ALL", "ClaimRequests", "Constraint", "Request", "RequestError", "namespace_of", "read"]
