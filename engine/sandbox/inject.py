"""Inject faults into simulated nodes through ConfigMap ``belay-sim-<node>``, which holds the faults of a node.

Its format: agents/drivers/simulated.py (``faults.json``) and nodes.py (``node.json``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, NODE, Conflict, Kube
from belay.engine.model.labels import BASE_DEVICES
from belay.engine.observe.live import with_kube
from belay.engine.sandbox.settings import NODE_KEY
from belay.engine.wire import names

FAULTS_KEY: Final = "faults.json"
_TRIES: Final = 8
_CODE: Final = re.compile(r"^[0-9A-Fa-f]{8,9}$")

Json = dict[str, Any]
Change = Callable[[Json], Json]


def fault(
    chip: str,
    codes: Sequence[str],
    *,
    network: bool = False,
    clear: bool = False,
    reset_fails: int = 0,
    kubeconfig: str | None = None,
) -> str:
    """Put fault codes on a chip (``node-1/Ascend910-3``), or clear its faults. Returns a sentence about what was done.

    Raises:
        InputError: unknown node or chip, invalid code, or the node is not simulated.
    """
    if bad := next((code for code in codes if not _CODE.match(code)), None):
        raise InputError(f"{bad!r} is not a fault code", hint="Codes are eight hexadecimal digits, such as 80C98001.")
    if not codes and not clear and not reset_fails:
        raise InputError("nothing to inject", hint="Give at least one CODE, --clear or --reset-fails N.")
    node, _, name = chip.partition("/")
    wanted = [code.upper() for code in codes]
    return with_kube(kubeconfig, lambda kube: _fault(kube, node, name, wanted, network, clear, reset_fails))


def node_ready(node: str, ready: bool, *, kubeconfig: str | None = None) -> str:
    """Silence a simulated node's kubelet, or bring it back. Returns a sentence about what was done."""
    text = json.dumps({} if ready else {"paused": True})
    words = "heartbeats again" if ready else "is silent"
    return with_kube(kubeconfig, lambda kube: _node(kube, node, text, words))


async def _fault(
    kube: Kube, node: str, chip: str, codes: list[str], network: bool, clear: bool, reset_fails: int
) -> str:
    name = device(chip, await simulated(kube, node))

    def change(spec: Json) -> Json:
        before = spec.get(name)
        entry = dict(before) if isinstance(before, dict) and not clear else {}
        if codes:
            plane = "network" if network else "codes"
            entry[plane] = sorted({*entry.get(plane, ()), *codes})
        after = {key: value for key, value in spec.items() if key != name}
        if entry:
            after[name] = entry
        if reset_fails:
            after["resetFails"] = reset_fails
        return after

    await edit(kube, node, FAULTS_KEY, change)
    done = [f"{node}/{name}"]
    done += ["faults cleared"] if clear else []
    done += [f"has {', '.join(codes)}" + (" on its network plane" if network else "")] if codes else []
    done += [f"next {reset_fails} resets of {node} fail"] if reset_fails else []
    return ": ".join((done[0], "; ".join(done[1:])))


async def _node(kube: Kube, node: str, text: str, words: str) -> str:
    await simulated(kube, node)
    await edit(kube, node, NODE_KEY, lambda _: json.loads(text))
    return f"{node} {words}"


async def simulated(kube: Kube, node: str) -> Json:
    """The Node object of a simulated node. Raises InputError for a real node and for a missing one."""
    found = await kube.get(NODE, node)
    if found is None:
        raise InputError(f"there is no node {node!r}", hint="`belay get nodes` lists them.")
    runtime = str(((found.get("status") or {}).get("nodeInfo") or {}).get("containerRuntimeVersion", ""))
    if not runtime.startswith("belay-sandbox"):
        raise InputError(f"{node} is a real node", hint="Faults can be injected into the sandbox's nodes only.")
    return found


def device(chip: str, node: Json) -> str:
    """The device's full name; a number alone is enough."""
    text = str((node["metadata"].get("annotations") or {}).get(BASE_DEVICES, "{}"))
    devices = sorted(json.loads(text), key=lambda name: int(name.rpartition("-")[2]))
    found = [name for name in devices if chip in (name, name.rpartition("-")[2])]
    if not found:
        between = f"{devices[0]} to {devices[-1]}" if devices else "none"
        where = str(node["metadata"]["name"])
        raise InputError(f"there is no chip {chip!r}", where=where, hint=f"Write NODE/CHIP; its chips are {between}.")
    return str(found[0])


async def edit(kube: Kube, node: str, key: str, change: Change) -> None:
    """Read, change and write by compare-and-swap; agents remove healed faults from the same object."""
    name = names.SIM_PREFIX + node
    for _ in range(_TRIES):
        present = await kube.get(CONFIGMAP, name, names.NODES)
        meta = {"name": name, "namespace": names.NODES}
        body = present or {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        fresh = {**body, "data": {**(body.get("data") or {}), key: json.dumps(change(_read(body, key)))}}
        try:
            if present is None:
                await kube.create(CONFIGMAP, fresh)
            else:
                await kube.replace(CONFIGMAP, fresh)
            return
        except Conflict:
            continue
    raise InputError(f"{name} changes all the time", hint="Try again.")


def _read(body: Json, key: str) -> Json:
    """The content of a node's ConfigMap. Raises InputError if it is not valid JSON (after a manual edit)."""
    try:
        found = json.loads((body.get("data") or {}).get(key) or "{}")
    except (ValueError, RecursionError) as error:
        found = str(error)
    if not isinstance(found, dict):
        where = f"ConfigMap {names.NODES}/{body['metadata']['name']}, key {key}"
        raise InputError("is not a JSON object", where=where, hint="Delete the key, then try again.")
    return found
