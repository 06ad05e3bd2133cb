"""Public faults: faults that any component may report about any node's chips.

One entry point for ConfigMaps (label ``mc-consumer-publicfault=true``) and for gRPC ``SendPublicFault``: :func:`read`
checks the form, :func:`admit` the sender and the codes, :func:`fold` merges messages into a node's memory in the order
of their time stamps, so that it does not matter when or how often each is read.

Sources: component/clusterd/pkg/application/publicfault, pkg/domain/publicfault; docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from belay.engine.model.history import PublicFaultMemory

#: Limits of the format.
MAX_FAULTS: Final = 100
MAX_INFLUENCES: Final = 1000
MAX_DEVICES: Final = 32
MAX_LOCATIONS: Final = 10
MAX_DESCRIPTION: Final = 512
#: Stored faults of the whole cluster, and of one node (its memory is one ConfigMap).
MAX_STORED: Final = 50_000
MAX_PER_NODE: Final = 1_000
#: A fault that happened once, or recovered before it was shown, stays visible this long.
SHOWN_MS: Final = 5_000
#: A recovery older than this, first read together with the fault itself, leaves nothing to show.
LATE_MS: Final = 60_000
#: 2025-01-01T00:00:00Z; every time stamp has 13 digits.
_EARLIEST: Final = 1_735_689_600_000
_LATEST: Final = 9_999_999_999_999
BURST: Final = 100
"""Messages that one sender may send in a burst; one more is allowed each second."""

OK: Final = 0
BAD_PARAMETER: Final = 409
RATE_LIMITED: Final = 410

TYPES: Final = ("NPU", "Node", "Network", "Storage")
ASSERTIONS: Final = ("occur", "recover", "once")

_ID: Final = re.compile(r"[a-zA-Z0-9\-_.]{8,128}\Z")
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")


class PublicFaultProblem(NamedTuple):
    """One problem of a message: the path inside it, and how to correct it."""

    field: str
    message: str


class Influence(msgspec.Struct, frozen=True):
    """One node by name or serial number (a name wins), and the physical ids of its chips."""

    node: str
    serial: str
    chips: tuple[int, ...]


class PublicFault(msgspec.Struct, frozen=True):
    """One fault of a message; ``index`` is its place there, ``time_ms`` always when it occurred."""

    index: int
    id: str
    kind: str
    code: str
    time_ms: int
    assertion: str
    influences: tuple[Influence, ...]


class PublicFaultMessage(msgspec.Struct, frozen=True):
    """A message of valid form, without its invalid faults."""

    id: str
    timestamp: int
    resource: str
    faults: tuple[PublicFault, ...]


class PublicFaultClaim(NamedTuple):
    """One fault of one message on one node; claims are folded in the order of these fields."""

    stamp: int
    message: str
    place: int
    key: str
    code: str
    assertion: str
    time_ms: int
    chips: tuple[int, ...]
    kind: str = ""

    @property
    def newness(self) -> tuple[int, str, int]:
        """Time and id of the message, and the place in it: the greatest counts."""
        return self.stamp, self.message, self.place


def read(body: Mapping[str, Any]) -> tuple[PublicFaultMessage | None, tuple[PublicFaultProblem, ...]]:
    """Check the form of a message; invalid faults are left out and reported. None when the whole message is invalid."""
    problems = list(_head(body))
    rows = body.get("faults")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_FAULTS:
        problems.append(PublicFaultProblem("faults", f"must be a list of 1 to {MAX_FAULTS} faults"))
    if problems:
        return None, tuple(problems)
    faults: list[PublicFault] = []
    for index, row in enumerate(rows or ()):
        found = list(_fault_problems(row)) if isinstance(row, dict) else [PublicFaultProblem("", "must be an object")]
        problems += [PublicFaultProblem(f"faults[{index}]{'.' if p.field else ''}{p.field}", p.message) for p in found]
        if not found:
            faults.append(_fault(index, row))
    if not faults:
        return None, tuple(problems)
    return PublicFaultMessage(body["id"], body["timestamp"], body["resource"], tuple(faults)), tuple(problems)


def admit(
    message: PublicFaultMessage, senders: Collection[str], codes: Collection[str]
) -> tuple[PublicFaultMessage | None, tuple[PublicFaultProblem, ...]]:
    """Refuse unknown senders, and codes that no table lists; None when no fault is left."""
    if message.resource not in senders:
        known = ", ".join(sorted(senders))
        return None, (PublicFaultProblem("resource", f"{message.resource!r} is no allowed sender ({known})"),)
    good = tuple(fault for fault in message.faults if fault.code.upper() in codes)
    problems = tuple(
        PublicFaultProblem(f"faults[{fault.index}].faultCode", f"{fault.code} is in no list of public fault codes")
        for fault in message.faults
        if fault.code.upper() not in codes
    )
    if not good:
        return None, problems
    return msgspec.structs.replace(message, faults=good), problems


def respond(
    body: Mapping[str, Any], senders: Collection[str], codes: Collection[str]
) -> tuple[int, str, PublicFaultMessage | None]:
    """The answer of ``SendPublicFault``: code (0 ok, 409 bad parameter), information, and the message to store."""
    message, problems = read(body)
    if message is not None:
        message, more = admit(message, senders, codes)
        problems += more
    info = "; ".join(f"{p.field}: {p.message}" for p in problems[:5]) + ("…" if len(problems) > 5 else "")
    return (OK if message is not None else BAD_PARAMETER), info[:512], message


def spend(tokens: float, since_ms: int, now_ms: int) -> tuple[float, bool]:
    """Take from one sender's token bucket: the tokens left, and whether the message is admitted (else 410)."""
    full = min(float(BURST), tokens + max(0, now_ms - since_ms) / 1000)
    return (full - 1, True) if full >= 1 else (full, False)


def claims(message: PublicFaultMessage, node_of: Mapping[str, str]) -> Iterable[tuple[str, PublicFaultClaim]]:
    """The message's faults per node; ``node_of`` maps serial numbers to node names. Unknown serials yield ``""``."""
    for fault in message.faults:
        by_node: dict[str, set[int]] = {}
        for influence in fault.influences:
            name = influence.node or node_of.get(influence.serial, "")
            by_node.setdefault(name, set()).update(influence.chips)
        for name, chips in sorted(by_node.items()):
            yield (
                name,
                PublicFaultClaim(
                    message.timestamp,
                    message.id,
                    fault.index,
                    f"{message.resource}/{fault.id}",
                    fault.code.upper(),
                    fault.assertion,
                    fault.time_ms,
                    tuple(sorted(chips)),
                    fault.kind,
                ),
            )


def fold(
    before: Mapping[str, PublicFaultMemory], said: Iterable[PublicFaultClaim], now_ms: int
) -> dict[str, PublicFaultMemory]:
    """A node's public faults after these claims, regardless of their order and repetition.

    A fault stays until a ``recover`` of the same sender and id, even when its message is gone. A fault that ended is
    remembered while a message still claims it, so that an old message cannot revive it.
    """
    after = dict(before)
    claimed: set[str] = set()
    for claim in sorted(said):
        claimed.add(claim.key)
        known = after.get(claim.key)
        if known is None or claim.newness > known.newness:
            after[claim.key] = _after(known, claim, now_ms)
    for key, seen in list(after.items()):
        if not seen.over and seen.until and now_ms >= seen.until:
            seen = after[key] = msgspec.structs.replace(seen, over=True)
        if seen.over and key not in claimed:
            del after[key]
    return after


def consumed(message: PublicFaultMessage, remembered: Mapping[str, Mapping[str, PublicFaultMemory]]) -> bool:
    """Whether a message may be deleted, because the memory (by node) holds all of its claims.

    Claims on unknown nodes are not remembered, so such a message must stay.
    """
    for node, claim in claims(message, {}):
        if node not in remembered:
            return False
        known = remembered[node].get(claim.key)
        if known is None:
            if claim.assertion != "recover":
                return False
        elif known.newness < claim.newness:
            return False
    return True


def _after(known: PublicFaultMemory | None, claim: PublicFaultClaim, now_ms: int) -> PublicFaultMemory:
    if claim.assertion == "recover":
        if known is None or known.over:
            seen = PublicFaultMemory(code=claim.code, chips=claim.chips, time=claim.time_ms, over=True)
        else:
            # a fault stays visible for a while even when its end arrives with its beginning; but when its end is old
            # when both are first read (the engine was down, a cluster file), it no longer moves work
            late = known.shown == now_ms and now_ms - claim.stamp > LATE_MS
            seen = msgspec.structs.replace(known, until=known.shown + SHOWN_MS, over=late)
    else:
        seen = PublicFaultMemory(
            code=claim.code,
            chips=claim.chips,
            time=claim.time_ms,
            shown=known.shown if known is not None and not known.over and known.shown else now_ms,
            until=now_ms + SHOWN_MS if claim.assertion == "once" else 0,
            kind=claim.kind,
        )
    return msgspec.structs.replace(seen, stamp=claim.stamp, message=claim.message, index=claim.place)


def _head(body: Mapping[str, Any]) -> Iterable[PublicFaultProblem]:
    if not _text(body.get("id"), _ID):
        yield PublicFaultProblem("id", "must be 8 to 128 letters, digits, '-', '_' or '.'")
    if not _moment(body.get("timestamp")):
        yield PublicFaultProblem("timestamp", "must be Unix milliseconds of 2025 or later (13 digits)")
    if body.get("version") != "1.0":
        yield PublicFaultProblem("version", 'must be "1.0"')
    if not isinstance(body.get("resource"), str) or not body["resource"] or len(body["resource"]) > 128:
        yield PublicFaultProblem("resource", "must name the sender")


def _fault_problems(row: Mapping[str, Any]) -> Iterable[PublicFaultProblem]:
    if not _text(row.get("faultId"), _ID):
        yield PublicFaultProblem("faultId", "must be 8 to 128 letters, digits, '-', '_' or '.'")
    if row.get("faultType") not in TYPES:
        yield PublicFaultProblem("faultType", f"must be one of {', '.join(TYPES)}")
    code = row.get("faultCode")
    if not isinstance(code, str) or len(code) != 9:
        yield PublicFaultProblem("faultCode", "must be nine characters")
    if not _moment(row.get("faultTime")):
        yield PublicFaultProblem("faultTime", "must be Unix milliseconds of 2025 or later (13 digits)")
    if row.get("assertion") not in ASSERTIONS:
        yield PublicFaultProblem("assertion", f"must be one of {', '.join(ASSERTIONS)}")
    if not _location(row.get("faultLocation")):
        yield PublicFaultProblem(
            "faultLocation", f"must map at most {MAX_LOCATIONS} keys (16 characters) to text (128 characters)"
        )
    description = row.get("description", "")
    if description is not None and not _line(description):
        yield PublicFaultProblem(
            "description", f"must be text of at most {MAX_DESCRIPTION} characters without tabs and line breaks"
        )
    influence = row.get("influence")
    if not isinstance(influence, list) or not 1 <= len(influence) <= MAX_INFLUENCES:
        yield PublicFaultProblem("influence", f"must be a list of 1 to {MAX_INFLUENCES} nodes")
        return
    for index, item in enumerate(influence):
        wrong = _influence_problem(item)
        if wrong is not None:
            yield PublicFaultProblem(f"influence[{index}]{wrong.field}", wrong.message)
            return  # the first is enough: there may be a thousand


def _influence_problem(item: object) -> PublicFaultProblem | None:
    if not isinstance(item, dict):
        return PublicFaultProblem("", "must be an object")
    name, serial, chips = item.get("nodeName") or "", item.get("nodeSN") or "", item.get("deviceIds")
    if not isinstance(name, str) or not isinstance(serial, str) or not (name or serial):
        return PublicFaultProblem("", "must have nodeName or nodeSN")
    if name and (len(name) > 253 or not _NODE.match(name)):
        return PublicFaultProblem(".nodeName", "must be a node's name: lower case letters, digits, '-' and '.'")
    if len(serial) > 253:
        return PublicFaultProblem(".nodeSN", "is too long")
    if not isinstance(chips, list) or not 1 <= len(chips) <= MAX_DEVICES:
        return PublicFaultProblem(".deviceIds", f"must be a list of 1 to {MAX_DEVICES} numbers")
    whole = all(type(chip) is int and 0 <= chip < MAX_DEVICES for chip in chips)
    if not whole or len(set(chips)) != len(chips):
        return PublicFaultProblem(".deviceIds", f"must be different numbers from 0 to {MAX_DEVICES - 1}")
    return None


def _fault(index: int, row: Mapping[str, Any]) -> PublicFault:
    return PublicFault(
        index=index,
        id=row["faultId"],
        kind=row["faultType"],
        code=row["faultCode"],
        time_ms=row["faultTime"],
        assertion=row["assertion"],
        influences=tuple(
            Influence(item.get("nodeName") or "", item.get("nodeSN") or "", tuple(sorted(item["deviceIds"])))
            for item in row["influence"]
        ),
    )


def _text(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.match(value) is not None


def _moment(value: object) -> bool:
    return type(value) is int and _EARLIEST <= value <= _LATEST


def _line(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_DESCRIPTION and not any(char in value for char in "\t\n\f\r")


def _location(value: object) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and len(value) <= MAX_LOCATIONS
        and all(len(str(k)) <= 16 and isinstance(v, str) and len(v) <= 128 for k, v in value.items())
    )
