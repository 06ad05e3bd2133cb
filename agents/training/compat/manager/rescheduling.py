"""Plugins that restart pods: PodRescheduling, JobRescheduling. Pure.

Rules: component/taskd/taskd/go/framework_backend/manager/plugins (pod, job).
"""

from __future__ import annotations

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.state import Command, JobState, Signal, ToAgents, ToController
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.manager.recovery import Handled, controller
from belay.agents.training.compat.manager.streams import Outcome


class PodRescheduling:
    """The faulty pods leave, all others restart their processes."""

    name, priority = "PodRescheduling", 4

    def __init__(self) -> None:
        self._handled = Handled()
        self._retry_time: int | None = None

    def _exit(self, state: JobState) -> Signal | None:
        """The decision to exit, where recovery is on."""
        signal = state.signal
        if (
            state.settings.recovery
            and signal is not None
            and signal.kind == constants.CHANGE_STRATEGY
            and signal.strategy == constants.EXIT
            and signal.uuid not in self._handled
        ):
            return signal
        return None

    def _faulty(self, state: JobState) -> tuple[int, ...]:
        return tuple(agent.rank for agent in state.agents.values() if agent.faults)

    def wants(self, state: JobState) -> bool:
        """Whether there is a decision or, with recovery off, a fault outside the pod of rank 0 or a new retry time."""
        if self._retry_time is None:
            self._retry_time = state.retry_time
        if state.settings.recovery:
            return self._exit(state) is not None
        return any(rank != 0 for rank in self._faulty(state)) or self._retry_time != state.retry_time

    def handle(self, state: JobState) -> Outcome:
        """Handle everything in one step."""
        signal = self._exit(state)
        self._retry_time = state.retry_time
        commands: list[Command] = []
        faulty = set(self._faulty(state))
        if signal is not None:
            self._handled.add(signal.uuid)
            faulty |= set(state.fault_nodes(signal))
            commands.append(controller(signal, constants.CHANGE_ACTION))
        left = state.restarts or max((agent.restarts for agent in state.agents.values()), default=0)
        state.restarts = left - 1
        leaving = tuple(sorted(node for node in state.agents if node in faulty))
        staying = tuple(sorted(node for node in state.agents if node not in faulty))
        for node in leaving:
            state.agents[node].faults = ()
        if leaving:
            commands.append(ToAgents(leaving, codes.EXIT_AGENT))
        if staying:
            commands.append(ToAgents(staying, codes.RESTART_AGENT, str(state.restarts)))
        commands.append(ToController((constants.RESTART_CONTROLLER,)))
        return Outcome(True, tuple(commands))


class JobRescheduling:
    """The pod of rank 0 leaves, so that the whole job restarts."""

    name, priority = "JobRescheduling", 5

    def __init__(self) -> None:
        self._handled = Handled()

    def wants(self, state: JobState) -> bool:
        """Whether there is killMaster or a fault of rank 0's pod; with recovery on only after 25 minutes."""
        signal = state.signal
        if signal is not None and signal.kind == constants.KILL_MASTER and signal.serial not in self._handled:
            return True
        agent = state.agents.get(0)
        if agent is None or not agent.faults:
            return False
        return not state.settings.recovery or state.now - agent.fault_at >= constants.RANK0_FAULT_SECONDS

    def handle(self, state: JobState) -> Outcome:
        """End the controller, then the agent."""
        if state.signal is not None:
            self._handled.add(state.signal.serial)
        if (agent := state.agents.get(0)) is not None:
            agent.faults = ()
        return Outcome(True, (ToController((constants.DESTROY_CONTROLLER,)), ToAgents((0,), codes.EXIT_AGENT)))
