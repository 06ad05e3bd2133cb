"""Plugins of recovery: StopTrain, Recover, ElasticTraining, HotSwitch. Pure.

Rules: component/taskd/taskd/go/framework_backend/manager/plugins. Two differ on purpose: for a restart in
place each agent gets its own ranks only, and a signal that a returning server repeats is handled once.
"""

from __future__ import annotations

import json

from belay.agents.training.clusterd import constants
from belay.agents.training.clusterd.state import Command, JobState, Signal, ToAgents, ToController
from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.manager.streams import Outcome

MAX_HANDLED = 256
"""Number of handled recoveries that a plugin remembers."""


class Handled:
    """Keys of handled signals; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._found: dict[object, None] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def add(self, key: object) -> None:
        """Add a key."""
        self._found[key] = None
        while len(self._found) > MAX_HANDLED:
            del self._found[next(iter(self._found))]


def controller(signal: Signal, action: str) -> ToController:
    """One action of a signal as a command for the controller."""
    return ToController((action,), signal.strategy, signal.faults, signal.extra, signal.timeout)


def leave(nodes: tuple[int, ...]) -> tuple[Command, ...]:
    """Let the agents of these pods end their processes and leave."""
    return (ToAgents(nodes, codes.EXIT_AGENT),) if nodes else ()


class StopTrain:
    """Passes on signals that stop training; holds the stream until the faults or the decision are known."""

    name, priority = "StopTrain", 1
    _kinds = (constants.STOP_TRAIN, constants.GLOBAL_FAULT, constants.PRE_EXIT)

    def __init__(self) -> None:
        self._handled = Handled()

    def wants(self, state: JobState) -> bool:
        """Whether a signal of its kinds has not been passed on."""
        signal = state.signal
        return signal is not None and signal.kind in self._kinds and signal.serial not in self._handled

    def handle(self, state: JobState) -> Outcome:
        """Pass on each action once."""
        signal = state.signal
        if signal is None or signal.kind not in self._kinds:
            return Outcome(True)
        commands: list[Command] = []
        if signal.serial not in self._handled:
            self._handled.add(signal.serial)
            for action in dict.fromkeys(signal.actions):
                commands += self._act(state, signal, action)
        return Outcome(signal.kind == constants.GLOBAL_FAULT, tuple(commands))

    def _act(self, state: JobState, signal: Signal, action: str) -> list[Command]:
        if action in constants.CONTROLLER_ACTIONS:
            return [controller(signal, action)]
        if action == constants.NODES_EXIT_ACTION:
            return list(leave(signal.nodes))
        if action == constants.PRE_EXIT_ACTION:
            return stop_processes(state, signal)
        raise ValueError(f"action {action[:64]!r} of {signal.kind} is unknown")


def stop_processes(state: JobState, signal: Signal) -> list[Command]:
    """End the processes of the named pods; their agents stay."""
    per = state.settings.per_node
    return [
        ToAgents((node,), codes.STOP_WORKERS, json.dumps([str(rank) for rank in range(node * per, (node + 1) * per)]))
        for node in state.fault_nodes(signal)
    ]


class Recover:
    """Carries out the decision of ClusterD: retry, recover (in new pods or in place), dump, continue, save and
    leave."""

    name, priority = "Recover", 2
    _strategies = (constants.RETRY, constants.RECOVER, constants.DUMP, constants.CONTINUE)

    def __init__(self) -> None:
        self._handled = Handled()
        self._left: tuple[str, str, int] | None = None

    def _key(self, state: JobState) -> tuple[str, str, int] | None:
        signal = state.signal
        if signal is None:
            return None
        if signal.kind == constants.CHANGE_STRATEGY and signal.strategy in self._strategies:
            return signal.uuid, signal.strategy, state.rounds
        return (signal.uuid, constants.SAVE_AND_EXIT, state.rounds) if signal.kind == constants.SAVE_AND_EXIT else None

    def wants(self, state: JobState) -> bool:
        """Whether a decision has not been carried out."""
        key = self._key(state)
        return key is not None and key not in self._handled

    def handle(self, state: JobState) -> Outcome:
        """The next step of the decision."""
        signal, key = state.signal, self._key(state)
        if signal is None or key is None or key in self._handled:
            return Outcome(True)
        if signal.kind == constants.SAVE_AND_EXIT:
            self._handled.add(key)
            return Outcome(True, (controller(signal, constants.SAVE_ACTION), *leave(signal.nodes)))
        change = controller(signal, constants.CHANGE_ACTION)
        if signal.in_place:
            self._handled.add(key)
            return Outcome(True, (change, *restart_in_place(state, signal)))
        if signal.strategy == constants.RECOVER and self._left != key and signal.nodes:
            # the faulty pods leave first; the controller gets the decision in the next round
            self._left = key
            return Outcome(False, leave(signal.nodes))
        self._handled.add(key)
        return Outcome(True, (change,))


def restart_in_place(state: JobState, signal: Signal) -> list[Command]:
    """Order each agent to restart its own failed ranks."""
    nodes: dict[int, list[int]] = {}
    for rank in sorted(signal.faults):
        nodes.setdefault(state.settings.node(rank), []).append(rank)
    for node, ranks in nodes.items():
        if (agent := state.agents.get(node)) is not None:
            agent.faults = tuple(rank for rank in agent.faults if rank not in ranks)
    return [
        ToAgents((node,), codes.RESTART_WORKERS, json.dumps([str(rank) for rank in ranks]))
        for node, ranks in nodes.items()
    ]


class ElasticTraining:
    """Shrinks or restores the replicas of a job; holds the stream until another signal arrives."""

    name, priority = "ElasticTraining", 3

    def __init__(self) -> None:
        self._handled = Handled()

    def _own(self, signal: Signal | None) -> bool:
        return signal is not None and (
            signal.kind == constants.FAULT_NODES_EXIT
            or (
                signal.kind == constants.CHANGE_STRATEGY and signal.strategy in (constants.DOWNGRADE, constants.UPGRADE)
            )
        )

    def wants(self, state: JobState) -> bool:
        """Whether a change of size, or of pods that leave for it, has not been handled."""
        return self._own(state.signal) and state.signal is not None and state.signal.serial not in self._handled

    def handle(self, state: JobState) -> Outcome:
        """Handle the signal once."""
        signal = state.signal
        if signal is None or not self._own(signal):
            return Outcome(True)
        if signal.serial in self._handled:
            return Outcome(False)
        self._handled.add(signal.serial)
        if signal.kind == constants.FAULT_NODES_EXIT:
            return Outcome(False, leave(signal.nodes))
        gone = leave(signal.nodes) if constants.NODES_EXIT_ACTION in signal.actions else ()
        return Outcome(False, (controller(signal, constants.CHANGE_ACTION), *gone))


class HotSwitch:
    """Replaces a sub-healthy pod while training continues."""

    name, priority = "HotSwitch", 6

    def __init__(self) -> None:
        self._handled = Handled()

    def wants(self, state: JobState) -> bool:
        """Whether a preparation, its cancellation or a migration has not been handled."""
        signal = state.signal
        return (
            signal is not None
            and signal.serial not in self._handled
            and (
                signal.kind == constants.HOT_SWITCH
                or (signal.kind == constants.CHANGE_STRATEGY and signal.strategy == constants.MIGRATION)
            )
        )

    def handle(self, state: JobState) -> Outcome:
        """Pass it to the controller."""
        signal = state.signal
        assert signal is not None
        self._handled.add(signal.serial)
        if signal.kind == constants.CHANGE_STRATEGY:
            return Outcome(True, (controller(signal, constants.CHANGE_ACTION),))
        known = [action for action in dict.fromkeys(signal.actions) if action in constants.HOT_SWITCH_ACTIONS]
        return Outcome(True, tuple(controller(signal, action) for action in known))
