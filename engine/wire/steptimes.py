"""``belay-steps-<node>``: the times of training steps that a node's agent measured, a complete state.

Times are whole microseconds of one step (`belay.engine.model.step_times`). The ranks of parallel groups are written
once per job, as runs ``first-last`` or ``first-last:stride``: groups of thousands of ranks are regular.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.step_times import GroupTime, NodeSteps, StepWindow
from belay.engine.wire.errors import WireError
from belay.engine.wire.gojson import read_object
from belay.engine.wire.names import NODES, STEPS_PREFIX, bounded

KEY: Final = "steps.json"
ABOUT: Final = "steps"
#: Limits of one node's ConfigMap.
MAX_BODY: Final = 800 * 1024
MAX_JOBS: Final = 16
MAX_WINDOWS: Final = 1024
MAX_GROUPS: Final = 1024
MAX_RANK: Final = 1 << 20
MAX_MEMBERS: Final = 65_536
_RUN: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class _Group(msgspec.Struct):
    kind: str
    ranks: str


class _Window(msgspec.Struct, rename="camel"):
    rank: int
    number: int
    steps: int
    step: int
    work: int
    data: int
    groups: dict[str, int] = {}


class _Job(msgspec.Struct):
    groups: dict[str, _Group] = {}
    windows: list[_Window] = []


class _Steps(msgspec.Struct):
    node: str
    time: int
    jobs: dict[str, _Job] = {}


def name_of(node: str) -> str:
    """Name of a node's ConfigMap."""
    return bounded(STEPS_PREFIX + node)


def steps_map(node: str, time_ms: int, jobs: Sequence[NodeSteps]) -> dict[str, Any]:
    """The ConfigMap; if it is too large, jobs are left out, the last by name first."""
    body = _Steps(node, time_ms, {one.job: _job(one) for one in sorted(jobs, key=lambda one: one.job)[:MAX_JOBS]})
    text = _text(body)
    while len(text) > MAX_BODY and body.jobs:
        body.jobs.popitem()
        text = _text(body)
    metadata = {"name": name_of(node), "namespace": NODES, "labels": {ABOUT_LABEL: ABOUT}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}


def parse_steps(config_map: Mapping[str, Any]) -> tuple[str, int, tuple[NodeSteps, ...]]:
    """Node, time of writing (Unix ms) and jobs.

    Raises:
        WireError: not valid, or ``node`` differs from the ConfigMap's name.
    """
    metadata, data = config_map.get("metadata") or {}, config_map.get("data") or {}
    where = f"ConfigMap/{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    raw = read_object(where, f"data.{KEY}", data.get(KEY))
    try:
        body = msgspec.convert(raw, _Steps)
    except msgspec.ValidationError as error:
        raise WireError(where, f"data.{KEY}", str(error)[:200]) from error
    if metadata.get("name") != name_of(body.node):
        raise WireError(where, f"data.{KEY}.node", f"{body.node[:80]!r} is not the node of this ConfigMap")
    if len(body.jobs) > MAX_JOBS:
        raise WireError(where, f"data.{KEY}.jobs", f"{len(body.jobs)} jobs, the limit is {MAX_JOBS}")
    return body.node, body.time, tuple(_read(where, body.node, name, job) for name, job in sorted(body.jobs.items()))


def runs(ranks: Sequence[int]) -> str:
    """Ranks as text, in their order: ``0-7``, ``0-24:8``, ``3,9``."""
    parts, begin = [], 0
    while begin < len(ranks):
        end = begin + 1
        stride = ranks[end] - ranks[begin] if end < len(ranks) else 0
        while end < len(ranks) and stride > 0 and ranks[end] - ranks[end - 1] == stride:
            end += 1
        if end - begin < 3:
            parts.append(str(ranks[begin]))
            begin += 1
        else:
            parts.append(f"{ranks[begin]}-{ranks[end - 1]}" + (f":{stride}" if stride > 1 else ""))
            begin = end
    return ",".join(parts)


def ranks_of(text: str) -> tuple[int, ...]:
    """The ranks of such a text. Raises ValueError."""
    found: list[int] = []
    for part in text.split(",") if text else ():
        match = _RUN.fullmatch(part)
        if match is None:
            raise ValueError(f"{part[:40]!r} is not a rank, first-last or first-last:stride")
        first, last, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or last > MAX_RANK or stride < 1 or len(found) + (last - first) // stride >= MAX_MEMBERS:
            raise ValueError(f"{part[:40]!r} runs backwards, or holds too many ranks (limit {MAX_MEMBERS})")
        found.extend(range(first, last + 1, stride))
    return tuple(found)


def _job(one: NodeSteps) -> _Job:
    names: dict[tuple[str, tuple[int, ...]], str] = {}
    windows = []
    for window in sorted(one.windows, key=lambda row: (row.number, row.rank))[-MAX_WINDOWS:]:
        times = {}
        for group in window.groups:
            key = (group.kind, group.ranks)
            if key not in names and len(names) >= MAX_GROUPS:
                continue
            times[names.setdefault(key, str(len(names)))] = group.time
        windows.append(_Window(window.rank, window.number, window.steps, window.step, window.work, window.data, times))
    return _Job({name: _Group(kind, runs(ranks)) for (kind, ranks), name in names.items()}, windows)


def _read(where: str, node: str, name: str, job: _Job) -> NodeSteps:
    field = f"data.{KEY}.jobs"
    if not _NAME.fullmatch(name):
        raise WireError(where, field, f"{name[:80]!r} is not an id of a job")
    if len(job.windows) > MAX_WINDOWS or len(job.groups) > MAX_GROUPS:
        raise WireError(where, f"{field}.{name}", f"more than {MAX_WINDOWS} windows or {MAX_GROUPS} groups")
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}
    for key, group in job.groups.items():
        try:
            # jobs name their groups as they like; the name becomes part of ids and texts of faults, which may not
            groups[key] = (_ODD.sub("-", group.kind[:32]), ranks_of(group.ranks))
        except ValueError as error:
            raise WireError(where, f"{field}.{name}.groups.{key[:20]}", str(error)) from error
    windows = []
    for row in job.windows:
        numbers = (row.rank, row.number, row.steps, row.step, row.work, row.data, *row.groups.values())
        if min(numbers) < 0 or max(numbers) > 1 << 53 or row.rank > MAX_RANK:
            raise WireError(where, f"{field}.{name}.windows", f"window {row.number} of rank {row.rank} is out of range")
        times = tuple(GroupTime(*groups[key], time) for key, time in row.groups.items() if key in groups)
        windows.append(StepWindow(row.rank, row.number, row.steps, row.step, row.work, row.data, times))
    return NodeSteps(node, name, tuple(windows))


def _text(body: _Steps) -> str:
    return msgspec.json.encode(body).decode()


__all__ = ["ABOUT", "KEY", "name_of", "parse_steps", "ranks_of", "runs", "steps_map"]
