"""Sets of keys and their rotation, step by step: files in, files out, at a time that is given.

Two sets: the Ed25519 keys of orders, in two parts (the engine's and what agents pin), and the keys of batches, lines of
one file. A rotation has three steps with time between them, and the set itself remembers where it stands: the new key
is distributed, the new key signs, the old key is retired. What the old key signed is replaced before it is retired.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from belay.engine.errors import InputError
from belay.engine.model.times import rfc3339
from belay.engine.store.keyring import LEAST_KEY
from belay.engine.wire import names, seals, sshsignatures
from belay.engine.wire.errors import WireError
from belay.engine.wire.orders import parse_orders
from belay.engine.wire.seals import SigningKey, TrustedKeys

SIGNING: Final = "signing.pem"
NEXT: Final = "next.pem"
ROTATION: Final = "rotation.json"
SIGNERS: Final = "signers"
ALLOWED_SIGNERS: Final = "allowed-signers"
SOURCE: Final = "source"
BATCH_FILE: Final = "keys"
SPREAD: Final = 600.0
"""Seconds until a changed Secret counts as read by every process; kubelet takes a minute or two."""
ORDER_LIFE: Final = 900.0
"""Seconds for which an order is in force after it was signed."""
_COMMENT: Final = re.compile(rb"^# rotation (\{.*\})$", re.MULTILINE)
_SHOWN: Final = 3


class Rotation(msgspec.Struct, frozen=True, rename="camel"):
    """Where a rotation stands: ``step`` is ``distributed`` or ``signing``, since ``at`` (Unix seconds); ``old`` and
    ``new`` are identifiers of keys."""

    step: str
    at: int
    old: str
    new: str


class OrderKeySet(msgspec.Struct):
    """Files by name: ``engine`` is what BELAY_ORDER_KEYS holds, ``trust`` what agents pin. Changed in place."""

    engine: dict[str, bytes]
    trust: dict[str, bytes]

    @property
    def rotation(self) -> Rotation | None:
        """The rotation that is under way. Raises InputError when its record cannot be read."""
        return _rotation(self.engine.get(ROTATION))


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One key as it is listed; ``public`` is PEM, empty if a key has no public part."""

    use: str
    key: str
    role: str
    where: str
    public: str = ""


class SignedObject(msgspec.Struct, frozen=True):
    """A signed object in force; ``until`` is its expiry (Unix ms), 0 for none."""

    name: str
    until: int = 0


# ---- keys of orders


def created(now: float, policy: Mapping[str, bytes] | None = None) -> OrderKeySet:
    """A new set with one key; ``policy`` are the files by which agents judge commits (``policy_files``)."""
    key = new_signing_key()
    name = _public_name(key, now)
    trust = {name: key.public_pem(), **(policy or {})}
    return OrderKeySet({SIGNING: key.private_pem(), name: key.public_pem()}, trust)


def policy_files(signers: bytes | None, allowed_signers: bytes | None, source: str) -> dict[str, bytes]:
    """The files by which agents judge commits: names that the engine may report as signers; a list by which agents
    check signatures themselves; what commits must be made for. Raises InputError for a list that cannot be read."""
    found = {SIGNERS: signers} if signers is not None else {}
    if allowed_signers is not None:
        try:
            listed = sshsignatures.allowed_signers(allowed_signers.decode())
        except ValueError as error:
            raise InputError(str(error), where="--allowed-signers") from error
        if not listed:
            raise InputError("names no key that may sign commits", where="--allowed-signers")
        found[ALLOWED_SIGNERS] = allowed_signers
    if source:
        found[SOURCE] = f"{' '.join(source.split())}\n".encode()
    return found


def pinned(keys: OrderKeySet, policy: Mapping[str, bytes], unsigned: Iterable[SignedObject]) -> None:
    """Give agents every public key of the engine. Raises InputError while unsigned orders are in force."""
    waiting = list(unsigned)
    if waiting and not any(name.endswith(".pub") for name in keys.trust):
        raise InputError(
            f"{len(waiting)} orders and policies are not signed ({_some(waiting)}), and agents with keys refuse them",
            hint="Wait until condition OrdersSigned is True; the engine signs 200 nodes a pass",
        )
    keys.trust.update({**_public(keys.engine), **policy})


def rotated(keys: OrderKeySet, now: float, signed: list[SignedObject] | None, spread: float = SPREAD) -> str:
    """Take the next step of a rotation and say which it was.

    ``signed`` are the orders and policies in force that the old key signed; None: not known, so nothing can be retired.
    Raises InputError when it is too early for the next step, saying when it is not, or when a file is broken.
    """
    stage = keys.rotation
    if stage is None:
        return _distribute(keys, now)
    if stage.step == "distributed":
        return _promote(keys, stage, now, spread)
    return _retire(keys, stage, now, signed, spread)


def replaced(keys: OrderKeySet, now: float) -> str:
    """A new key at once, and the old ones trusted no more: after a leak."""
    key = new_signing_key()
    name = _public_name(key, now)
    kept = {file: content for file, content in keys.trust.items() if not file.endswith(".pub")}
    keys.engine.clear()
    keys.engine.update({SIGNING: key.private_pem(), name: key.public_pem()})
    keys.trust.clear()
    keys.trust.update(kept | {name: key.public_pem()})
    return f"key {key.key_id} alone is trusted; agents refuse orders until they have it and all is signed again"


def _distribute(keys: OrderKeySet, now: float) -> str:
    old = signing_key(keys)
    key = new_signing_key()
    name = _public_name(key, now)
    keys.engine |= {NEXT: key.private_pem(), name: key.public_pem()}
    if not any(old.key_id == _id(pem) for pem in _public(keys.engine).values()):
        keys.engine[_public_name(old, now)] = old.public_pem()
    keys.trust.update(_public(keys.engine))
    _note(keys, Rotation("distributed", int(now), old.key_id, key.key_id))
    return f"step 1 of 3: key {key.key_id} is distributed, {old.key_id} signs"


def _promote(keys: OrderKeySet, stage: Rotation, now: float, spread: float) -> str:
    if NEXT not in keys.engine:
        raise InputError(f"{NEXT} is gone", where=ROTATION, hint=f"Delete {ROTATION} to start the rotation again")
    key = SigningKey(keys.engine[NEXT])
    if key.key_id != stage.new:
        raise InputError(f"{NEXT} is key {key.key_id}, {ROTATION} names {stage.new}")
    if _public(keys.trust) and key.key_id not in {_id(pem) for pem in _public(keys.trust).values()}:
        keys.trust.update(_public(keys.engine))
        _note(keys, msgspec.structs.replace(stage, at=int(now)))
        return f"step 1 of 3 again: agents did not have key {key.key_id}; it is distributed now"
    _wait(
        stage.at + spread, now, f"key {stage.new} was distributed {_ago(stage, now)} and may not be on every node yet"
    )
    keys.engine[SIGNING] = keys.engine.pop(NEXT)
    _note(keys, Rotation("signing", int(now), stage.old, stage.new))
    return f"step 2 of 3: key {stage.new} signs, {stage.old} is trusted until nothing that it signed is in force"


def _retire(keys: OrderKeySet, stage: Rotation, now: float, signed: list[SignedObject] | None, spread: float) -> str:
    _wait(
        stage.at + max(spread, ORDER_LIFE), now, f"key {stage.old} signed until {_ago(stage, now)}, and orders last "
        f"for {ORDER_LIFE / 60:.0f} minutes",
    )  # fmt: skip
    if signed is None:
        raise InputError(
            f"what key {stage.old} signed is not known, so it is not retired",
            hint="Give --cluster live, or FILE with what `kubectl get configmaps -A -o yaml` printed",
        )
    if signed:
        last = max(row.until for row in signed)
        until = f"; the last expires at {rfc3339(last / 1000)}" if last else ""
        raise InputError(
            f"{len(signed)} orders and policies in force are signed by key {stage.old} ({_some(signed)}){until}",
            hint="The engine signs them again, 200 nodes a pass; is condition OrdersSigned True?",
        )
    for files in (keys.engine, keys.trust):
        for name, pem in _public(files).items():
            if _id(pem) == stage.old:
                del files[name]
    keys.engine.pop(ROTATION)
    return f"step 3 of 3: key {stage.old} is retired, {stage.new} signs"


def signing_key(keys: OrderKeySet) -> SigningKey:
    """The key that signs. Raises InputError without one that can be read."""
    if SIGNING not in keys.engine:
        raise InputError(f"there is no {SIGNING}", hint="`belay keys create orders` makes one")
    try:
        return SigningKey(keys.engine[SIGNING])
    except ValueError as error:
        raise InputError(str(error), where=SIGNING) from error


def order_rows(keys: OrderKeySet) -> list[KeyRow]:
    """The keys of a set with their roles. Raises InputError for a file that is not a key."""
    signs = signing_key(keys).key_id if SIGNING in keys.engine else ""
    stage = keys.rotation
    engine, trust = ({_id(pem): pem for pem in _public(files).values()} for files in (keys.engine, keys.trust))
    if signs:
        engine[signs] = signing_key(keys).public_pem()
    rows = []
    for key, pem in {**trust, **engine}.items():
        role = "signs" if key == signs else "next" if stage is not None and key == stage.new else "trusted"
        where = " and ".join(name for name, held in (("engine", engine), ("agents", trust)) if key in held)
        rows.append(KeyRow(use="orders", key=key, role=role, where=where, public=pem.decode()))
    return sorted(rows, key=lambda row: (row.role, row.key))


def new_signing_key() -> SigningKey:
    """A fresh Ed25519 key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    return SigningKey(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


# ---- objects in force that a key signed


def objects_signed_by(items: Iterable[Mapping[str, Any]], key: str) -> list[SignedObject]:
    """Return the orders, policies and logs in force that a key signed; with an empty ``key`` the unsigned ones.

    Orders are in force where the node's agent reports: the engine signs those again. A policy is in force while such
    orders name its pool.
    """
    maps = {}
    for item in items:
        metadata = item.get("metadata")
        if item.get("kind") == "ConfigMap" and isinstance(metadata, Mapping):
            maps[str(metadata.get("namespace", "")), str(metadata.get("name", ""))] = item
    found: list[SignedObject] = []
    pools: set[str | None] = set()
    for (space, name), body in sorted(maps.items()):
        if space != names.SYSTEM or not name.startswith(names.ORDERS_PREFIX):
            continue
        if (names.NODES, names.REPORT_PREFIX + name.removeprefix(names.ORDERS_PREFIX)) not in maps:
            continue
        try:
            orders = parse_orders(body)
        except WireError:
            continue  # no agent takes it either
        pools.add(orders.pool)
        if _signed_by(body, key):
            found.append(SignedObject(name, orders.not_after_ms))
    for (space, name), body in sorted(maps.items()):
        pool = name.removeprefix(names.POLICY_PREFIX) if name.startswith(names.POLICY_PREFIX) else None
        log = bool(key) and name.split(".")[0] == names.REVISIONS
        if space == names.SYSTEM and (pool in pools or log) and _signed_by(body, key):
            found.append(SignedObject(name))
    return found


def _signed_by(body: Mapping[str, Any], key: str) -> bool:
    seal = seals.seal_of(body)
    return (seal.key if seal is not None else "") == key


# ---- keys of batches


def new_batch_keys() -> bytes:
    """A file with one key."""
    return f"{secrets.token_hex(LEAST_KEY)}\n".encode()


def rotated_batch(content: bytes, now: float, spread: float = SPREAD) -> tuple[bytes, str]:
    """The file after the next step of a rotation, and which it was. Raises InputError when it is too early for it."""
    found = _COMMENT.search(content)
    stage = _rotation(found[1] if found else None)
    keys = _batch_lines(content)
    if not keys:
        raise InputError("holds no key", where=BATCH_FILE, hint="`belay keys create batch` makes one")
    if stage is None:
        keys.append(secrets.token_hex(LEAST_KEY).encode())
        stage = Rotation("distributed", int(now), batch_name(keys[0]), batch_name(keys[-1]))
        return _batch_file(keys, stage), f"step 1 of 3: key {stage.new} is distributed, {stage.old} signs"
    if stage.new not in map(batch_name, keys):
        raise InputError(
            f"key {stage.new} of the rotation is gone", where=BATCH_FILE, hint="Delete the line # rotation"
        )
    if stage.step == "distributed":
        _wait(
            stage.at + spread, now, f"key {stage.new} was distributed {_ago(stage, now)}, not every process may have it"
        )
        new = stage.new
        keys.sort(key=lambda line: batch_name(line) != new)
        stage = Rotation("signing", int(now), stage.old, stage.new)
        return _batch_file(keys, stage), f"step 2 of 3: key {stage.new} signs, {stage.old} is accepted"
    _wait(stage.at + spread, now, f"key {stage.old} signed until {_ago(stage, now)}, messages of it may be under way")
    kept = [line for line in keys if batch_name(line) != stage.old]
    return _batch_file(kept, None), f"step 3 of 3: key {stage.old} is retired, {stage.new} signs"


def batch_rows(content: bytes) -> list[KeyRow]:
    """The keys of a file by name; a name says nothing about its key."""
    return [
        KeyRow(use="batch", key=batch_name(line), role="accepted" if number else "signs", where="engine")
        for number, line in enumerate(_batch_lines(content))
    ]


def batch_name(line: bytes) -> str:
    """The name under which logs and seals show a key of batches."""
    from belay.engine.store.keyring import key_name

    return key_name(line)


def _batch_lines(content: bytes) -> list[bytes]:
    lines = (line.strip() for line in content.splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.startswith(b"#")))


def _batch_file(keys: list[bytes], stage: Rotation | None) -> bytes:
    comment = [b"# rotation " + msgspec.json.encode(stage)] if stage is not None else []
    return b"\n".join([*comment, *keys, b""])


# ---- what both share


def _rotation(content: bytes | None) -> Rotation | None:
    if content is None:
        return None
    try:
        stage = msgspec.json.decode(content, type=Rotation)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InputError(
            f"cannot be read: {error}", where=ROTATION, hint="Delete it to start the rotation again"
        ) from None
    if stage.step not in ("distributed", "signing"):
        raise InputError(f"step {stage.step[:20]!r} is unknown", where=ROTATION)
    return stage


def _note(keys: OrderKeySet, stage: Rotation) -> None:
    keys.engine[ROTATION] = msgspec.json.encode(stage)


def _wait(until: float, now: float, why: str) -> None:
    if now < until:
        raise InputError(f"{why}; this step may be taken from {rfc3339(until)} on", hint="Run it again then")


def _ago(stage: Rotation, now: float) -> str:
    return f"{max(0.0, now - stage.at) / 60:.0f} minutes ago"


def _public(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: pem for name, pem in files.items() if name.endswith(".pub")}


def _id(pem: bytes) -> str:
    try:
        return TrustedKeys([pem]).names[0]
    except ValueError as error:
        raise InputError(f"a file *.pub {error}") from error


def _public_name(key: SigningKey, now: float) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}-{key.key_id}.pub"


def _some(rows: list[SignedObject]) -> str:
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    return ", ".join(row.name for row in rows[:_SHOWN]) + more
