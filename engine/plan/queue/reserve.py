"""The starvation guard: a job that waits too long at the head of its queue gets nodes of its own to drain.

While it holds, the kept nodes take no new NPU pods of other jobs, unless their priority is higher (pods without NPU
still run there), so that what ends there is not refilled, and a large gang starts in bounded time under an endless
stream of small ones. One job per queue at a time; nodes are the emptiest on which the job fits once the jobs there have
ended (services never do), chosen once and remembered in the job's history; a job that does not fit even then gets none.
It ends when the job starts or after ``starvation.hold``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from engine.model.cluster import Pod
from engine.model.jobs import Gang
from engine.model.times import rfc3339
from engine.plan.queue import words
from engine.plan.scope import Scope
from engine.plan.victims import memory_of

if TYPE_CHECKING:
    from engine.plan.place.trial import Trials

RESERVED: Final = "ReservedForGang"
#: Reasons of a job that room would cure.
CURABLE: Final = frozenset({"NPUResourceShortage", "TopologyNotMet"})
#: Each try drains so many times as many nodes as the one before.
WIDER: Final = 4


class Placing(Protocol):
    """A gang after its turn: which pods were left, and why (empty: none)."""

    @property
    def gang(self) -> Gang:
        """The gang."""

    @property
    def left(self) -> Sequence[Pod]:
        """Its pods without a place."""

    @property
    def why(self) -> str:
        """The reason of its pending entry."""


class Guard:
    """Keeps nodes for starving jobs and says so."""

    def __init__(self, scope: Scope, trials: Trials) -> None:
        self._scope, self._trials = scope, trials
        self._after = round(scope.desired.settings.starvation.after * 1000)
        self._hold = round(scope.desired.settings.starvation.hold * 1000)
        self._kept: dict[str, Gang] = {}

    def keep(self) -> None:
        """Closes the kept nodes to the NPU pods of all other jobs; before anything is placed."""
        for key in self._scope.queue:
            if key not in self._scope.memory.jobs:
                continue
            gang = self._scope.gangs[key]
            memory = memory_of(self._scope, gang)
            if not memory.reserved:
                continue
            over = not self._after or self._scope.now_ms >= memory.reserved_at + self._hold
            if over or not all(map(self._usable, memory.reserved)):
                # a hold that is over rests as long as it takes to get one; lost nodes are replaced at once
                self._remember(gang, (), self._scope.now_ms if over else 0)
                continue
            for name in memory.reserved:
                self._kept.setdefault(name, gang)
        if not self._kept:
            return
        everyone = {
            name: f"{RESERVED}: node is kept for {words.named(gang)}" for name, gang in sorted(self._kept.items())
        }
        owners = {gang.key for gang in self._kept.values()}
        least = min(gang.priority for gang in self._kept.values())
        for key in self._scope.queue:
            gang, closed = self._scope.gangs[key], everyone
            if key in owners or gang.priority > least:
                rows = ((name, self._kept[name]) for name in everyone)
                closed = {n: everyone[n] for n, one in rows if one.key != key and one.priority >= gang.priority}
            if closed and any(self._scope.observed.pods[pod].count for pod in gang.pods):
                own = self._scope.refused.get(key)
                self._scope.refused[key] = {**closed, **own} if own else closed

    def settled(self, gang: Gang, needs: int) -> None:
        """After its turn: a gang that has started needs no nodes kept."""
        if needs or gang.key not in self._scope.memory.jobs:
            return
        memory = memory_of(self._scope, gang)
        if memory.reserved or memory.reserved_at:
            self._remember(gang, (), 0)

    def run(self, stuck: Sequence[Placing], wishes: Callable[[Placing], list[Sequence[Pod]]]) -> None:
        """Says what is kept for whom; picks nodes for the first job of each queue that has waited too long."""
        taken = {gang.queue for gang in self._kept.values()}
        for placing in stuck:
            gang = placing.gang
            memory = memory_of(self._scope, gang)
            if memory.reserved:
                self._say(gang, memory.reserved, memory.reserved_at)
            elif gang.queue not in taken and self._due(placing, memory.reserved_at):
                taken.add(gang.queue)
                pods = next(iter(wishes(placing)), ())
                nodes = self._choose(gang, pods)
                self._remember(gang, nodes, self._scope.now_ms)
                if nodes:
                    self._say(gang, nodes, self._scope.now_ms)
            if self._kept:
                self._blame(placing)

    def _due(self, placing: Placing, last: int) -> bool:
        """Whether the job has waited long enough, since its newest pod was made or since the last try."""
        since = max((round(pod.created * 1000) for pod in placing.left), default=self._scope.now_ms)
        due = bool(self._after) and placing.why in CURABLE and self._scope.now_ms - since >= self._after
        held = memory_of(self._scope, placing.gang).nominated
        return due and not held and (not last or self._scope.now_ms - last >= self._after)

    def _choose(self, gang: Gang, pods: Sequence[Pod]) -> tuple[str, ...]:
        """The nodes to drain: the emptiest ones on which the pods fit once all other NPU work there has ended."""
        seekers = [pod for pod in pods if pod.count]
        if not seekers:
            return ()
        names = [
            name
            for name, view in self._scope.nodes.items()
            if self._usable(name) and name not in self._kept and self._trials.may_ever(gang, seekers[0], name)
        ]
        names.sort(key=lambda name: (-self._scope.nodes[name].free.bit_count(), name))
        count = max(1, len(seekers))
        while names:
            placed = self._trials.drain(gang, pods, names[:count])
            if placed:
                return tuple(sorted({item.node for item in placed if item.pod.count}))
            if count >= len(names):
                break
            count = min(WIDER * count, len(names))
        return ()

    def _usable(self, name: str) -> bool:
        view = self._scope.nodes.get(name)
        return view is not None and view.closed is None and not view.suspended and view.node.ready

    def _say(self, gang: Gang, nodes: Sequence[str], since: int) -> None:
        shown = ", ".join(nodes[: words.MAX_NAMES]) + ("" if len(nodes) <= words.MAX_NAMES else " …")
        end = rfc3339((since + self._hold) / 1000)
        plural = "nodes are" if len(nodes) > 1 else "node is"
        words.extend(
            self._scope,
            gang,
            f"{len(nodes)} {plural} kept from newer NPU work for it until it starts, at most until {end} ({shown})",
        )

    def _blame(self, placing: Placing) -> None:
        """Tells a job that would have found room on a kept node whom it waits for."""
        entry = words.entry_of(self._scope, placing.gang)
        if entry is None or RESERVED not in entry.nodes or not placing.left:
            return
        want = min(pod.count for pod in placing.left)
        refused = self._scope.refused.get(placing.gang.key, {})
        for name, gang in sorted(self._kept.items()):
            view = self._scope.nodes[name]
            if gang.key != placing.gang.key and name in refused and view.free.bit_count() >= max(1, want):
                end = rfc3339((memory_of(self._scope, gang).reserved_at + self._hold) / 1000)
                text = f"waits until {words.named(gang)} has started, at most until {end}; then {name} takes new work"
                words.amend(self._scope, placing.gang, text, reason=RESERVED)
                return

    def _remember(self, gang: Gang, nodes: tuple[str, ...], since: int) -> None:
        memory = memory_of(self._scope, gang)
        if (memory.reserved, memory.reserved_at) != (nodes, since):
            self._scope.memory.jobs[gang.key] = msgspec.structs.replace(
                memory, uid=gang.uid, reserved=nodes, reserved_at=since
            )
