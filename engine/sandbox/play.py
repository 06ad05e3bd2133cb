"""Play a timeline of faults against the sandbox, through the same interfaces as `belay inject` and users' tools.

Events of chips, nodes and their surroundings go into ``belay-sim-<node>``, which the simulated agents read; public
faults are ConfigMaps as any component writes them; a pod fails in its kubelet.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from belay.agents.node.shipped import shipped_policy
from belay.engine.errors import InputError
from belay.engine.kube import CONFIGMAP, POD, Kube, NotFound
from belay.engine.model.faults import CARD, NETWORK, level_of
from belay.engine.model.labels import SIMULATED_EXIT_NOW
from belay.engine.model.levels import (
    SWITCH_LEVELS,
    SWITCH_WORDS,
    SwitchLevel,
)
from belay.engine.observe.live import with_kube
from belay.engine.sandbox.inject import FAULTS_KEY, device, edit, simulated
from belay.engine.sandbox.settings import NODE_KEY
from belay.engine.sandbox.timeline import BOARD_LEVELS, SUB_HEALTH_CODE, SandboxEvent
from belay.engine.simulate.surroundings import message
from belay.engine.wire import publicinfo

SURROUNDINGS_KEY: Final = "surroundings.json"
_PUBLIC_NAMESPACE: Final = "cluster-system"
_SENDER: Final = "CCAE"

Json = dict[str, Any]
Print = Callable[[str], None]


def play(events: tuple[SandboxEvent, ...], *, say: Print, speed: float = 1.0, kubeconfig: str | None = None) -> int:
    """Play all events at their times, ``speed`` times as fast; returns how many were played.

    Raises:
        InputError: an event names a node or chip that does not exist; no event was played.
        BelayError: the cluster does not answer.
    """

    async def run(kube: Kube) -> int:
        await check(kube, events)
        begin = time.monotonic()
        for event in events:
            await asyncio.sleep(max(0.0, begin + event.at / speed - time.monotonic()))
            done = await apply(kube, event)
            say(f"{event.at:8.1f}s  {description(event)}" + ("" if done else ": left out, there is no such pod now"))
        return len(events)

    return with_kube(kubeconfig, run)


async def check(kube: Kube, events: tuple[SandboxEvent, ...]) -> None:
    """Reject a timeline with unknown nodes or chips before the first event."""
    nodes: dict[str, Json] = {}
    for event in events:
        try:
            if event.node and event.node not in nodes:
                nodes[event.node] = await simulated(kube, event.node)
            if event.what in ("hardware", "switch") and event.value in (*BOARD_LEVELS, *SWITCH_LEVELS):
                _like("node" if event.what == "hardware" else "switch", event.value)
            if "level" in event.more:
                _graded_alike(event)
            if event.chip is not None:
                device(str(event.chip), nodes[event.node])
        except InputError as error:
            raise InputError(f"line {event.line}: {error.message}", where=error.where, hint=error.hint) from error


def description(event: SandboxEvent) -> str:
    """One event in a line."""
    where = event.node + (f"/{event.chip}" if event.chip is not None else "")
    tail = f" {event.assertion}" if event.assertion != "occur" else ""
    return f"{where + ' ' if where else ''}{event.what} {event.value}{tail}".lower().replace(
        str(event.value).lower(), str(event.value)
    )


async def apply(kube: Kube, event: SandboxEvent) -> bool:
    """Apply one event now; False if its pod does not exist, e.g. because its job is moving."""
    if event.what == "pod":
        return await _fail(kube, event)
    if event.what == "public":
        await _public(kube, event)
    elif event.what == "ready":
        await edit(kube, event.node, NODE_KEY, lambda _: {} if event.value else {"paused": True})
    elif event.what in _CHIP:
        name = device(str(event.chip), await simulated(kube, event.node))
        await edit(kube, event.node, FAULTS_KEY, lambda spec: _on_chip(spec, name, event))
        if event.assertion == "once":  # such an event has no end, so it must not stay in the description
            await _settled(lambda: edit(kube, event.node, FAULTS_KEY, lambda spec: _without_once(spec, name, event)))
    elif event.what == "resetFails":
        await edit(kube, event.node, FAULTS_KEY, lambda spec: {**spec, "resetFails": event.value})
    else:
        await edit(kube, event.node, SURROUNDINGS_KEY, lambda spec: surroundings_of(spec, event))
    return True


_CHIP: Final = frozenset({"code", "network", "subHealth", "drop"})


async def _settled(step: Callable[[], Awaitable[None]]) -> None:
    """Wait a moment, so that readers of the description have seen it."""
    await asyncio.sleep(1.0)
    await step()


def _on_chip(spec: Json, name: str, event: SandboxEvent) -> Json:
    before = spec.get(name)
    entry = dict(before) if isinstance(before, dict) else {}
    if event.what == "drop":
        entry["drop"] = event.value
    else:
        code = SUB_HEALTH_CODE if event.what == "subHealth" else str(event.value).upper()
        there = event.value if event.what == "subHealth" else event.assertion != "recover"
        field = "network" if event.what == "network" else "once" if event.assertion == "once" else "codes"
        codes = {*entry.get(field, ())} - {code}
        entry[field] = sorted(codes | {code} if there else codes)
    kept = {key: value for key, value in entry.items() if value}
    after = {key: value for key, value in spec.items() if key != name}
    return after | {name: kept} if kept else after


def _without_once(spec: Json, name: str, event: SandboxEvent) -> Json:
    entry = dict(spec.get(name) or {})
    entry["once"] = [code for code in entry.get("once", ()) if code != str(event.value).upper()]
    kept = {key: value for key, value in entry.items() if value}
    after = {key: value for key, value in spec.items() if key != name}
    return after | {name: kept} if kept else after


def surroundings_of(spec: Json, event: SandboxEvent) -> Json:
    """The description of a node's surroundings after an event (agents/drivers/surroundings.py)."""
    match event.what:
        case "silent":
            change = {"silent": event.value}
        case "ping" | "hang":
            change = {"chips": _with(spec.get("chips"), str(event.chip), {event.what: event.value})}
        case "storage":
            part = event.more.get("part", "process")
            change = {"storage": _with(spec.get("storage"), event.value, {part: not _is_over(event)})}
        case "hardware":
            change = {"hardware": _board_alarms(spec.get("hardware") or (), event)}
        case "switch":
            change = {"switch": _switch_faults(spec.get("switch") or (), event)}
        case _:
            change = {}
    return {**spec, **change}


def _is_over(event: SandboxEvent) -> bool:
    return event.assertion == "recover"


def _with(entries: Json | None, key: str, fields: Json) -> Json:
    """Entries in which one has these fields beside those that it had."""
    entries = entries or {}
    return {**entries, key: {**(entries.get(key) or {}), **fields}}


def _board_alarms(before: Sequence[Json], event: SandboxEvent) -> list[Json]:
    """The alarms of a node's board: a level that is named replaces them all, a code is added or taken out."""
    if event.value in BOARD_LEVELS:
        code = _like("node", event.value)
        return [{"device_type": "CPU", "device_id": 1, "code": code}] if code else []

    alarm = {
        "device_type": event.more.get("device", "CPU"),
        "device_id": event.more.get("deviceId", 1),
        "code": event.value.upper(),
    }
    others = [other for other in before if other != alarm]
    return others if _is_over(event) else [*others, alarm]


def _switch_faults(before: Sequence[Json], event: SandboxEvent) -> list[Json]:
    """The faults of a node's switch: a level that is named replaces them all, a code is added or taken out."""
    now_ms = int(time.time() * 1000)
    if event.value in SWITCH_LEVELS:
        code = _like("switch", event.value)
        return [{"code": code, "chip": 0, "port": 0, "timeMs": now_ms}] if code else []

    fault = {"code": event.value, "chip": event.more.get("switchChip", 0), "port": event.more.get("switchPort", 0)}
    others = [other for other in before if {key: other.get(key) for key in fault} != fault]
    return others if _is_over(event) else [*others, {**fault, "timeMs": now_ms}]


def _like(plane: str, level: str) -> str:
    """The first code with this level in the shipped table of a plane; empty for a healthy level.

    Raises:
        InputError: no code has this level.
    """
    if level in ("Healthy", SwitchLevel.NOT_HANDLE):
        return ""
    names = SWITCH_WORDS if plane == "switch" else {}
    table = shipped_policy().rules.planes[plane]
    code = min((code for code, known in table.items() if names.get(known, known) == level), default=None)
    if code is None:
        raise InputError(f"no {plane} code has level {level}", hint="Name a code instead.")
    return code


def _graded_alike(event: SandboxEvent) -> None:
    """Require that an event's level is the one that the agents give its code; in the sandbox the agents set levels."""
    level = level_of(shipped_policy().rules, NETWORK if event.what == "network" else CARD, event.value, "")[0]
    if event.more["level"] != level:
        text = f"agents grade {event.value} as {level}, not as {event.more['level']}"
        raise InputError(text, hint="Leave level out; a FaultPolicy can grade the code otherwise.")


async def _fail(kube: Kube, event: SandboxEvent) -> bool:
    namespace, _, name = str(event.value).partition("/")
    code = 0 if event.more.get("phase") == "Succeeded" else event.more.get("exit", 1)
    patch = {"metadata": {"annotations": {SIMULATED_EXIT_NOW: str(code)}}}
    try:
        if event.more.get("phase") == "Deleted":
            await kube.delete(POD, name, namespace)
        else:
            await kube.patch(POD, name, patch, namespace)
    except NotFound:
        return False
    return True


def public_message(event: SandboxEvent, now_ms: int) -> Json:
    """The message of a public fault event, as its sender writes it; its id is derived from its content."""
    return message(
        event.node, event.value, event.assertion, now_ms,
        sender=event.more.get("sender", _SENDER), fault_id=event.more.get("faultId", ""),
        chips=event.more.get("chips", (0,)),
    )  # fmt: skip


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


async def _public(kube: Kube, event: SandboxEvent) -> None:
    message = public_message(event, int(time.time() * 1000))
    body = publicinfo.build(_PUBLIC_NAMESPACE, f"inject-{_digest(message['faults'][0]['faultId'])}", message)
    present = await kube.get(CONFIGMAP, body["metadata"]["name"], _PUBLIC_NAMESPACE)
    if present is None:
        await kube.create(CONFIGMAP, body)
    else:
        await kube.patch(CONFIGMAP, body["metadata"]["name"], {"data": body["data"]}, _PUBLIC_NAMESPACE)
