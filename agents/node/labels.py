"""Keeping labels and annotations of the node object as the device plugin does."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from belay.agents.common.client import ApiError, ApiServer
from belay.agents.common.clock import Clock
from belay.agents.node import fabric, reporting
from belay.agents.node.fabric import Nics
from belay.agents.node.settings import MAX_TEXT, Settings
from belay.agents.node.state import NodeState


async def keep_node(
    state: NodeState, cluster: ApiServer, clock: Clock, settings: Settings, chance: random.Random
) -> None:
    """Compare and correct them repeatedly: operators may change them, or the node be recreated. Never returns."""
    failures, nics = 0, Nics()
    while True:
        pause = settings.scaled(settings.device_period) * chance.uniform(0.8, 1.2)
        try:
            node = await cluster.get_node(state.node)
            if node is not None:
                await _patch(state, cluster, node, nics)
            # a node that is not registered yet will be soon
            failures = 0 if node is not None else failures + 1
            state.problems.pop("node", None)
        except ApiError as error:
            state.problems["node"] = f"node cannot be labelled: {error}"[:MAX_TEXT]
            failures += 1
        if failures:
            pause = min(pause, chance.uniform(0.1, min(30.0, 2.0 ** min(failures, 10))))
        await _until_news(state, clock, settings, pause)


async def _until_news(state: NodeState, clock: Clock, settings: Settings, pause: float) -> None:
    """Wait, but not while chips have come to need a tool or a person, or need them no more."""
    before, end = reporting.reset_info(state), clock.monotonic() + pause
    while (left := end - clock.monotonic()) > 0:
        await clock.sleep(min(left, clock.due(settings.poll) - clock.monotonic()))
        if reporting.reset_info(state) != before:
            return


async def _patch(state: NodeState, cluster: ApiServer, node: Mapping[str, Any], nics: Nics) -> None:
    addresses = (node.get("status") or {}).get("addresses") or ()
    internal = next((str(a.get("address", "")) for a in addresses if a.get("type") == "InternalIP"), "")
    state.levels = fabric.level_lists(state.machine, state.chips, internal, nics.addresses())
    metadata = node.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    new_labels = {k: v for k, v in reporting.node_labels(state, labels).items() if labels.get(k) != v}
    new_annotations = {k: v for k, v in reporting.node_annotations(state).items() if annotations.get(k) != v}
    if new_labels or new_annotations:
        await cluster.patch_node(state.node, new_labels, new_annotations)
