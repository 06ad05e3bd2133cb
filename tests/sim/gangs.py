"""What must hold for gangs once nothing fails any more: started whole, and none keeps chips that others could use."""

from __future__ import annotations

import json

from tests.sim.cluster import Json
from tests.sim.world import RESOURCE, World, owner_of


def torn(world: World) -> str:
    """Which job is placed in part and should not be; empty when none is.

    One that lost pods keeps its chips only while no other job of whole servers could start in their place, or its
    label rules rescheduling out.
    """
    gangs: dict[str, list[Json]] = {}
    for pod in world.api.objects("pods"):
        gangs.setdefault(owner_of(pod), []).append(pod)
    bound = {name: [pod for pod in pods if pod["spec"].get("nodeName")] for name, pods in gangs.items()}
    parts = [name for name, pods in gangs.items() if 0 < len(bound[name]) < len(pods)]
    if found := [name for name in parts if name not in world.bereft and name not in world.whole]:
        return f"gangs placed in part: {found}"
    held = {name for name in parts if name in world.bereft and _rescheduled(world, name)}
    others = {pod["spec"]["nodeName"] for name, pods in bound.items() if name not in held for pod in pods}
    room = len(world.drivers) - len(others)
    for name, pods in gangs.items():
        servers = all(f'"{RESOURCE}": "8"' in json.dumps(pod["spec"]) for pod in pods)
        if held and servers and not bound[name] and len(pods) <= room:
            return f"{name} could start in place of {sorted(held)}, which lost pods"
    return ""


def _rescheduled(world: World, job: str) -> bool:
    raw = world.api.find("ascendjobs.mindxdl.gitee.com", job, "train") or {"metadata": {}}
    return (raw["metadata"].get("labels") or {}).get("fault-scheduling") in ("grace", "force")
