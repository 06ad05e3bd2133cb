"""The status ConfigMaps of a cluster of any size, as the engine writes them, made without planning it.

A plan of 100,000 nodes takes minutes; what the console costs shows on the status alone. One node in a hundred has a
faulty chip, one in five hundred is out of service, one job in twenty waits; the others run on 1 to 64 whole nodes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.times import rfc3339
from belay.engine.wire import clustermap, history, names

POOLS = 5
PART = 2_000
"""Nodes of one part of the map: about 300 KiB."""
NOW = 1_790_000_000.0
Data = dict[str, str]


def status(nodes: int, chips: int = 8, jobs: int = 0, seed: int = 1) -> dict[str, Data]:
    """Name → data of every status ConfigMap."""
    chance = random.Random(seed)
    found = {
        names.SYNC: {
            "attemptedRevision": "a" * 40, "appliedRevision": "a" * 40, "diagnostics.json": "[]", "deferred.json": "[]",
            "conditions.json": _text([{"type": "Ready", "status": "True", "reason": "Applied", "message": ""}]),
        }
    }  # fmt: skip
    parts = -(-nodes // PART)
    out: list[str] = []
    for part in range(parts):
        own = range(part * PART, min(nodes, (part + 1) * PART))
        found[f"{names.MAP_PREFIX}main-{part}"] = _map(own, chips, parts)
        found[f"{names.CHIPS_PREFIX}main-{part}"] = _chips(own, chips, parts, chance)
        out += [node_name(at) for at in own if at % 500 == 17]
    for pool in range(POOLS):
        rows = [
            {"node": node, "state": "not-ready", "level": "", "codes": ["kubelet stopped posting status"]}
            for node in out
            if pool_of(int(node.removeprefix("node-"))) == f"pool-{pool}"
        ]
        counts = {"healthy": nodes // POOLS - len(rows), "not-ready": len(rows)}
        found[f"{names.POOL_PREFIX}pool-{pool}"] = {"nodes": _text(counts), "nodes.json": _text(rows)}
    found |= dict(_jobs(nodes, chips, jobs, chance))
    return found


def node_name(number: int) -> str:
    """The name of a node."""
    return f"node-{number:06d}"


def pool_of(number: int) -> str:
    """The pool of a node."""
    return f"pool-{number % POOLS}"


def with_fault(data: Data, node: str, chip: int) -> Data:
    """A part of the chips in which one chip more is isolated."""
    states = json.loads(data[clustermap.STATES_KEY])
    digits = list(states.get(node, "0" * (chip + 1)).ljust(chip + 1, "0"))
    digits[chip] = str(clustermap.STATES.index("isolated"))
    faults = [fault(node, chip, NOW), *json.loads(data[clustermap.FAULTS_KEY])]
    return {
        **data,
        clustermap.STATES_KEY: _text(states | {node: "".join(digits)}),
        clustermap.FAULTS_KEY: _text(faults),
    }


def with_cordon(data: Data, place: int) -> Data:
    """A part of the map in which one node more is cordoned."""
    columns = json.loads(data[clustermap.NODES_KEY])
    columns["cordoned"][place] = 1
    return {**data, clustermap.NODES_KEY: _text(columns)}


def _map(own: range, chips: int, parts: int) -> Data:
    mask = f"{(1 << chips) - 1:x}"
    columns = {
        "name": [node_name(at) for at in own],
        "pool": [pool_of(at) for at in own],
        "product": ["atlas-900-a3-superpod"] * len(own),
        "superPod": [at // 48 for at in own],
        "rack": [f"r{at // 8}" for at in own],
        "switch": [""] * len(own),
        "prefix": ["Ascend910-"] * len(own),
        "chips": [mask] * len(own),
        "ring": [0] * len(own),
        "cordoned": [0] * len(own),
        "closed": [0] * len(own),
    }
    return {clustermap.NODES_KEY: _text(columns), clustermap.PARTS_KEY: str(parts)}


def _chips(own: range, chips: int, parts: int, chance: random.Random) -> Data:
    isolated, held = str(clustermap.STATES.index("isolated")), str(clustermap.HOLDS.index("fault"))
    states, holds, faults = {}, {}, []
    for at in own:
        if chance.random() >= 0.01:
            continue
        chip = chance.randrange(chips)
        states[node_name(at)] = "0" * chip + isolated
        holds[node_name(at)] = "0" * chip + held
        faults.append(fault(node_name(at), chip, NOW - chance.randrange(100_000)))
    return {
        clustermap.STATES_KEY: _text(states), clustermap.HOLDS_KEY: _text(holds), clustermap.FAULTS_KEY: _text(faults),
        clustermap.PARTS_KEY: str(parts),
    }  # fmt: skip


def fault(node: str, chip: int, since: float) -> dict[str, Any]:
    """A row of the faults of a part."""
    return {
        "code": "80C98001", "level": "SeparateNPU", "node": node, "chip": chip, "since": rfc3339(since), "count": 1,
        "policy": "", "action": "isolated",
    }  # fmt: skip


def _jobs(nodes: int, chips: int, jobs: int, chance: random.Random) -> Iterator[tuple[str, Data]]:
    free = 0
    for number in range(jobs):
        width = chance.choice((1, 1, 2, 4, 8, 16, 32, 64))
        waits = number % 20 == 0 or free + width > nodes
        said: dict[str, Any] = {
            "wanted": width, "queue": "default", "since": rfc3339(NOW - chance.randrange(1_000_000)),
            "requests": {"huawei.com/Ascend910": width * chips},
        }  # fmt: skip
        if waits:
            said["pending"] = {"reason": "NotEnoughNodes", "message": f"wants {width} whole nodes", "unblock": "wait"}
        else:
            held = [f"Ascend910-{chip}" for chip in range(chips)]
            said["placement"] = {
                f"job-{number:05d}-{rank}": {"node": node_name(free + rank), "phase": "Running", "chips": held}
                for rank in range(width)
            }
            free += width
        yield (
            f"{names.JOB_PREFIX}{number:05d}",
            {
                history.JOB_NAME_KEY: f"train/AscendJob/job-{number:05d}",
                history.JOB_PHASE_KEY: "Pending" if waits else "Running",
                history.JOB_STATUS_KEY: _text(said),
            },
        )


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def config_maps(found: dict[str, Data]) -> Iterator[dict[str, Any]]:
    """The status as ConfigMaps, with the label by which the console selects them."""
    about = {
        names.MAP_PREFIX: "map", names.CHIPS_PREFIX: "chips", names.POOL_PREFIX: "pool", names.JOB_PREFIX: "job",
        names.SYNC: "sync",
    }  # fmt: skip
    for name, data in found.items():
        label = next(word for prefix, word in about.items() if name.startswith(prefix))
        metadata = {"name": name, "namespace": names.SYSTEM, "labels": {ABOUT_LABEL: label}}
        yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
