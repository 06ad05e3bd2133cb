"""Starting agents: one for the node this process runs on, or a fleet of simulated ones."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

from belay.agents.common.client import KubeClient
from belay.agents.common.clock import Clock, NodeClock
from belay.agents.common.credentials import load
from belay.agents.common.stopping import run_until
from belay.agents.daemon.agent_and_plugin import AgentAndPlugin
from belay.agents.daemon.context import AgentContext
from belay.agents.daemon.fleet import Fleet, FleetNode, FleetPace
from belay.agents.daemon.parts import BeginPart, run_beside
from belay.agents.daemon.shared_watches import SharedWatches
from belay.agents.dra.fleet import FleetSlices
from belay.agents.drivers.base import Driver
from belay.agents.drivers.choice import make_driver
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.kubelet.settings import PluginSettings
from belay.agents.node.agent import NodeAgent
from belay.agents.node.agent_lock import AgentLock
from belay.agents.node.publicnames import PublicNames, named
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy
from belay.engine.wire.policy import NodePolicy


async def run_agent(
    node_name: str,
    *,
    journal_dir: Path,
    driver: Driver | str,
    kubeconfig: str | None = None,
    settings: Settings | None = None,
    policy: NodePolicy | None = None,
    plugin: PluginSettings | None = None,
    parts: Sequence[BeginPart] = (),
    plugins: Path | None = None,
    hooks: Path | None = None,
    names: PublicNames | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run the agent of one node until `stop` is set (or for ever).

    While another agent works with the journal of `journal_dir`, this one waits and does nothing.

    Args:
        driver: a driver, or its name (see `make_driver`).
        plugin: settings of the device plugin; without them kubelet is served by another one.
        parts: what runs beside the agent.
        plugins: the file that switches parts of resets on and off.
        hooks: the folder of programs that take part in resets.
        names: what others call resources and chips.

    Raises CredentialsError, and ValueError for an unknown driver or settings that do not fit the node.
    """
    settings = settings or Settings()
    policy = policy or shipped_policy(settings.pool)
    access = load(kubeconfig)
    api = KubeClient(access)
    client = named(api, names or PublicNames())
    own_driver = None
    if isinstance(driver, str):
        driver = own_driver = make_driver(driver, node_name, scale=settings.scale, cards_timeout=settings.cards_timeout)
    sole = AgentLock(journal_dir)
    try:
        await run_until(stop, sole.take())
        if stop is not None and stop.is_set():
            return

        agent = NodeAgent(
            node_name,
            driver,
            client,
            journal_dir,
            settings,
            NodeClock(),
            policy=policy,
            plugins=plugins,
            hooks=hooks,
        )
        context = AgentContext(
            agent=agent,
            driver=driver,
            client=client,
            api=api,
            folder=journal_dir,
            settings=settings,
            policy=policy,
            cuts_chips=plugin is not None and plugin.dynamic,
        )

        # All begin before any runs: what does not fit ends the agent now, and what the agent must know joins it.
        begun = [run for begin in parts if (run := begin(context)) is not None]
        work = agent.run
        if plugin is not None:
            work = AgentAndPlugin(context, plugin, access.headers, names).run
        await run_until(stop, run_beside(work(), begun))
    finally:
        await client.close()
        if isinstance(own_driver, DcmiDriver):
            await own_driver.close()
        sole.release()


async def run_fleet(
    nodes: Sequence[FleetNode],
    *,
    state_dir: Path,
    kubeconfig: str | None = None,
    settings: Settings | None = None,
    policy: NodePolicy | None = None,
    pace: FleetPace | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run simulated nodes until `stop` is set (or for ever), one client session and three watches for all of them."""
    settings = settings or Settings()
    client = KubeClient(load(kubeconfig))
    watches = SharedWatches(client)
    fleet = Fleet(
        watches,
        state_dir,
        settings,
        policy=policy or shipped_policy(settings.pool),
        chance=random.Random(),
        pace=pace,
    )
    for node in nodes:
        fleet.add(node)
    slices = FleetSlices(client, fleet.agents, Clock())
    try:
        await run_until(stop, run_beside(watches.run(), [slices.run]))
    finally:
        await fleet.close()
        await client.close()
