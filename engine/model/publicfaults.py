"""Public faults: what any component may say of any node's chips, read, checked and folded into what is remembered.

One entry point for ConfigMaps (label ``mc-consumer-publicfault=true``) and for gRPC ``SendPublicFault``: :func:`read`
checks the form, :func:`admit` the sender and the codes, :func:`fold` takes messages into a node's memory in the order
of their time stamps, so that it does not matter when or how often each is seen.

Sources: component/clusterd/pkg/application/publicfault, pkg/domain/publicfault; docs/zh/scheduling/06_api/04_clusterd.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from engine.model.history import PublicSeen

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
"""Messages that one sender may send at once; one more is allowed each second."""

OK: Final = 0
BAD_PARAMETER: Final = 409
RATE_LIMITED: Final = 410

TYPES: Final = ("NPU", "Node", "Network", "Storage")
ASSERTIONS: Final = ("occur", "recover", "once")

_ID: Final = re.compile(r"[a-zA-Z0-9\-_.]{8,128}\Z")
_NODE: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")


class Problem(NamedTuple):
    """One thing wrong with a message: the path inside it and what to do."""

    field: str
    message: str


class Influence(msgspec.Struct, frozen=True):
    """One node by name or serial number (a name wins), and the physical ids of its chips."""

    node: str
    serial: str
    chips: tuple[int, ...]


class Fault(msgspec.Struct, frozen=True):
    """One fault of a message; ``index`` is its place there, ``time_ms`` always when it occurred."""

    index: int
    id: str
    kind: str
    code: str
    time_ms: int
    assertion: str
    influences: tuple[Influence, ...]


class Message(msgspec.Struct, frozen=True):
    """A message whose form is sound; faults that were not are left out of it."""

    id: str
    timestamp: int
    resource: str
    faults: tuple[Fault, ...]


class Claim(NamedTuple):
    """One fault as a message says it of one node; claims are folded in this order."""

    stamp: int
    message: str
    place: int
    key: str
    code: str
    assertion: str
    time_ms: int
    chips: tuple[int, ...]


def read(body: Mapping[str, Any]) -> tuple[Message | None, tuple[Problem, ...]]:
    """Check a message's form. A broken single fault is left out and named; None when the message as a whole is."""
    problems = list(_head(body))
    rows = body.get("faults")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_FAULTS:
        problems.append(Problem("faults", f"must be a list of 1 to {MAX_FAULTS} faults"))
    if problems:
        return None, tuple(problems)
    faults: list[Fault] = []
    for index, row in enumerate(rows or ()):
        found = list(_fault_problems(row)) if isinstance(row, dict) else [Problem("", "must be an object")]
        problems += [Problem(f"faults[{index}]{'.' if p.field else ''}{p.field}", p.message) for p in found]
        if not found:
            faults.append(_fault(index, row))
    if not faults:
        return None, tuple(problems)
    return Message(body["id"], body["timestamp"], body["resource"], tuple(faults)), tuple(problems)


def admit(
    message: Message, senders: Collection[str], codes: Collection[str]
) -> tuple[Message | None, tuple[Problem, ...]]:
    """Refuse senders that are not allowed and codes that no table names; None when nothing is left."""
    if message.resource not in senders:
        known = ", ".join(sorted(senders))
        return None, (Problem("resource", f"{message.resource!r} is no allowed sender ({known})"),)
    good = tuple(fault for fault in message.faults if fault.code.upper() in codes)
    problems = tuple(
        Problem(f"faults[{fault.index}].faultCode", f"{fault.code} is in no list of public fault codes")
        for fault in message.faults
        if fault.code.upper() not in codes
    )
    if not good:
        return None, problems
    return msgspec.structs.replace(message, faults=good), problems


def respond(
    body: Mapping[str, Any], senders: Collection[str], codes: Collection[str]
) -> tuple[int, str, Message | None]:
    """What ``SendPublicFault`` answers: code (0 ok, 409 bad parameter), information, and the message to store."""
    message, problems = read(body)
    if message is not None:
        message, more = admit(message, senders, codes)
        problems += more
    info = "; ".join(f"{p.field}: {p.message}" for p in problems[:5]) + ("…" if len(problems) > 5 else "")
    return (OK if message is not None else BAD_PARAMETER), info[:512], message


def spend(tokens: float, since_ms: int, now_ms: int) -> tuple[float, bool]:
    """The token bucket of one sender: what is left after a message, and whether it may pass (410 when not)."""
    full = min(float(BURST), tokens + max(0, now_ms - since_ms) / 1000)
    return (full - 1, True) if full >= 1 else (full, False)


def claims(message: Message, node_of: Mapping[str, str]) -> Iterable[tuple[str, Claim]]:
    """The message's faults per node; ``node_of`` maps serial numbers to node names. Unknown serials yield ``""``."""
    for fault in message.faults:
        by_node: dict[str, set[int]] = {}
        for influence in fault.influences:
            name = influence.node or node_of.get(influence.serial, "")
            by_node.setdefault(name, set()).update(influence.chips)
        for name, chips in sorted(by_node.items()):
            yield (
                name,
                Claim(
                    message.timestamp,
                    message.id,
                    fault.index,
                    f"{message.resource}/{fault.id}",
                    fault.code.upper(),
                    fault.assertion,
                    fault.time_ms,
                    tuple(sorted(chips)),
                ),
            )


def fold(before: Mapping[str, PublicSeen], said: Iterable[Claim], now_ms: int) -> dict[str, PublicSeen]:
    """A node's public faults after these claims, whatever their order and however often each was seen.

    Faults stay until a ``recover`` of the same sender and id, whether or not their message is still there. A fault
    that is over is remembered as long as some message still claims it, so that an old message cannot bring it back.
    """
    after = dict(before)
    claimed: set[str] = set()
    for claim in sorted(said):
        claimed.add(claim.key)
        known = after.get(claim.key)
        if known is None or (claim.stamp, claim.message, claim.place) > (known.stamp, known.message, known.index):
            after[claim.key] = _after(known, claim, now_ms)
    for key, seen in list(after.items()):
        if not seen.over and seen.until and now_ms >= seen.until:
            seen = after[key] = msgspec.structs.replace(seen, over=True)
        if seen.over and key not in claimed:
            del after[key]
    return after


def consumed(message: Message, remembered: Mapping[str, Mapping[str, PublicSeen]]) -> bool:
    """Whether a message may be deleted because the memory holds all that it says; ``remembered`` is by node.

    What it says of nodes that nobody knows is not remembered, so such a message has to stay.
    """
    for node, claim in claims(message, {}):
        if node not in remembered:
            return False
        known = remembered[node].get(claim.key)
        if known is None:
            if claim.assertion != "recover":
                return False
        elif (known.stamp, known.message, known.index) < (claim.stamp, claim.message, claim.place):
            return False
    return True


def _after(known: PublicSeen | None, claim: Claim, now_ms: int) -> PublicSeen:
    if claim.assertion == "recover":
        if known is None or known.over:
            seen = PublicSeen(code=claim.code, chips=claim.chips, time=claim.time_ms, over=True)
        else:
            # a fault is visible for a while even when its end comes with its beginning; but one whose end is old
            # news when both are first read (an engine that was away, a cluster file) moves no work any more
            late = known.shown == now_ms and now_ms - claim.stamp > LATE_MS
            seen = msgspec.structs.replace(known, until=known.shown + SHOWN_MS, over=late)
    else:
        seen = PublicSeen(
            code=claim.code,
            chips=claim.chips,
            time=claim.time_ms,
            shown=known.shown if known is not None and not known.over and known.shown else now_ms,
            until=now_ms + SHOWN_MS if claim.assertion == "once" else 0,
        )
    return msgspec.structs.replace(seen, stamp=claim.stamp, message=claim.message, index=claim.place)


def _head(body: Mapping[str, Any]) -> Iterable[Problem]:
    if not _text(body.get("id"), _ID):
        yield Problem("id", "must be 8 to 128 letters, digits, '-', '_' or '.'")
    if not _moment(body.get("timestamp")):
        yield Problem("timestamp", "must be Unix milliseconds of 2025 or later (13 digits)")
    if body.get("version") != "1.0":
        yield Problem("version", 'must be "1.0"')
    if not isinstance(body.get("resource"), str) or not body["resource"] or len(body["resource"]) > 128:
        yield Problem("resource", "must name the sender")


def _fault_problems(row: Mapping[str, Any]) -> Iterable[Problem]:
    if not _text(row.get("faultId"), _ID):
        yield Problem("faultId", "must be 8 to 128 letters, digits, '-', '_' or '.'")
    if row.get("faultType") not in TYPES:
        yield Problem("faultType", f"must be one of {', '.join(TYPES)}")
    code = row.get("faultCode")
    if not isinstance(code, str) or len(code) != 9:
        yield Problem("faultCode", "must be nine characters")
    if not _moment(row.get("faultTime")):
        yield Problem("faultTime", "must be Unix milliseconds of 2025 or later (13 digits)")
    if row.get("assertion") not in ASSERTIONS:
        yield Problem("assertion", f"must be one of {', '.join(ASSERTIONS)}")
    if not _location(row.get("faultLocation")):
        yield Problem(
            "faultLocation", f"must map at most {MAX_LOCATIONS} keys (16 characters) to text (128 characters)"
        )
    description = row.get("description", "")
    if description is not None and not _line(description):
        yield Problem(
            "description", f"must be text of at most {MAX_DESCRIPTION} characters without tabs and line breaks"
        )
    influence = row.get("influence")
    if not isinstance(influence, list) or not 1 <= len(influence) <= MAX_INFLUENCES:
        yield Problem("influence", f"must be a list of 1 to {MAX_INFLUENCES} nodes")
        return
    for index, item in enumerate(influence):
        wrong = _influence_problem(item)
        if wrong is not None:
            yield Problem(f"influence[{index}]{wrong.field}", wrong.message)
            return  # one is enough: there may be a thousand


def _influence_problem(item: object) -> Problem | None:
    if not isinstance(item, dict):
        return Problem("", "must be an object")
    name, serial, chips = item.get("nodeName") or "", item.get("nodeSN") or "", item.get("deviceIds")
    if not isinstance(name, str) or not isinstance(serial, str) or not (name or serial):
        return Problem("", "must have nodeName or nodeSN")
    if name and (len(name) > 253 or not _NODE.match(name)):
        return Problem(".nodeName", "must be a node's name: lower case letters, digits, '-' and '.'")
    if len(serial) > 253:
        return Problem(".nodeSN", "is too long")
    if not isinstance(chips, list) or not 1 <= len(chips) <= MAX_DEVICES:
        return Problem(".deviceIds", f"must be a list of 1 to {MAX_DEVICES} numbers")
    whole = all(type(chip) is int and 0 <= chip < MAX_DEVICES for chip in chips)
    if not whole or len(set(chips)) != len(chips):
        return Problem(".deviceIds", f"must be different numbers from 0 to {MAX_DEVICES - 1}")
    return None


def _fault(index: int, row: Mapping[str, Any]) -> Fault:
    return Fault(
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
