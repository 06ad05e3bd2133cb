"""Claims that kubelet asked to prepare: which chips they hold, on the disk before kubelet is answered.

A claim is prepared once and unprepared once, however often kubelet asks (k8s.io/kubelet/pkg/apis/dra/v1: both calls are
idempotent). A chip has one owner: what a pod of the device plugin has, or what is withheld, is refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common import hostfiles
from belay.agents.common.log import Log
from belay.agents.dra import cdi
from belay.agents.dra.devices import Device, user_of
from belay.agents.dra.settings import DraSettings
from belay.agents.drivers.base import VNPU
from belay.agents.node.state import NodeState
from belay.engine.model.unstructured import nested_map
from belay.engine.wire.dra import DRIVER

FILE: Final = "dra-claims.json"
_MAX_FILE: Final = 4 << 20
_log = Log("dra")


class ClaimError(Exception):
    """The claim cannot be prepared; kubelet shows the text in the pod's events and asks again."""


class PreparedDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device of a claim: its name, its requests, chip (physical id) and vNPU (0: the whole chip). ``admin``: it was
    given for watching and belongs to others. ``template``: the chip is cut for this claim; before that ``vnpu`` is 0.
    """

    name: str
    requests: tuple[str, ...]
    chip: int
    vnpu: int = 0
    admin: bool = False
    template: str = ""

    @property
    def whole(self) -> bool:
        """Whether it is a whole chip."""
        return not self.vnpu and not self.template


class PreparedClaim(msgspec.Struct, frozen=True):
    """A claim that containers may use."""

    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]


class _Everything(dict[int, str]):
    """Every chip, while it is unknown which are held."""

    def __contains__(self, chip: object) -> bool:
        return True

    def __missing__(self, chip: int) -> str:
        return f"unknown: {FILE} cannot be read"


class Claims:
    """The prepared claims of a node. ``held`` maps each chip to the claim that holds it; it stays the same object.

    ``problem`` says why what was on the disk cannot be read; then every chip counts as held and nothing is prepared.
    """

    def __init__(self, folder: Path, node: str, settings: DraSettings) -> None:
        self._folder, self._node, self._settings = folder, node, settings
        self.held: dict[int, str] = {}
        self.problem = ""
        self._claims: dict[str, PreparedClaim] = {}
        try:
            self._claims = self._read()
        except (OSError, ValueError) as error:
            self.problem = f"{folder / FILE} cannot be read: {error}; drain the node, then remove the file"
            _log.error("claims that were prepared cannot be read; none is prepared", node=node, error=error)
            self.held = _Everything()
        self._settle()

    @property
    def prepared(self) -> Mapping[str, PreparedClaim]:
        """The prepared claims by UID."""
        return self._claims

    def hold(
        self, uid: str, body: Mapping[str, Any] | None, devices: Iterable[Device], state: NodeState
    ) -> PreparedClaim:
        """Hold the devices of a claim as the API server has it (None: it has none), unless it holds them already.

        Raises ClaimError and OSError.
        """
        if self.problem:
            raise ClaimError(self.problem)
        known = {device.name: device for device in devices}
        found = self._claims.get(uid)
        if found is None:
            found = self._granted(uid, body, known, state)
            self._claims[uid] = found
            # held first: an act that begins while the disk is written must see it, and one that began is seen here
            self._settle()
            try:
                self._check_service(found, state)
                self._write()
            except (ClaimError, OSError):
                del self._claims[uid]
                self._settle()
                raise
        return found

    def record(self, changed: Mapping[str, PreparedClaim]) -> None:
        """Write down which vNPUs claims have, by UID. Raises OSError."""
        before = {uid: self._claims[uid] for uid in changed}
        self._claims.update(changed)
        try:
            self._write()
        except OSError:
            self._claims.update(before)
            raise

    def describe(self, uid: str, devices: Iterable[Device], state: NodeState) -> None:
        """Write the CDI file of a claim that is held. Raises ClaimError and OSError."""
        self._describe(uid, self._claims[uid], {device.name: device for device in devices}, state)

    def unprepare(self, uid: str) -> None:
        """Take a claim's devices back; succeed when it was not prepared. Raises ClaimError and OSError."""
        if self.problem:
            raise ClaimError(self.problem)
        try:
            cdi.remove(self._settings.cdi, uid)
        except ValueError as error:
            raise ClaimError(str(error)) from error
        gone = self._claims.pop(uid, None)
        if gone is not None:
            try:
                self._write()
            except OSError:
                self._claims[uid] = gone
                raise
            self._settle()

    def describe_again(self, devices: Iterable[Device], state: NodeState) -> None:
        """Write the CDI files that a reboot of the host took away. A device that is gone is logged and left."""
        known = {device.name: device for device in devices}
        for uid, claim in self._claims.items():
            try:
                self._describe(uid, claim, known, state)
            except (ClaimError, OSError) as error:
                _log.warning("a claim's CDI file is not written", claim=f"{claim.namespace}/{claim.name}", error=error)

    def _granted(
        self, uid: str, body: Mapping[str, Any] | None, known: Mapping[str, Device], state: NodeState
    ) -> PreparedClaim:
        """The claim with the devices of its allocation, once nothing stands against giving them."""
        metadata = nested_map(body or {}, "metadata")
        if body is None or metadata.get("uid") != uid:
            raise ClaimError(f"the ResourceClaim with UID {uid[:80]} is gone")
        name = f"{metadata.get('namespace')}/{metadata.get('name')}"
        allocation = nested_map(body, "status", "allocation")
        rows = nested_map(allocation, "devices").get("results")
        rows = rows if isinstance(rows, list) else []
        own = [row for row in rows if isinstance(row, dict) and row.get("driver") == DRIVER]
        if not own:
            raise ClaimError(f"ResourceClaim {name} has no device of driver {DRIVER} in its allocation")
        asked: dict[str, list[str]] = {}
        admin: dict[str, bool] = {}
        for row in own:
            device, pool = str(row.get("device")), row.get("pool")
            if pool != self._node:
                raise ClaimError(
                    f"ResourceClaim {name} was allocated device {device} of pool {pool!r}, not of this node"
                )
            asked.setdefault(device, []).append(str(row.get("request", "")))
            admin[device] = admin.get(device, True) and row.get("adminAccess") is True
        given = []
        for device, requests in asked.items():
            there = known.get(device)
            if there is None:
                raise ClaimError(f"ResourceClaim {name} was allocated device {device}, which this node does not have")
            vnpu = there.vnpu.id if there.vnpu is not None else 0
            one = PreparedDevice(device, tuple(requests), there.chip, vnpu, admin[device], there.template)
            if one.admin and one.template:
                raise ClaimError(f"ResourceClaim {name}: {device} is cut for one user and cannot be watched by another")
            if not one.admin and (why := self._refusal(one, state)):
                raise ClaimError(f"ResourceClaim {name}: device {device} is not given: {why}")
            given.append(one)
        return PreparedClaim(str(metadata.get("namespace")), str(metadata.get("name")), tuple(given))

    def _refusal(self, one: PreparedDevice, state: NodeState) -> str:
        """Why a device cannot be given; empty when it can."""
        for claim in self._claims.values():
            for other in claim.devices:
                alike = other.name == one.name or bool(one.vnpu and other.vnpu == one.vnpu)
                same = other.chip == one.chip and (other.whole or one.whole or alike)
                if same and not other.admin:
                    return f"ResourceClaim {claim.namespace}/{claim.name} holds it"
        if pod := user_of(state.users, one.chip, one.vnpu):
            return f"pod {pod} holds it"
        return state.out_of_service(one.chip) or ""

    def _check_service(self, claim: PreparedClaim, state: NodeState) -> None:
        """Raise ClaimError when a chip went out of service while the claim was looked at."""
        for one in claim.devices:
            if not one.admin and (why := state.out_of_service(one.chip)):
                name = f"{claim.namespace}/{claim.name}"
                raise ClaimError(f"ResourceClaim {name}: device {one.name} is not given: {why}")

    def _describe(self, uid: str, claim: PreparedClaim, known: Mapping[str, Device], state: NodeState) -> None:
        missing = next((one.name for one in claim.devices if one.name not in known), None)
        if missing is not None:
            raise ClaimError(f"device {missing} of ResourceClaim {claim.namespace}/{claim.name} is gone from this node")
        if uncut := next((one.name for one in claim.devices if one.template and not one.vnpu), None):
            raise ClaimError(f"device {uncut} of ResourceClaim {claim.namespace}/{claim.name} is not cut yet")
        family = state.machine.server_type.rsplit("-", 1)[0]
        try:
            body = cdi.describe(uid, [_as_cut(known[one.name], one) for one in claim.devices], family, self._settings)
            cdi.write(self._settings.cdi, uid, body)
        except ValueError as error:
            raise ClaimError(str(error)) from error

    def _settle(self) -> None:
        """Derive ``held`` from the claims. The agent reads it meanwhile: a chip that stays held is never missing."""
        wanted = {
            one.chip: f"{claim.namespace}/{claim.name}"
            for claim in self._claims.values()
            for one in claim.devices
            if not one.admin
        }
        self.held.update(wanted)
        for chip in [chip for chip in self.held if chip not in wanted]:
            del self.held[chip]

    def _read(self) -> dict[str, PreparedClaim]:
        self._folder.mkdir(parents=True, exist_ok=True)
        handle = hostfiles.open_folder(self._folder)
        try:
            content = hostfiles.read(handle, FILE, _MAX_FILE)
        finally:
            os.close(handle)
        if content is None:
            return {}
        if len(content) > _MAX_FILE:
            raise ValueError(f"it is larger than {_MAX_FILE} bytes")
        return msgspec.json.decode(content, type=dict[str, PreparedClaim])

    def _write(self) -> None:
        handle = hostfiles.open_folder(self._folder)
        try:
            hostfiles.replace(handle, FILE, msgspec.json.encode(self._claims, order="sorted"))
        finally:
            os.close(handle)


def _as_cut(device: Device, one: PreparedDevice) -> Device:
    """A part of a chip as the vNPU that it has become."""
    if not one.template:
        return device
    return msgspec.structs.replace(device, vnpu=VNPU(one.vnpu, one.chip, one.template))
