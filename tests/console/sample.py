"""A made-up cluster in the shape of `/api/v1`: every state, hold, stage and finding that the console can show.

Deterministic: the same call gives the same answers, so that pictures differ only where the page does. Its texts are in
sample.yaml.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from belay.engine.serve.console.document import HOLDS, STATES

MOMENT = datetime(2026, 11, 23, 3, 12, tzinfo=UTC)
"""The moment that the sample shows."""
CODES = ("80C98001", "80E01801", "80CB8009", "81078603", "8C1F8608", "80E18402")
RESOURCE = "huawei.com/Ascend910"
Row = dict[str, Any]

_SHORT = {"seen": 0.0, "graded": 0.3, "isolated": 0.5, "evicted": 6.0, "bound": 2.0, "running": 19.0}
_OPEN = {"seen": 0.0, "graded": 0.4, "isolated": 0.8, "signalled": 1.1, "evicted": 6.0}
_WHOLE = {**_OPEN, "bound": 4.0, "running": 22.0, "repaired": 8.0, "resumed": 14.0}
_STEPS = {"short": _SHORT, "open": _OPEN, "whole": _WHOLE}
"""Seconds from stage to stage."""


def at(seconds: float) -> str:
    """RFC 3339 of a time relative to the sample's moment."""
    return (MOMENT + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def revision(name: str) -> str:
    """A commit's id."""
    return hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


def _read(value: Any) -> Any:
    """A value of sample.yaml with its times and commits filled in."""
    if isinstance(value, dict):
        return {key: _read(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_read(one) for one in value]
    if isinstance(value, str) and re.fullmatch(r"@-?[\d.]+", value):
        return at(float(value[1:]))
    return revision(value[1:]) if isinstance(value, str) and re.fullmatch(r"#[a-z]+", value) else value


_TEXTS: Row = _read(yaml.safe_load((Path(__file__).parent / "sample.yaml").read_text()))


def document(nodes: int = 96, chips: int = 8, moment: str = "6f0c2f1a33d81b07", seconds: float = 0.0) -> Row:
    """The document of `/api/v1/state`; its moment lies ``seconds`` after the sample's."""
    dice = random.Random(7)
    jobs = _jobs(dice)
    columns = _nodes(nodes)
    chip_columns = _chips(dice, columns, _owners(dice, columns, jobs, nodes), nodes, chips)
    return {
        "version": 1,
        "moment": {"id": moment, "time": at(seconds), "shard": "main", "revision": revision("faults")},
        "states": list(STATES),
        "holds": list(HOLDS),
        "nodeStates": ["healthy", "sub-healthy", "pre-isolated", "isolated", "not-ready", "manually-isolated"],
        "nodes": columns,
        "chips": chip_columns,
        "jobs": jobs,
        "recoveries": recoveries(),
        "faults": _faults(dice, columns, chip_columns),
        **{name: copy.deepcopy(_TEXTS[name]) for name in ("queues", "fleet", "offenders", "links", "boards", "git")},
        "problems": [],
        "leftOut": {},
    }


def _jobs(dice: random.Random) -> list[Row]:
    jobs = []
    for queue, names in _TEXTS["running"].items():
        for name in names:
            pods = dice.choice((2, 4, 4, 8))
            jobs.append(_job(queue, queue, name, "Running", pods, pods, at(-dice.randint(100, 90_000))))
    for number, waits in enumerate(_TEXTS["waiting"]):
        since = at(-dice.randint(60, 9_000))
        nodes = {"too few free chips": 61 - number, "isolated": 2, "other product": 24}
        jobs.append(_job("research", "", "", "Pending", 8, 0, since) | waits | {"nodes": nodes})
    return jobs


def _job(namespace: str, queue: str, name: str, phase: str, pods: int, placed: int, since: str) -> Row:
    about = {"kind": "AscendJob", "namespace": namespace, "name": name, "queue": queue, "phase": phase, "since": since}
    has = {
        "pods": {"wanted": pods, "placed": placed, "running": placed},
        "chips": 8 * pods,
        "resources": {RESOURCE: 8 * pods},
    }
    return about | has | {"reason": "", "message": "", "wayOut": "", "nodes": {}}


def _nodes(count: int) -> Row:
    training = count * 3 // 4
    state = ["healthy"] * count
    for node, word in ((17, "isolated"), (58, "isolated"), (33, "not-ready"), (80, "manually-isolated")):
        if node < count:
            state[node] = word
    words = {
        "isolated": "NodeFault 28000037",
        "not-ready": "the kubelet is silent for 94 s",
        "manually-isolated": "cabling",
    }
    return {
        "name": [f"node-{node:03d}" for node in range(count)],
        "pool": ["training" if node < training else "inference" for node in range(count)],
        "product": ["atlas-900-a3-superpod" if node < training else "atlas-800i-a2" for node in range(count)],
        "superPod": [node // 24 if node < training else -1 for node in range(count)],
        "rack": [f"r{node // 8:02d}" for node in range(count)],
        "switch": [f"10.0.{node // 16 % 256}.1" for node in range(count)],
        "prefix": ["Ascend910-"] * count,
        "state": state,
        "level": ["SeparateNPU" if word == "isolated" else "" for word in state],
        "message": [words.get(word, "") for word in state],
        "cordoned": [int(word == "manually-isolated") for word in state],
    }


def _owners(dice: random.Random, columns: Row, jobs: list[Row], count: int) -> list[int]:
    owners = [-1] * count
    node = 0
    for number, job in enumerate(jobs):
        for _ in range(job["pods"]["placed"]):
            while node < count and (columns["state"][node] != "healthy" or dice.random() < 0.2):
                node += 1
            if node < count:
                owners[node] = number
                node += 1
    return owners


def _chips(dice: random.Random, columns: Row, owners: list[int], nodes: int, chips: int) -> Row:
    count = nodes * chips
    state, hold = [0] * count, [0] * count
    for chip in range(count):
        if columns["state"][chip // chips] == "isolated":
            state[chip], hold[chip] = 3, 9
        elif dice.random() < 0.012:
            state[chip], hold[chip] = dice.choice((1, 2, 3, 4, 5, 7)), dice.choice((0, 1, 3, 6))
    cut = ["vir04", "vir02", "vir02"]
    return {
        "node": [chip // chips for chip in range(count)],
        "chip": [chip % chips for chip in range(count)],
        "ring": [chip % chips // 4 for chip in range(count)],
        "state": state,
        "job": [owners[chip // chips] for chip in range(count)],
        "hold": hold,
        "cuts": [cut if 88 <= chip // chips < 96 and chip % chips < 3 else 0 for chip in range(count)],
    }


def _faults(dice: random.Random, columns: Row, chips: Row) -> list[Row]:
    levels = ("", "SubHealthFault", "RestartRequest", "SeparateNPU", "FreeRestartNPU")
    rows = []
    for chip, state in enumerate(chips["state"]):
        if state in (1, 2, 3, 4) and chips["hold"][chip] != 9:
            policy = "policies/faults/overrides.yaml:12" if state == 3 else ""
            where = {"node": columns["name"][chips["node"][chip]], "chip": chips["chip"][chip]}
            seen = {"since": at(-dice.randint(30, 80_000)), "count": dice.randint(1, 9), "policy": policy}
            action = {"action": "isolated" if state == 3 else "watched"}
            rows.append({"code": CODES[chip % len(CODES)], "level": levels[state], **where, **seen, **action})
    for node in ("node-017", "node-058"):
        seen = {"since": at(-41_000), "count": 3, "policy": "", "action": "isolated"}
        rows.append({"code": "28000037", "level": "SeparateNPU", "node": node, "chip": None, **seen})
    return rows


def recoveries() -> list[Row]:
    """Recoveries, newest first; the first goes on."""
    rows = [
        _recovery("research/AscendJob/llm-70b", -40, "open", "80C98001"),
        _recovery("research/AscendJob/llm-70b", -3_600, "whole", "80C98001"),
        _recovery("product/AscendJob/embed", -9_000, "short", "80E01801", left=0, slow=3.1),
        _recovery("research/AscendJob/moe-8x22b", -22_000, "whole", "8C1F8608", cause="SwitchFault"),
        _recovery("research/AscendJob/vit-h", -41_000, "whole", "28000037", cause="NodeFault", left=1, slow=1.6),
    ]
    dice = random.Random(3)
    for number in range(28):
        job = dice.choice(("research/AscendJob/asr", "product/AscendJob/rank", "default/AscendJob/eval"))
        slow, code = 0.6 + dice.expovariate(1.6), dice.choice(CODES)
        rows.append(_recovery(job, -60_000 - number * 3_000, "short", code, left=3, slow=slow))
    return rows


def _recovery(
    job: str, begin: float, way: str, code: str, *, left: int = 2, cause: str = "FaultyChip", slow: float = 1.0
) -> Row:
    moment, stages = begin, []
    for stage, seconds in _STEPS[way].items():
        moment += seconds * slow
        stages.append({"stage": stage, "time": at(moment)})
    took = moment - begin
    resumed = {"time": stages[-1]["time"], "after": took, "event": "resume", "state": "training", "code": 0}
    about = {"job": job, "attempt": max(1, 3 - left), "cause": cause, "code": code, "codes": [code], "level": "job"}
    cost = {"seconds": None if way == "open" else took, "lostChipSeconds": round(took * 32), "chips": 32}
    budget = {"spent": 3 - left, "left": left, "window": 3_600}
    return {**about, "stages": stages, "steps": [resumed] if way == "whole" else [], **cost, "budget": budget}


def history() -> list[Row]:
    """The moments of `/api/v1/history`: a day, five minutes apart, oldest first."""
    dice = random.Random(5)
    rows = []
    for number in range(288):
        about = {"id": f"{number + 1:016x}", "time": at(-86_100 + number * 300), "revision": revision("faults")}
        seen = {"faults": 6 + dice.randint(0, 3) + 3 * (number // 40 % 2), "evictions": int(dice.random() > 0.93)}
        jobs = {"bound": dice.randint(0, 3), "waiting": 2 + number // 96 + dice.randint(0, 1)}
        rows.append({**about, "shard": "main", **seen, **jobs, "source": "recording"})
    return rows


def records(query: Mapping[str, str]) -> Row:
    """`/api/v1/records`: the lines of the sample's night, narrowed to a time and a subject as the server does."""
    rows = [
        {"job": "", "node": "", "chip": None, "pool": "training", "queue": "", "user": "", "cause": "", "revision": "",
         "author": "", **row}
        for row in _TEXTS["records"]
    ]  # fmt: skip
    begin, end = query.get("since", ""), query.get("until") or "9"
    subject, name = query.get("subject", ""), query.get("name", "")
    if subject == "chip":
        rows = [row for row in rows if f"{row['node']}/{row['chip']}" == name]
    elif subject:
        rows = [row for row in rows if row[subject] == name]
    rows = [row for row in rows if begin <= row["time"] <= end]
    return {"records": rows, "leftOut": 0, "begins": at(-86_400 * 30), "problem": ""}


def report() -> Row:
    """`/api/v1/report`."""
    return {"since": at(-86_400 * 7), "until": at(0), **_TEXTS["report"]}


def heat(by: str) -> Row:
    """`/api/v1/heat`."""
    dice = random.Random(by)
    names = {
        "code": [*CODES, "28000037"],
        "chip": [f"node-{number:03d}/Ascend910-{number % 8}" for number in range(0, 96, 4)],
        "node": [f"node-{number:03d}" for number in range(0, 96, 5)],
        "link": ["hccs", "kv"],
    }[by]
    rows: list[Row] = [{"name": name, "cells": [max(0, round(dice.gauss(-2, 3))) for _ in range(24)]} for name in names]
    totals = sorted(({**row, "total": sum(row["cells"])} for row in rows), key=lambda row: -row["total"])
    buckets = [at(-86_400 + 3_600 * number) for number in range(24)]
    ends = {"from": at(-86_400), "to": at(0), "bucketSeconds": 3_600, "buckets": buckets}
    return {"by": by, **ends, "rows": totals, "offenders": [], "leftOut": 0}


def branches() -> Row:
    """`/api/v1/branches`."""
    return {"branches": _TEXTS["branches"], "problem": ""}


def plan(branch: str) -> Row:
    """`/api/v1/plan/{branch}`."""
    return {"branch": branch, **_TEXTS["plan"], **_TEXTS["outcome"]}


def forecast(before: Row, node: int = 2) -> Row:
    """`/api/v1/what-if` for a fault on the first chip of a node of ``before``, whose job moves to free chips."""
    per_node = before["chips"]["node"].count(0)
    first = node * per_node
    job, name = before["chips"]["job"][first], before["nodes"]["name"][node]
    old = list(range(first, first + per_node))
    owners, states = before["chips"]["job"], before["chips"]["state"]
    free = [chip for chip, owner in enumerate(owners) if owner < 0 and states[chip] == 0][:per_node]
    moved = {"chips": {"job": {"i": [*old, *free], "v": [-1] * len(old) + [job] * len(free)}}}
    broken = {"chips": {"state": {"i": [first], "v": [3]}, "hold": {"i": [first], "v": [1]}}}
    pod = "research/llm-70b-1"
    return {
        "before": before,
        "frames": [
            _frame(0.0, [f"fault 80C98001 on {name}/Ascend910-0"], [], broken),
            _frame(1.0, [], [("IsolateChip", f"{name}/Ascend910-0"), ("EvictPod", pod)], {}),
            _frame(12.0, [], [("BindPod", pod)], moved),
            _frame(40.0, ["research/llm-70b runs"], [], {}),
        ],
        "ended": "quiet",
        "end": at(40),
        "outcome": _TEXTS["outcome"],
        "recoveries": [_recovery("research/AscendJob/llm-70b", 0, "short", "80C98001", left=1)],
        "explanations": [f"research/llm-70b loses {name}/Ascend910-0 and runs again after 28 s."],
        "commands": [
            {"for": "fault", "text": f"belay inject fault {name}/Ascend910-0 80C98001", "note": "in a sandbox only"}
        ],
        "leftOut": 0,
    }


def _frame(after: float, events: list[str], actions: list[tuple[str, str]], patch: Row) -> Row:
    done = [{"action": action, "on": on, "reason": "FaultyChip", "message": ""} for action, on in actions]
    return {"time": at(after), "after": after, "events": events, "actions": done, "patch": patch}


def every_text() -> str:
    """Everything that the document and the answers say, as one text."""
    answers = [document(), records({}), report(), branches(), plan("more-research"), forecast(document())]
    return json.dumps([*answers, *(heat(by) for by in ("code", "chip", "node", "link"))], ensure_ascii=False)
