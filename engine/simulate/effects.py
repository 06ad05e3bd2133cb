"""What the events of a timeline do to a simulated world."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from belay.engine.documents import Desired
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.faults import CARD, NETWORK, PUBLIC, code_key
from belay.engine.model.levels import SEPARATE, SWITCH_LEVELS, SwitchLevel
from belay.engine.simulate import surroundings
from belay.engine.simulate.server import SimulatedServer
from belay.engine.simulate.timeline import BOARD_LEVELS, Event, state_of
from belay.engine.simulate.world import World


def apply_event(world: World, event: Event) -> None:
    """Apply an event to the world; an existing state stays."""
    if event.pod is not None:
        _pod(world, event)
    else:
        _EFFECTS[event.what](world, world.nodes[event.node or ""], event)


def _code(world: World, server: SimulatedServer, event: Event) -> None:
    code = event.code or ""
    kind, level = _type_and_level(world.desired, code.upper())
    _on_chip(world, server, kind, event.chip or 0, code, event.level or level, gone=_is_over(event))


def _network(world: World, server: SimulatedServer, event: Event) -> None:
    code = event.network or ""
    _, level = _type_and_level(world.desired, code.upper())
    _on_chip(world, server, NETWORK, event.chip or 0, code, event.level or level, gone=_is_over(event))


def _sub_health(world: World, server: SimulatedServer, event: Event) -> None:
    _, level = _type_and_level(world.desired, surroundings.SUB_HEALTH_CODE)
    chip = event.chip or 0
    _on_chip(world, server, CARD, chip, surroundings.SUB_HEALTH_CODE, level, gone=not event.sub_health)


def _drop(world: World, server: SimulatedServer, event: Event) -> None:
    _, level = _type_and_level(world.desired, surroundings.DROP_CODE)
    _on_chip(world, server, CARD, event.chip or 0, surroundings.DROP_CODE, level, gone=not event.drop)


def _hang(world: World, server: SimulatedServer, event: Event) -> None:
    # one that begins is reported later, as an event of its own
    if not event.hang:
        _on_chip(world, server, CARD, event.chip or 0, surroundings.HANG_CODE, "", gone=True)


def _ping(world: World, server: SimulatedServer, event: Event) -> None:
    if event.ping == "unknown":
        return
    assertion = "occur" if event.ping == "lost" else "recover"
    code, sender = surroundings.PING_CODE, surroundings.PING_SENDER
    surroundings.public(world, server, code, assertion, sender=sender, chips=[event.chip or 0])


def _storage(world: World, server: SimulatedServer, event: Event) -> None:
    # a memory error is reported later, as an event of its own
    if event.part == "memory" and not _is_over(event):
        return
    code = surroundings.STORAGE_CODES[event.storage or "", event.part]
    sender = f"{event.storage}Storage"
    surroundings.public(world, server, code, event.assertion, sender=sender, chips=server.ids[:32])


def _public(world: World, server: SimulatedServer, event: Event) -> None:
    surroundings.public(
        world,
        server,
        event.public or "",
        event.assertion,
        sender=event.sender,
        fault_id=event.fault_id,
        chips=sorted(set(event.chips)),
    )


def _hardware(world: World, server: SimulatedServer, event: Event) -> None:
    """The board takes a level that is named, or raises or clears the alarm of a code."""
    if event.hardware in BOARD_LEVELS:
        server.alarms = []
        world.hardware(server, "" if event.hardware == "Healthy" else event.hardware)
    else:
        code = event.hardware or ""
        surroundings.alarm(world, server, code, event.device, event.device_id, gone=_is_over(event))


def _switch(world: World, server: SimulatedServer, event: Event) -> None:
    """The switch takes a level that is named, or has or loses the fault of a code."""
    if event.switch in SWITCH_LEVELS:
        server.switch_faults = []
        server.switch = "" if event.switch == SwitchLevel.NOT_HANDLE else event.switch
        world.report(server)
    else:
        code = event.switch or ""
        surroundings.switch(world, server, code, event.switch_chip, event.switch_port, gone=_is_over(event))


def _reset_fails(world: World, server: SimulatedServer, event: Event) -> None:
    server.reset_fails = event.reset_fails or 0


def _state(world: World, server: SimulatedServer, event: Event) -> None:
    match state_of(event):
        case "ready":
            world.readiness(server, True)
        case "not-ready":
            world.readiness(server, False)
        case "gone":
            world.remove(server)
        case "back":
            world.restore(server)
        case word:
            server.silent = word == "silent"


_EFFECTS: Final[dict[str, Callable[[World, SimulatedServer, Event], None]]] = {
    "code": _code,
    "network": _network,
    "subHealth": _sub_health,
    "drop": _drop,
    "hang": _hang,
    "ping": _ping,
    "storage": _storage,
    "public": _public,
    "hardware": _hardware,
    "switch": _switch,
    "resetFails": _reset_fails,
    "state": _state,
    "ready": _state,
    "silent": _state,
}


def _is_over(event: Event) -> bool:
    return event.assertion == "recover"


def _on_chip(world: World, server: SimulatedServer, kind: str, chip: int, code: str, level: str, *, gone: bool) -> None:
    codes, name = server.plane(kind), code.upper()
    if gone:
        codes.get(chip, {}).pop(name, None)
        if not codes.get(chip):
            codes.pop(chip, None)
    else:
        codes.setdefault(chip, {})[name] = (round(world.now * 1000), level)
    if not server.silent:
        world.report(server)


def _pod(world: World, event: Event) -> None:
    namespace, _, name = (event.pod or "").partition("/")
    key = ObjectKey("v1", "Pod", namespace, name)
    live = world.objects.get(key)
    if live is None:
        return
    if event.phase == "Deleted":
        world.evict(key, 0)
        return
    body = copy.deepcopy(live)
    code = 0 if event.phase == "Succeeded" else event.exit
    status: dict[str, Any] = body.setdefault("status", {})
    status["phase"] = event.phase or "Failed"
    status["containerStatuses"] = [
        {"name": c["name"], "ready": False, "restartCount": 0, "state": {"terminated": {"exitCode": code}}}
        for c in body["spec"].get("containers") or ()
    ]
    world.put(body)


def _type_and_level(desired: Desired, code: str) -> tuple[str, str]:
    """The fault type under which a device plugin reports a code, and the level of the shipped tables."""
    table, public = desired.tables.get("chip"), desired.tables.get("public")
    if table is not None and (level := table.level_of(code)) is not None:
        network = any(code_key(k) == code_key(code) and d.plane is not None for k, d in table.details.items())
        return (NETWORK if network else CARD), level
    if public is not None and (level := public.level_of(code)) is not None:
        return PUBLIC, level
    return CARD, SEPARATE
