"""The manager's decisions as a state machine: events in, commands out. Pure; time is an argument (s, monotonic).

Behaviour: component/taskd/taskd/go/framework_backend/manager. Events are handled one at a time, so no signal is
lost between two ticks; after each event the plugins run until nothing changes.
"""

from __future__ import annotations

import dataclasses
import json

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.state import (
    AgentStatus,
    Command,
    JobSettings,
    JobState,
    LogWarning,
    ReportFaults,
    Signal,
    StressRequest,
    SwitchRequest,
    ToAgents,
    WorkerStatus,
)
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.message import Received, rank_set
from belay.agents.training.compat.bus.position import AGENT, WORKER
from belay.agents.training.compat.manager.operations import LinkSwitch, Profiling, StressTest
from belay.agents.training.compat.manager.recovery import ElasticTraining, HotSwitch, Recover, StopTrain
from belay.agents.training.compat.manager.rescheduling import JobRescheduling, PodRescheduling
from belay.agents.training.compat.manager.streams import Stream


class ManagerCore:
    """The state machine of one manager."""

    def __init__(self, settings: JobSettings) -> None:
        self.state = JobState(settings)
        self._serial = 0
        self._profiling = Profiling()
        self._grace = False
        self.streams = (
            Stream(
                "ResumeTrainingAfterFaultStream",
                (StopTrain(), Recover(), ElasticTraining(), PodRescheduling(), JobRescheduling(), HotSwitch()),
            ),
            Stream("OMSwitchNicStream", (LinkSwitch(),)),
            Stream("OMStressTestStream", (StressTest(),)),
            Stream("ProfilingCollect", (self._profiling,)),
        )

    def tick(self, now: float) -> list[Command]:
        """Run every plugin that has work; return the commands."""
        self.state.now = now
        commands: list[Command] = []
        for stream in self.streams:
            commands += stream.run(self.state)
        return commands + self._start_agents()

    # ClusterD

    def signal(self, signal: Signal, now: float) -> list[Command]:
        """A signal of this job. A keep-alive or a repeated signal changes nothing."""
        if signal.kind == constants.KEEP_ALIVE or signal.same(self.state.signal):
            return self.tick(now)
        if signal.kind not in constants.SIGNALS:
            return [LogWarning(f"signal {signal.kind[:64]!r} is unknown and ignored")]
        self._serial += 1
        self.state.signal = dataclasses.replace(signal, serial=self._serial)
        self.state.rounds += signal.kind == constants.STOP_TRAIN
        return self.tick(now)

    def subscribed(self, now: float) -> list[Command]:
        """A session with ClusterD began: report the faults that have not been handled."""
        commands = self.tick(now)
        faults = {rank: 1 for agent in self.state.agents.values() for rank in agent.faults}
        return [*commands, ReportFaults(faults)] if faults and self.state.settings.recovery else commands

    def switch(self, request: SwitchRequest, now: float) -> list[Command]:
        """A request to move links."""
        self.state.switch = request
        return self.tick(now)

    def stress(self, request: StressRequest, now: float) -> list[Command]:
        """A request to test chips."""
        self.state.stress = request
        return self.tick(now)

    def profiling(self, command: int, now: float) -> list[Command]:
        """A command (7xx) that switches profiling."""
        self.state.profiling = command
        return self.tick(now)

    def reset_file(self, retry_time: int, graceful_exit: bool, now: float) -> list[Command]:
        """The content of the job's reset file."""
        self.state.retry_time = retry_time
        commands: list[Command] = []
        if graceful_exit and not self._grace and self.state.agents:
            commands.append(ToAgents(tuple(sorted(self.state.agents)), codes.GRACE_EXIT))
        self._grace = graceful_exit
        return commands + self.tick(now)

    # the bus

    def message(self, received: Received, now: float) -> list[Command]:
        """A message of an agent or a worker. One that cannot be read is logged and ignored."""
        self.state.now = now
        try:
            if received.src.role == AGENT:
                commands = self._agent(received, now)
            elif received.src.role == WORKER:
                commands = self._worker(received, now)
            else:
                return [LogWarning(f"{received.src} sends {received.body.kind}: neither an agent nor a worker")]
        except ValueError as error:
            return [LogWarning(f"{received.src} sends {received.body.kind} {received.body.code}: {error}")]
        return commands + self.tick(now)

    def _agent(self, received: Received, now: float) -> list[Command]:
        rank, body = int(received.src.server), received.body
        if rank >= self.state.settings.nodes:
            raise ValueError(f"there is no such pod, the job has {self.state.settings.nodes}")
        agent = self.state.agents.setdefault(rank, AgentStatus(rank))
        agent.seen = now
        if body.kind != codes.STATUS:
            return []
        if body.code == codes.RESTART_TIMES:
            agent.restarts, agent.waiting = _whole(body.message), True
            # a pod that asks to start runs nothing: its earlier faults are over
            agent.faults = ()
        elif body.code == codes.FAULT_RANKS:
            return self._faults(agent, body.message, now)
        return []

    def _faults(self, agent: AgentStatus, text: str, now: float) -> list[Command]:
        try:
            found = rank_set(json.loads(text)["fault_ranks"])
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"not a report of fault ranks: {error!r}") from None
        world = self.state.settings.world
        ranks = tuple(rank for rank in found if rank < world)
        new = [rank for rank in ranks if rank not in agent.faults]
        if new:
            agent.fault_at = now
        agent.faults = ranks
        commands: list[Command] = []
        if len(ranks) < len(found):
            commands.append(LogWarning(f"Agent{agent.rank} reports rank {found[-1]}, the job has {world}"))
        if new and self.state.settings.recovery:
            commands.append(ReportFaults(dict.fromkeys(new, 1)))
        return commands

    def _worker(self, received: Received, now: float) -> list[Command]:
        rank, node, body = int(received.src.process), int(received.src.server), received.body
        if rank >= self.state.settings.world:
            raise ValueError(f"there is no such rank, the job has {self.state.settings.world}")
        worker = self.state.workers.setdefault(rank, WorkerStatus(rank, node))
        worker.seen, worker.node = now, node
        if body.kind == codes.REGISTER:
            self._profiling.forget(rank)
        elif body.kind == codes.STATUS and isinstance(body.code, int) and 1400 <= body.code < 1500:
            worker.profiling = body.code
        elif body.code == codes.SWITCH_NIC:
            worker.switch = (body.extension.get(constants.SWITCH_UUID, ""), body.message)
        elif body.code == codes.STRESS_TEST:
            worker.stress = (body.extension.get(constants.STRESS_UUID, ""), body.message)
        return []

    def _start_agents(self) -> list[Command]:
        """Let agents that asked start, unless the last signal of ClusterD pauses them."""
        state = self.state
        if state.signal is not None and state.signal.kind == constants.PAUSE_START:
            return []
        commands: list[Command] = []
        waiting: dict[int, list[int]] = {}
        for agent in state.agents.values():
            if agent.waiting:
                agent.waiting = False
                waiting.setdefault(state.restarts or agent.restarts, []).append(agent.rank)
        for restarts, nodes in waiting.items():
            commands.append(ToAgents(tuple(sorted(nodes)), codes.START_AGENT, str(restarts)))
        return commands


def _whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{text[:20]!r} is not a whole number") from None
    if not -1 <= number <= 1 << 31:
        raise ValueError(f"{number} is not a number of restarts")
    return number
