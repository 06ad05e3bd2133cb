"""The fault tables that an agent uses before its first policy: those of chips, nodes and switches as shipped.

The file is data of the policies room (kind FaultTable); only what an agent needs is read from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from belay import SHIPPED
from belay.engine.model.faults import CodeRules, Duration, Frequency, Unlisted, code_key
from belay.engine.wire.commitproof import rules_of
from belay.engine.wire.policy import NodePolicy

_FOLDER: Final = SHIPPED / "policies"
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_MAX_FILE: Final = 4 << 20


def shipped_policy(pool: str = "default", folder: Path | None = None) -> NodePolicy:
    """Return a policy of the chip fault tables below `folder` (default: the shipped one).

    Without any table every code counts as unlisted, which isolates. Raises ValueError naming the file that cannot be
    read.
    """
    rules = CodeRules()
    root = folder or (_FOLDER if _FOLDER.is_dir() else None)
    for spec in _tables(root) if root is not None else ():
        if spec["plane"] != "chip":
            levels = {
                code: level for level in spec.get("severity") or () for code in (spec["levels"] or {}).get(level, ())
            }
            rules = msgspec.structs.replace(rules, planes=rules.planes | {spec["plane"]: levels})
            continue
        rules = msgspec.structs.replace(
            rules,
            table=rules.table | _levels(spec),
            frequency=rules.frequency | _frequency(spec),
            duration=rules.duration | _duration(spec),
            unlisted=_unlisted(spec.get("unlisted") or {}),
        )
    return NodePolicy(pool, rules)


def shipped_rules(folder: Path | None = None) -> frozenset[str]:
    """The rules of resets and partitions of the documents below `folder` (default: the shipped ones), as warrants name
    them. Raises ValueError naming the file that cannot be read."""
    root = folder or (_FOLDER if _FOLDER.is_dir() else None)
    documents = _documents(root, "kind: Product") if root is not None else ()
    return frozenset(rule for document in documents for rule in rules_of(document))


def _tables(root: Path) -> Iterator[Mapping[str, Any]]:
    for document in _documents(root, "FaultTable"):
        if isinstance(document, dict) and document.get("kind") == "FaultTable":
            spec = document.get("spec")
            if isinstance(spec, dict) and spec.get("plane") in ("chip", "node", "switch"):
                yield spec


def _documents(root: Path, word: str) -> Iterator[Any]:
    """The documents of the files that hold a word."""
    for path in sorted(root.rglob("*.y*ml")):
        if path.stat().st_size > _MAX_FILE:
            continue
        text = path.read_text(encoding="utf-8")
        if word not in text:
            continue
        try:
            # every scalar as text: a code such as 110000002 is not a number
            yield from list(yaml.load_all(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {error}") from error


def _levels(spec: Mapping[str, Any]) -> dict[str, str]:
    levels = spec.get("levels") or {}
    # from low to high, so that a code under two levels has the higher
    order = [level for level in spec.get("severity") or levels if level in levels]
    return {code_key(code): level for level in order for code in levels[level] or ()}


def _unlisted(said: Mapping[str, Any]) -> Unlisted:
    known = Unlisted()
    return Unlisted(
        dict(said.get("bySeverity") or known.by_severity), said.get("otherwise") or known.otherwise,
        said.get("network") or known.network,
    )  # fmt: skip


def _frequency(spec: Mapping[str, Any]) -> dict[str, Frequency]:
    return {
        code_key(code): Frequency(
            times=int(rule["times"]),
            window_ms=_milliseconds(rule["window"]),
            level=rule["level"],
            release_ms=_milliseconds(rule["releaseAfter"]) if rule.get("releaseAfter") not in (None, "", "null") else 0,
            rule="shipped",
        )
        for rule in reversed(spec.get("frequency") or [])
        for code in rule["codes"]
    }


def _duration(spec: Mapping[str, Any]) -> dict[str, Duration]:
    return {
        code_key(code): Duration(
            _milliseconds(rule["timeout"]), _milliseconds(rule["recover"]), rule["level"], "shipped"
        )
        for rule in reversed(spec.get("duration") or [])
        for code in rule["codes"]
    }


def _milliseconds(text: str) -> int:
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 90s or 24h")
    return int(sum(float(number) * _UNITS[unit] for number, unit in parts))
