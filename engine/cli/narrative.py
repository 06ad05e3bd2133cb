"""`belay explain` as text: a sentence about the object, then what is known of it, then what comes next.

The document of ``-o yaml`` is the source; fields without a value are left out. Where the locale is Chinese, the Chinese
of a field that has both is shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

from belay.engine.cli import output as show
from belay.engine.cli.phrases import ranges
from belay.engine.model.levels import FaultLevel

Body = Mapping[str, Any]
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
_OTHER: Final = "Zh"
_STEP: Final = "  "
#: The actions of the next pass, then what follows without one, under one title.
_LAST: Final = ("next", "coming")
_TITLES: Final[Mapping[str, str]] = {
    "coming": "what comes next",
    "next": "what comes next",
    "decided": "decided now, recorded by the next pass",
    "ordered": "ordered",
    "done": "done, as the agent reports",
    "exitCodes": "exit codes",
    "lastLines": "last lines",
    "vnpus": "vNPUs",
    "nextSteps": "what comes next",
    "noPass": "no pass comes",
    "unblock": "way out",
    "near": "nodes of the way out",
    "pending": "why it waits",
    "refused": "refused by the API server",
    "hit": "pods that faults hit",
    "impact": "impact of faults",
    "holds": "held out of service by",
    "story": "recoveries, step by step",
    "report": "last report",
    "lost": "chip time lost",
    "slow": "slow",
    "notEvicted": "not moved",
    "endMessage": "why it ended",
    "why": "why it was changed",
    "declaredBy": "last changed at",
    "declared": "declared at",
    "failedPods": "pods that failed",
}
_ENDS: Final[Mapping[str, str]] = {"Failed": " has failed", "Succeeded": " has succeeded"}
_ABSENT: Final[tuple[Any, ...]] = (None, "", [], {}, ())
_NORMAL: Final = ("", FaultLevel.NORMAL.value, "NormalNode")


def narrate(kind: str, body: Body, out: TextIO, now: float | None) -> None:
    """Print the answer of `belay explain` about an object; times are distances from ``now`` (Unix seconds).

    ``now`` None leaves them as they are.
    """
    body = _in_one_language(body)
    sentence, used = _sentence(kind, body)
    show.text(sentence, out, now=now, hang=2)
    left = {key: value for key, value in body.items() if key not in used and value not in _ABSENT}
    plain = {key: value for key, value in left.items() if _is_plain(value)}
    for key, value in plain.items():
        _line(key, value, out, now, "")
    for key in (*(k for k in left if k not in _LAST), *(k for k in _LAST if k in left)):
        if key in plain:
            continue
        if not (key == "coming" and "next" in left):
            show.text(f"\n{_title(key)}", out)
        _value(left[key], out, now, _STEP)
    if "next" in body and not body["next"] and not body.get("coming"):
        show.text("\nwhat comes next: nothing, the next pass leaves it as it is", out)


def _sentence(kind: str, body: Body) -> tuple[str, tuple[str, ...]]:
    """The first line, and the fields that it covers."""
    if kind in _SENTENCES:
        return _SENTENCES[kind](body)
    if "summary" in body:
        # of a queue the field names a kind, not a place: where that stands is said beside it
        return f"{kind} {body[kind]}: {body['summary']}", (
            kind,
            "summary",
            *(["declaredBy"] if kind == "queue" else []),
        )
    return f"{kind} {body.get(kind) or ''}".strip(), (kind,)


def _chip(body: Body) -> tuple[str, tuple[str, ...]]:
    words = [f"chip {body['node']}/{body['chip']} is {body['state']}", *_level(body)]
    if body.get("usedBy"):
        words.append(f"used by {body['usedBy']}")
    return ", ".join(words), ("node", "chip", "state", "level", "codes", "usedBy", "faultType")


def _node(body: Body) -> tuple[str, tuple[str, ...]]:
    words = [f"node {body['node']} of pool {body['pool']} is {body['state']}", *_level(body)]
    if body.get("cordoned"):
        words.append("cordoned")
    return ", ".join(words), ("node", "pool", "state", "level", "codes", "cordoned")


def _pod(body: Body) -> tuple[str, tuple[str, ...]]:
    where = f" on {body['node']}" if body.get("node") else ""
    chips = f" with {ranges(', '.join(body['chips']))}" if body.get("chips") else ""
    return f"pod {body['pod']} is {body['phase']}{where}{chips}", ("pod", "phase", "node", "chips")


def _job(body: Body) -> tuple[str, tuple[str, ...]]:
    pods = body.get("pods") or []
    running = sum(pod.get("phase") == "Running" for pod in pods)
    state = f"{running} of {len(pods)} pods run" if pods else "it has no pods"
    how = " waits" if body.get("pending") else ""

    if body.get("ended"):
        how = _ENDS[body["ended"]]
        state = f"{running or 'none'} of its pods still {'runs' if running < 2 else 'run'}"
    if body.get("suspended"):
        how = " is suspended"
    return f"{body['kind']} {body['job']}{how}: {state}", ("job", "kind", "ended", "suspended")


def _orders(body: Body) -> tuple[str, tuple[str, ...]]:
    return f"orders to chip {body['chip']}", ("chip",)


def _code(body: Body) -> tuple[str, tuple[str, ...]]:
    return f"fault {body['code']}: {body['summary']}", ("code", "summary", "what", "whatZh")


_SENTENCES: Final[Mapping[str, Callable[[Body], tuple[str, tuple[str, ...]]]]] = {
    "chip": _chip,
    "node": _node,
    "pod": _pod,
    "job": _job,
    "order": _orders,
    "code": _code,
}


def _level(body: Body) -> list[str]:
    codes = f" by {', '.join(body['codes'])}" if body.get("codes") else ""
    level = body.get("level", "")
    return [f"level {level}{codes}"] if level not in _NORMAL or codes else []


def _value(value: Any, out: TextIO, now: float | None, indent: str) -> None:
    """A field that is more than one line."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if inner in _ABSENT:
                continue
            if _is_plain(inner):
                _line(key, inner, out, now, indent)
            else:
                show.text(f"{indent}{_title(key)}:", out)
                _value(inner, out, now, indent + _STEP)
    elif all(isinstance(item, Mapping) for item in value):
        _rows(value, out, now, indent)
    else:
        for item in value:
            show.text(f"{indent}{_plain_text(item)}", out, now=now, hang=4)


def _rows(rows: Sequence[Body], out: TextIO, now: float | None, indent: str) -> None:
    """Objects of a list: sentences about actions, a table where they are flat, else one after the other."""
    if all("action" in row for row in rows):
        for row in rows:
            show.text(f"{indent}{_action(row)}", out, now=now, hang=4)
        return
    columns = [key for key in _columns(rows) if any(row.get(key) not in _ABSENT for row in rows)]
    if all(_is_plain(row.get(key)) for row in rows for key in columns):
        show.table(columns, [[_short(row.get(key)) for key in columns] for row in rows], out, now=now, indent=indent)
        return
    for row in rows:
        first = next((f"{key} {row[key]}" for key in row if _is_plain(row[key]) and row[key] not in _ABSENT), "")
        show.text(f"{indent}{first}", out, now=now, hang=4)
        covered = first.partition(" ")[0]
        _value({key: item for key, item in row.items() if key != covered}, out, now, indent + _STEP)


def _action(row: Body) -> str:
    """``IsolateChip: why (ChipFault, by rule)``, or what holds it back."""
    message = ranges(str(row.get("message", "")))
    if row.get("deferredBy"):
        until = f" until {row['until']}" if row.get("until") else " until a person decides"
        confirm = f"; to confirm it, push a commit with the trailer {row['confirm']}" if row.get("confirm") else ""
        return f"{row['action']} is held back by {row['deferredBy']}{until}: {message}{confirm}"
    why = ", ".join(filter(None, (str(row.get("reason") or ""), str(row.get("because") or ""))))
    return f"{row['action']}: {message}{f' ({why})' if why else ''}"


def _line(key: str, value: Any, out: TextIO, now: float | None, indent: str) -> None:
    show.text(f"{indent}{_title(key)}: {_plain_text(value)}", out, now=now, hang=2)


def _plain_text(value: Any) -> str:
    return show.cell(_short(value))


def _short(value: Any) -> Any:
    """Chips in runs; anything else as it is."""
    if isinstance(value, list | tuple):
        return ranges(", ".join(str(item) for item in value))
    return ranges(value) if isinstance(value, str) else value


def _is_plain(value: Any) -> bool:
    """Whether a value is one line: a scalar, or a list of names or numbers."""
    if isinstance(value, Mapping):
        return False
    if isinstance(value, list | tuple):
        return all(not isinstance(item, Mapping | list | tuple) and " " not in str(item) for item in value)
    return True


def _columns(rows: Iterable[Body]) -> list[str]:
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys(row)
    return list(found)


def _title(key: str) -> str:
    # names of resources and reasons are kept: fields begin with a small letter
    field = key[:1].islower() and key.isalpha()
    return _TITLES.get(key) or (_CAMEL.sub(" ", key).lower() if field else key)


def _in_one_language(value: Any) -> Any:
    """The document with one text for each field: the locale's where it has two."""
    if isinstance(value, Mapping):
        chinese = _chinese()
        return {
            key: _in_one_language(value[key + _OTHER] if chinese and value.get(key + _OTHER) else inner)
            for key, inner in value.items()
            if not (key.endswith(_OTHER) and key.removesuffix(_OTHER) in value)
        }
    if isinstance(value, list | tuple):
        return [_in_one_language(item) for item in value]
    return value


def _chinese() -> bool:
    """Whether messages are wanted in Chinese, as POSIX decides it."""
    names = ("LC_ALL", "LC_MESSAGES", "LANG")
    return next((os.environ[name] for name in names if os.environ.get(name)), "").lower().startswith("zh")
