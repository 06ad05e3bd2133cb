"""Streams and their token: one plugin of a stream acts at a time. Pure.

Rules: component/taskd/taskd/go/framework_backend/manager (business streams). The candidate with the lowest priority
number that has not held the token since the last reset gets it; the end of its work releases the token and resets the
stream, an error only releases it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from belay.agents.training.clusterd.state import Command, JobState, LogWarning

MAX_ROUNDS: Final = 32
"""Maximum number of rounds per event, a bound for plugins that never settle."""


class Outcome(NamedTuple):
    """The commands of a plugin, and whether its work is done."""

    done: bool
    commands: tuple[Command, ...] = ()


class Plugin(Protocol):
    """One kind of work of the manager."""

    name: str
    priority: int

    def wants(self, state: JobState) -> bool:
        """Whether the plugin has work."""

    def handle(self, state: JobState) -> Outcome:
        """The next step of its work; called while it holds the token."""


class Stream:
    """Mutually exclusive plugins."""

    def __init__(self, name: str, plugins: Sequence[Plugin]) -> None:
        self.name = name
        self._plugins = sorted(plugins, key=lambda plugin: plugin.priority)
        self._held: set[str] = set()
        self.holder: Plugin | None = None

    def run(self, state: JobState) -> list[Command]:
        """Run plugins until nothing changes."""
        issued: list[Command] = []
        for _ in range(MAX_ROUNDS):
            before = self.holder
            commands, moved = self._round(state)
            issued += commands
            if not moved and not commands and self.holder is before:
                return issued
        issued.append(
            LogWarning(f"stream {self.name} has not settled after {MAX_ROUNDS} rounds; the next event resumes it")
        )
        return issued

    def _round(self, state: JobState) -> tuple[list[Command], bool]:
        if self.holder is None:
            wanting = [plugin for plugin in self._plugins if plugin.name not in self._held and plugin.wants(state)]
            if not wanting:
                self._held.clear()
                return [], False
            self.holder = wanting[0]
            self._held.add(self.holder.name)
        holder = self.holder
        try:
            outcome = holder.handle(state)
        except (ValueError, KeyError, TypeError) as error:
            self.holder = None
            return [LogWarning(f"plugin {holder.name} failed and releases stream {self.name}: {error}")], True
        if outcome.done:
            self.holder = None
            self._held.clear()
        return list(outcome.commands), outcome.done
