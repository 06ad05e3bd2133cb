"""Starting agents: one for the node this process runs on, or a fleet of simulated ones."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agents.common.client import KubeClient
from agents.common.clock import Clock, NodeClock
from agents.common.credentials import load
from agents.common.log import Log
from agents.common.stopping import run_until
from agents.daemon.agent_and_plugin import AgentAndPlugin
from agents.daemon.fleet import Fleet, FleetNode, FleetPace
from agents.daemon.hardware_assembly import hardware_part
from agents.daemon.health import HealthSettings
from agents.daemon.health import serve as serve_health
from agents.daemon.shared_watches import SharedWatches
from agents.dra.driver import DraDriver
from agents.dra.fleet import FleetSlices
from agents.dra.settings import DraSettings
from agents.drivers.base import Driver
from agents.drivers.choice import make_driver
from agents.drivers.dcmi.driver import DcmiDriver
from agents.drivers.tools.hccn import HccnTool
from agents.exporter.settings import ExporterSettings
from agents.kubelet.settings import PluginSettings
from agents.node.agent import NodeAgent
from agents.node.agent_lock import AgentLock
from agents.node.diagnosis.part import DiagnosisPart, DiagnosisSettings
from agents.node.hardware.settings import HardwareSettings
from agents.node.link_trust import LinkTrust
from agents.node.linkfiles import LinkPart
from agents.node.publicnames import PublicNames, named
from agents.node.settings import Settings
from agents.node.shipped import shipped_policy
from agents.node.steptimes import StepTimes
from agents.node.trust import OrderTrust
from agents.node.ub_ports import UbPorts
from agents.rdma.config import RdmaSettings
from agents.rdma.plugin import RdmaPart
from engine.wire.policy import NodePolicy

_log = Log("agent")


@dataclass(frozen=True)
class AgentParts:
    """Settings of the parts that run beside the agent of a node; a part without settings does not run.

    Args:
        hardware: what NodeD does.
        exporter: metrics for Prometheus.
        health: kubelet's probe.
        links: the folder through which orders for links reach processes.
        dra: the driver of dynamic resource allocation.
        rdma: RDMA cards as resources.
        steps: the folder of profiling, whose step times are reported.
        logs: which logs of failed pods are read.
    """

    hardware: HardwareSettings | None = None
    exporter: ExporterSettings | None = None
    health: HealthSettings | None = None
    links: Path | None = None
    dra: DraSettings | None = None
    rdma: RdmaSettings | None = None
    steps: Path | None = None
    logs: DiagnosisSettings | None = None


async def run_agent(
    node_name: str,
    *,
    journal_dir: Path,
    driver: Driver | str,
    kubeconfig: str | None = None,
    settings: Settings | None = None,
    policy: NodePolicy | None = None,
    plugin: PluginSettings | None = None,
    parts: AgentParts | None = None,
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
    settings, parts = settings or Settings(), parts or AgentParts()
    access = load(kubeconfig)
    api = KubeClient(access)
    client = named(api, names or PublicNames())
    chosen = (
        make_driver(driver, node_name, scale=settings.scale, cards_timeout=settings.cards_timeout)
        if isinstance(driver, str)
        else driver
    )
    chosen_policy = policy or shipped_policy(settings.pool)
    sole = AgentLock(journal_dir)
    serving = None
    if parts.exporter is not None:
        from agents.exporter.part import exporter_part

        serving = exporter_part(parts.exporter, chosen)  # raises now what the driver cannot give
    try:
        await run_until(stop, sole.take())
        if stop is not None and stop.is_set():
            return
        sharing = None
        if parts.dra is not None:
            cuts = chosen if plugin is not None and plugin.dynamic else None
            sharing = DraDriver(node_name, api, journal_dir, parts.dra, NodeClock(), lambda: agent.state, cuts)
        claimed = sharing.claims.held if sharing is not None else None
        if plugin is None:
            agent = NodeAgent(
                node_name, chosen, client, journal_dir, settings, NodeClock(), policy=chosen_policy, plugins=plugins,
                hooks=hooks, claimed=claimed,
            )  # fmt: skip
            work = agent.run()
        else:
            both = AgentAndPlugin(
                node_name, chosen, client, journal_dir, settings, chosen_policy, plugin, access.headers, plugins, names,
                hooks, claimed,
            )  # fmt: skip
            agent, work = both.agent, both.run()
        if isinstance(chosen, DcmiDriver):
            work = _beside(work, UbPorts(HccnTool(), lambda: agent.state, NodeClock(), agent.refresh_soon).run())
        if parts.hardware is not None:
            hardware = hardware_part(
                node_name, client, settings, parts.hardware, chosen_policy, chosen, lambda: agent.state, journal_dir
            )
            work = _beside(work, hardware.run())
        if serving is not None:
            work = _beside(work, serving())
        if sharing is not None:
            work = _beside(work, sharing.run())
        for part in _reporting_parts(parts, node_name, client, settings, agent, journal_dir):
            work = _beside(work, part)
        await run_until(stop, work)
    finally:
        await client.close()
        if isinstance(driver, str) and isinstance(chosen, DcmiDriver):
            await chosen.close()
        sole.release()


def _reporting_parts(
    parts: AgentParts, node: str, client: KubeClient, settings: Settings, agent: NodeAgent, journal_dir: Path
) -> Iterator[Coroutine[Any, Any, None]]:
    """The parts that need nothing of the driver."""
    if parts.rdma is not None:
        end = partial(os.kill, os.getpid(), signal.SIGTERM)
        yield RdmaPart(node, client, parts.rdma, NodeClock(), lambda: agent.state, end).run()
    if parts.links is not None:
        trust = LinkTrust(OrderTrust(settings.order_trust, journal_dir, node), journal_dir)
        yield LinkPart(node, client, parts.links, trust=trust, clock=NodeClock()).run()
    if parts.steps is not None:
        yield StepTimes(node, client, parts.steps, clock=NodeClock()).run()
    if parts.logs is not None:
        yield DiagnosisPart(node, client, lambda: agent.state, journal_dir, parts.logs, NodeClock()).run()
    if parts.health is not None:
        yield serve_health(parts.health, lambda: agent.state is not None)


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
        await run_until(stop, _beside(watches.run(), slices.run()))
    finally:
        await fleet.close()
        await client.close()


async def _beside(work: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run both; `other` ends with `work`, after it."""
    running = asyncio.create_task(other)
    running.add_done_callback(_log_end)
    try:
        await work
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _log_end(task: asyncio.Task[None]) -> None:
    """A part that ends without an order is a bug; the agent logs it and continues without it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a part of the agent ended", error=repr(error))
