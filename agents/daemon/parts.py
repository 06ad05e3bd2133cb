"""The parts that run beside the agent of a node: one row each, with its options, its settings and how it begins.

To add a part: a room of its own, and its row in `PARTS`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from belay.agents.common.clock import NodeClock
from belay.agents.common.log import Log
from belay.agents.daemon import folder_options, health
from belay.agents.daemon.context import AgentContext
from belay.agents.daemon.hardware_assembly import hardware_part
from belay.agents.daemon.health import HealthSettings
from belay.agents.dra import settings as dra
from belay.agents.dra.driver import DraDriver
from belay.agents.dra.settings import DraSettings
from belay.agents.drivers.dcmi.driver import DcmiDriver
from belay.agents.drivers.tools.hccn import HccnTool
from belay.agents.exporter import option as exporter
from belay.agents.exporter.settings import ExporterSettings
from belay.agents.node.diagnosis.part import DiagnosisPart, DiagnosisSettings
from belay.agents.node.hardware import settings as hardware
from belay.agents.node.hardware.settings import HardwareSettings
from belay.agents.node.link_trust import LinkTrust
from belay.agents.node.linkfiles import LinkPart
from belay.agents.node.steptimes import StepTimes
from belay.agents.node.trust import OrderTrust
from belay.agents.node.ub_ports import UbPorts
from belay.agents.rdma import config as rdma
from belay.agents.rdma.config import RdmaSettings
from belay.agents.rdma.plugin import RdmaPart

Run = Callable[[], Coroutine[Any, Any, None]]
"""What a part does until it is cancelled."""
S = TypeVar("S")
_log = Log("agent")


@dataclass(frozen=True)
class Part(Generic[S]):
    """A part of the agent.

    Args:
        add: adds the options.
        chosen: the settings that options give, None when the part is off. Raises ValueError that names the option.
        begin: what the part does, None for a node that needs nothing of it. Raises ValueError where driver and
            settings do not fit.
    """

    add: Callable[[argparse.ArgumentParser], None]
    chosen: Callable[[argparse.Namespace], S | None]
    begin: Callable[[S, AgentContext], Run | None]

    def with_options(self, options: argparse.Namespace) -> BeginPart | None:
        """The part with the settings that options give; None when it is off."""
        settings = self.chosen(options)
        return None if settings is None else partial(self.begin, settings)


BeginPart = Callable[[AgentContext], Run | None]
"""A part with its settings."""


def _begin_hardware(settings: HardwareSettings, context: AgentContext) -> Run:
    return hardware_part(settings, context).run


def _begin_exporter(settings: ExporterSettings, context: AgentContext) -> Run:
    # its modules take memory that only agents with an exporter need
    from belay.agents.exporter.part import exporter_part

    return exporter_part(settings, context.driver)


def _begin_dra(settings: DraSettings, context: AgentContext) -> Run:
    sharing = DraDriver(
        context.node,
        context.api,
        context.folder,
        settings,
        NodeClock(),
        context.agent.known_state,
        context.driver if context.cuts_chips else None,
    )
    context.agent.join(claimed=sharing.claims.held)
    return sharing.run


def _begin_rdma(settings: RdmaSettings, context: AgentContext) -> Run:
    end = partial(os.kill, os.getpid(), signal.SIGTERM)
    return RdmaPart(context.node, context.client, settings, NodeClock(), context.agent.known_state, end).run


def _begin_links(folder: Path, context: AgentContext) -> Run:
    orders = OrderTrust(context.settings.order_trust, context.folder, context.node)
    trust = LinkTrust(orders, context.folder)
    return LinkPart(context.node, context.client, folder, trust=trust, clock=NodeClock()).run


def _begin_step_times(folder: Path, context: AgentContext) -> Run:
    return StepTimes(context.node, context.client, folder, clock=NodeClock()).run


def _begin_diagnosis(settings: DiagnosisSettings, context: AgentContext) -> Run:
    return DiagnosisPart(
        context.node, context.client, context.agent.known_state, context.folder, settings, NodeClock()
    ).run


def _begin_health(settings: HealthSettings, context: AgentContext) -> Run:
    return partial(health.serve, settings, lambda: context.agent.state is not None)


def _begin_ub_ports(settings: bool, context: AgentContext) -> Run | None:
    if not isinstance(context.driver, DcmiDriver):
        return None
    agent = context.agent
    return UbPorts(HccnTool(), agent.known_state, NodeClock(), agent.refresh_soon).run


PARTS: Final[Sequence[Part[Any]]] = (
    Part(hardware.add, hardware.chosen, _begin_hardware),
    Part(health.add, health.chosen, _begin_health),
    Part(exporter.add, exporter.chosen, _begin_exporter),
    Part(dra.add, dra.chosen, _begin_dra),
    Part(rdma.add, rdma.chosen, _begin_rdma),
    Part(folder_options.add_links, folder_options.links, _begin_links),
    Part(folder_options.add_step_times, folder_options.step_times, _begin_step_times),
    Part(folder_options.add_logs, folder_options.logs, _begin_diagnosis),
    # the driver decides about these: nothing to choose
    Part(lambda parser: None, lambda options: True, _begin_ub_ports),
)


def chosen_parts(options: argparse.Namespace) -> tuple[BeginPart, ...]:
    """The parts that options switch on. Raises ValueError that names the option."""
    with_options = (part.with_options(options) for part in PARTS)
    return tuple(begin for begin in with_options if begin is not None)


async def run_beside(work: Coroutine[Any, Any, None], parts: Iterable[Run]) -> None:
    """Run the parts beside ``work``, and end them after it. One that fails is logged and ends alone."""
    running = []
    for run in parts:
        task = asyncio.create_task(run())
        task.add_done_callback(_log_end)
        running.append(task)
    try:
        await work
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _log_end(task: asyncio.Task[None]) -> None:
    """A part that ends without an order is a bug; the agent logs it and continues without it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a part of the agent ended", error=repr(error))
