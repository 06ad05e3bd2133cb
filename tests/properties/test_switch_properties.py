"""Switch affinity over random clusters and queues: whole jobs, no conflicting uplinks, limits of shared switches."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.observe.observed import observe
from belay.engine.plan.place.gangs.nslb import LARGE, NORMAL
from tests import listing
from tests.placing import bindings, scope_of
from tests.steps import Steps

WIDTH = 4
Jobs = list[tuple[str, int, str]]


def _items(sizes: list[int], jobs: Jobs, version: str, shared: int) -> list[dict[str, Any]]:
    slots = [(tor, slot) for tor, size in enumerate(sizes) for slot in range(size)]
    servers: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for tor, slot in slots:
        servers[tor].append({"server_ip": f"10.0.{tor}.{slot}", "npu_count": 8, "slice_id": slot})
    rows = [{"tor_id": tor, "tor_ip": f"1.0.0.{tor}", "server": found} for tor, found in servers.items()]
    info = {"version": "1.0", "tor_count": WIDTH, "server_list": rows}
    items = [listing.config_map("kube-system", "basic-tor-node-cm", {"tor_info": json.dumps(info)})]
    items.append(listing.params(nslb_version=version, shared_tor_num=str(shared)))
    for tor, slot in slots:
        items += [listing.node(f"t{tor}-{slot}", address=f"10.0.{tor}.{slot}"), listing.report(f"t{tor}-{slot}")]
    for name, pods, schema in jobs:
        items += listing.job(name, pods, 8, policy="chip8-node8", labels={"tor-affinity": schema})
    return items


@st.composite
def worlds(draw: Any) -> tuple[list[int], Jobs, str, int]:
    """Switches with up to four nodes, a queue of jobs, a version, a limit of shared switches."""
    sizes = draw(st.lists(st.integers(1, WIDTH), min_size=1, max_size=5))
    drawn = draw(st.lists(st.tuples(st.integers(1, 9), st.sampled_from((LARGE, NORMAL))), min_size=1, max_size=5))
    jobs = [(f"j{index}", pods, schema) for index, (pods, schema) in enumerate(drawn)]
    return sizes, jobs, draw(st.sampled_from(("1.0", "2.0"))), draw(st.integers(1, 2))


def _under(scope: Steps, jobs: Jobs) -> dict[str, set[str]]:
    """The switches of every placed job, which is placed whole or not at all."""
    bound = bindings(scope)
    under = {}
    for name, pods, _ in jobs:
        nodes = [bound[f"{name}-{rank}"].node for rank in range(pods) if f"{name}-{rank}" in bound]
        assert len(nodes) in (0, pods) and len(set(nodes)) == len(nodes), "whole jobs, one pod a node"
        if nodes:
            under[name] = {node.split("-")[0] for node in nodes}
    return under


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_no_uplink_has_two_owners_beyond_what_the_version_allows(world: tuple[list[int], Jobs, str, int]) -> None:
    sizes, jobs, version, most = world
    scope = scope_of(observe(_items(sizes, jobs, version, most)))
    under, schemas = _under(scope, jobs), {name: schema for name, _, schema in jobs}
    pods = {name: count for name, count, _ in jobs}
    crossing = {name: switches for name, switches in under.items() if len(switches) > 1}
    assert all(pods[name] >= 4 or schemas[name] == NORMAL for name in crossing), "fill jobs stay under one switch"
    bound = bindings(scope)
    for name, switches in crossing.items():
        annotations = {
            bound[f"{name}-{rank}"].node.split("-")[0]: bound[f"{name}-{rank}"].annotations
            for rank in range(pods[name])
        }
        if version == "2.0" and schemas[name] == LARGE:
            assert sum(notes["isSharedTor"] == "1" for notes in annotations.values()) <= most
            assert all(notes["isHealthy"] == "0" for notes in annotations.values())
        for other, theirs in crossing.items():
            if other != name and version == "1.0":
                assert not switches & theirs or schemas[name] == schemas[other] == NORMAL
            if other != name and version == "2.0" and schemas[name] == schemas[other] == LARGE:
                exclusive = {switch for switch, notes in annotations.items() if notes["isSharedTor"] == "2"}
                assert not exclusive & theirs, "an exclusive switch has one large job across switches"
    again = scope_of(observe(reversed(_items(sizes, jobs, version, most)))).document()
    assert again.digest() == scope.document().digest(), "same world, same plan"
