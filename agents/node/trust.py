"""Which orders an agent believes: those sealed by a key that is pinned on the node, for what the policy entitles to.

The folder (a Secret's mount) holds ``*.pub``, the engine's public keys, several while keys rotate, and optionally
``signers``: one line for each person or key whose commits may lead to destructive orders, as the engine names them.
With ``allowed-signers`` the agent checks the commit's signature itself (``commit_trust.py``), for the source in
``source`` if that is there. Without keys orders are believed as they are. Keys that were once seen stay pinned in the
agent's own folder, so that taking the Secret away does not switch the check off.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common.log import Log
from belay.agents.node.acts import Act
from belay.agents.node.commit_trust import CommitTrust
from belay.agents.node.shipped import shipped_rules
from belay.engine.model.cluster import Orders
from belay.engine.model.seals import Entitlements, Warrant, layout_warrant, reset_warrant
from belay.engine.wire import seals, sshsignatures
from belay.engine.wire.key_folder import KeyFolder, Stamp
from belay.engine.wire.names import MAIN_SHARD, ORDERS_PREFIX, commit_config_map
from belay.engine.wire.policy import parse_entitlements, parse_policy
from belay.engine.wire.seals import TrustedKeys

UNSIGNED: Final = "Unsigned"
VERIFIED: Final = "Verified"
REFUSED: Final = "Refused"
SIGNERS: Final = "signers"
ALLOWED_SIGNERS: Final = "allowed-signers"
SOURCE: Final = "source"
BACK_TO: Final = "rewrite-to"
_PINNED: Final = "order-trust.json"
_log = Log("agent")


class _Pinned(msgspec.Struct):
    keys: list[str] = []
    signers: list[str] = []
    allowed_signers: str = ""
    source: str = ""


class OrderTrust:
    """The keys that are pinned, and what was verified with them.

    ``verdict`` is ``Unsigned`` (no keys), ``Verified`` or ``Refused``, of the newest orders. Raises ValueError for keys
    that cannot be used when the agent starts.
    """

    def __init__(self, folder: str, state: Path, name: str) -> None:
        self._files = KeyFolder(Path(folder) if folder else None, SIGNERS, ALLOWED_SIGNERS, SOURCE, BACK_TO)
        self._state = state / _PINNED
        self._commits = CommitTrust(state)
        self._shipped: frozenset[str] | None = None
        self._object = ORDERS_PREFIX + name
        self._stamp: Stamp | None = None
        self._keys = TrustedKeys(())
        self._signers: tuple[str, ...] = ()
        self._entitlements: Entitlements | None = None
        self._policy_digest = ""
        self._policy_at = self._orders_at = 0
        self.verdict = UNSIGNED
        self._load()

    @property
    def required(self) -> bool:
        """Whether orders must be sealed."""
        self._refresh()
        return bool(self._keys)

    def seal_problem(self, body: Mapping[str, Any]) -> str:
        """Why a ConfigMap is not signed by a pinned key, whatever its age; empty when it is."""
        name = str((body.get("metadata") or {}).get("name", ""))
        return self._keys.problem(name, seals.digests(seals.covered(body)), seals.seal_of(body))

    def orders_problem(self, orders: Orders | None) -> str:
        """Why orders are not believed; empty when they are. They never get older: a state put back is refused."""
        if not self.required:
            self.verdict = UNSIGNED
            return ""
        if orders is None:
            # the engine deletes no orders: without this, to delete them would end every isolation
            self.verdict = REFUSED if self._orders_at else self.verdict
            return "is gone" if self._orders_at else ""
        problem = self._keys.problem(self._object, orders.digests, orders.seal)
        if not problem and orders.seal is not None and orders.seal.signed_at < self._orders_at:
            problem = "is older than the one that was accepted last"
        if problem:
            self.verdict = REFUSED
            return problem
        assert orders.seal is not None
        self._orders_at, self.verdict = orders.seal.signed_at, VERIFIED
        return ""

    def policy_problem(self, body: Mapping[str, Any]) -> str:
        """Why a policy is not believed; empty when it is. Raises WireError for one that cannot be read."""
        if not self.required:
            return ""
        name = str((body.get("metadata") or {}).get("name", ""))
        seal = seals.seal_of(body)
        if problem := self._keys.problem(name, seals.digests(seals.covered(body)), seal):
            return problem
        policy, entitlements = parse_policy(body), parse_entitlements(body)
        if entitlements is None:
            return "does not say what it entitles to"
        if (entitlements.pool, entitlements.policy_digest) != (policy.pool, policy.digest):
            return "entitles to orders under another policy"
        same_pool = self._entitlements is not None and self._entitlements.pool == policy.pool
        assert seal is not None
        if same_pool and seal.signed_at < self._policy_at:
            return "is older than the one that was accepted last"
        self._entitlements, self._policy_digest, self._policy_at = entitlements, policy.digest, seal.signed_at
        return ""

    def waits_for_policy(self, orders: Orders | None) -> bool:
        """Whether orders name another policy than the agent holds, so that acts wait for it."""
        return self.required and orders is not None and orders.policy_digest != self._policy_digest

    def refusal(self, act: Act, orders: Orders | None) -> str:
        """Why verified orders do not entitle to an act; empty when they do."""
        if not self.required:
            return ""
        held = self._entitlements
        if orders is None or held is None:
            return "no signed policy is held"
        if orders.pool != held.pool:
            return f"the orders are for pool {orders.pool!r}, the policy is of {held.pool!r}"
        if self._signers and not any(_is_named(held.signer, row) for row in self._signers):
            return f"the policy's signer {held.signer[:80]!r} is not allowed on this node"
        warrants = self._warrants(act, orders)
        if warrants is None:
            return "the order does not say what entitles it"
        if max(warrant.epoch for warrant in warrants) != act.epoch:
            return f"the order's warrant is not for epoch {act.epoch}"
        strange = next((warrant.rule for warrant in warrants if warrant.rule not in held.rules), None)
        if strange is not None:
            return f"rule {strange[:80]!r} is not in the policy that was signed"
        return ""

    @property
    def commit_map(self) -> str:
        """The ConfigMap with the signed commit that acts need; empty when none is needed."""
        if not self.required or not self._commits.required:
            return ""
        return commit_config_map(self._entitlements.shard if self._entitlements is not None else MAIN_SHARD)

    def commit_refusal(self, act: Act, orders: Orders, body: Mapping[str, Any] | None, now: float) -> str:
        """Why the signed commit does not entitle to an act; empty when it does. ``now`` is in Unix seconds.

        Raises FactUnavailable while there is no commit that can be believed.
        """
        if self._shipped is None:
            self._shipped = shipped_rules()
        return self._commits.refusal(body, self._warrants(act, orders) or (), self._shipped, now)

    def _warrants(self, act: Act, orders: Orders) -> list[Warrant] | None:
        prefix = "" if not act.layout else self._prefix(orders)
        names = [reset_warrant(key) for key in act.keys] if not act.layout else [
            layout_warrant(f"{prefix}{chip}") for chip in act.chips
        ]  # fmt: skip
        found = [orders.warrants.get(name) for name in names]
        warrants = [warrant for warrant in found if warrant is not None]
        return warrants if warrants and len(warrants) == len(found) else None

    @staticmethod
    def _prefix(orders: Orders) -> str:
        name = next((name for name in orders.warrants if name.endswith("/layout")), "")
        return name.rpartition("/")[0].rpartition("-")[0] + "-"

    # ---- keys

    def _refresh(self) -> None:
        if self._files.stamp() == self._stamp:
            return
        try:
            self._load()
        except ValueError as error:
            _log.error("keys of orders cannot be used, the last good ones stay pinned", reason=error)

    def _load(self) -> None:
        self._stamp = self._files.stamp()
        pems: list[str] = []
        texts: dict[str, str] = {}
        for name, content in self._files.read().items():
            try:
                texts[name] = content.decode()
                if name.endswith(".pub"):
                    TrustedKeys([content])
                    pems.append(texts.pop(name))
                elif name == ALLOWED_SIGNERS:
                    sshsignatures.allowed_signers(texts[name])
            except ValueError as error:
                raise ValueError(f"{self._files.place(name)} {error}") from error
        if not pems:
            self._from_pinned()
            return
        rows = [row.strip() for row in texts.get(SIGNERS, "").splitlines() if not row.startswith("#")]
        pinned = _Pinned(pems, [row for row in rows if row], texts.get(ALLOWED_SIGNERS, ""), texts.get(SOURCE, ""))
        try:
            self._take(pinned, texts.get(BACK_TO, ""))
        except ValueError as error:
            raise ValueError(f"{self._files.place(ALLOWED_SIGNERS)} {error}") from error
        self._pin(pinned)

    def _take(self, pinned: _Pinned, back_to: str = "") -> None:
        self._commits.pin(pinned.allowed_signers, pinned.source, back_to)
        self._keys, self._signers = TrustedKeys(pem.encode() for pem in pinned.keys), tuple(pinned.signers)

    def _from_pinned(self) -> None:
        try:
            kept = msgspec.json.decode(self._state.read_bytes(), type=_Pinned)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ValueError(f"{self._state} cannot be read: {error}; delete it to trust unsigned orders") from error
        self._take(kept)

    def _pin(self, pinned: _Pinned) -> None:
        body = msgspec.json.encode(pinned)
        try:
            if self._state.is_file() and self._state.read_bytes() == body:
                return
            self._state.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._state.with_suffix(".new")
            with fresh.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._state)
        except OSError as error:
            _log.warning("keys of orders cannot be kept on disk", reason=error)


def _is_named(signer: str, row: str) -> bool:
    """Whether a signer (``name (fingerprint)``) is the person or the key that a line names."""
    name, _, rest = signer.rpartition(" (")
    return row in (name, rest.removesuffix(")"), signer)
