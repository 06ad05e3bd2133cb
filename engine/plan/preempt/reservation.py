"""Reserve nodes for a starving job: one that has waited too long at the head of its queue.

While it holds, the reserved nodes take no new NPU pods of other jobs unless their priority is higher (pods without NPU
still run there), so chips freed there stay free, and a large gang starts in bounded time under an endless stream of
small ones. One job per queue at a time. The nodes are the emptiest on which the job fits once other jobs there have
ended (services never do); they are chosen once and recorded in the job's history. A job that does not fit even then
gets none. The reservation ends when the job starts or after ``starvation.hold``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from belay.engine.model.cluster import Pod
from belay.engine.model.jobs import Gang
from belay.engine.model.plan import Plan
from belay.engine.model.times import rfc3339
from belay.engine.plan.preempt import messages
from belay.engine.plan.preempt.outcome import GangOutcome
from belay.engine.plan.recover.outcome import NodeRefusal
from belay.engine.plan.restart_scope import memory_of
from belay.engine.plan.scope import Scope

if TYPE_CHECKING:
    from belay.engine.documents.scheduling import Starvation
    from belay.engine.plan.preempt.what_if import WhatIf

RESERVED: Final = "ReservedForGang"
#: Reasons that reserved nodes can cure.
CURABLE: Final = frozenset({"NPUResourceShortage", "TopologyNotMet"})
#: Each try drains this many times as many nodes as the one before.
WIDER: Final = 4


def reservations_due(starvation: Starvation, result: Plan, pods: Mapping[str, Pod]) -> Iterator[float]:
    """Unix seconds at which jobs of a plan will have waited too long, so that nodes may be reserved for them.

    Whatever reason a row shows: of a job that waits for several reasons it is one, and another may be curable.
    """
    if not starvation.after:
        return
    for row in result.pending:
        waiting = [pods[key] for name in row.pods if (key := f"{row.namespace}/{name}") in pods]
        if waiting:
            yield max(pod.created for pod in waiting) + starvation.after


class Reservations:
    """The nodes that one pass reserves for starving jobs."""

    def __init__(self, scope: Scope, what_if: WhatIf) -> None:
        self._scope, self._what_if = scope, what_if
        self._after = round(scope.facts.desired.settings.starvation.after * 1000)
        self._hold = round(scope.facts.desired.settings.starvation.hold * 1000)
        self._kept: dict[str, Gang] = {}

    def close_nodes(self) -> None:
        """Close the reserved nodes to the NPU pods of all other jobs, before anything is placed."""
        for key in self._scope.queue:
            if key not in self._scope.draft.memory.jobs:
                continue
            gang = self._scope.gangs[key]
            memory = memory_of(self._scope.draft, gang)
            if not memory.reserved:
                continue
            over = not self._after or self._scope.facts.now_ms >= memory.reserved_at + self._hold
            if over or not all(map(self._usable, memory.reserved)):
                # after a full hold the job waits ``starvation.after`` again; lost nodes are replaced at once
                self._record(gang, (), self._scope.facts.now_ms if over else 0)
                continue
            for name in memory.reserved:
                self._kept.setdefault(name, gang)
        if not self._kept:
            return
        everyone = {
            name: NodeRefusal(RESERVED, f"{RESERVED}: node is reserved for {messages.named(gang)}")
            for name, gang in sorted(self._kept.items())
        }
        owners = {gang.key for gang in self._kept.values()}
        least = min(gang.priority for gang in self._kept.values())
        for key in self._scope.queue:
            gang, closed = self._scope.gangs[key], everyone
            if key in owners or gang.priority > least:
                rows = ((name, self._kept[name]) for name in everyone)
                closed = {n: everyone[n] for n, one in rows if one.key != key and one.priority >= gang.priority}
            if closed and any(self._scope.facts.observed.pods[pod].count for pod in gang.pods):
                own = self._scope.recovery.refused.get(key)
                self._scope.recovery.refused[key] = {**closed, **own} if own else closed

    def release_started(self, gang: Gang, needs: int) -> None:
        """Release the nodes of a gang that has started; ``needs``: pods that its minimum still lacks."""
        if needs or gang.key not in self._scope.draft.memory.jobs:
            return
        memory = memory_of(self._scope.draft, gang)
        if memory.reserved or memory.reserved_at:
            self._record(gang, (), 0)

    def run(self, stuck: Sequence[GangOutcome], pod_sets: Callable[[GangOutcome], list[Sequence[Pod]]]) -> None:
        """State what is reserved for which job; reserve nodes for the first job of each queue that has waited too
        long.
        """
        taken = {gang.queue for gang in self._kept.values()}
        for outcome in stuck:
            gang = outcome.gang
            memory = memory_of(self._scope.draft, gang)
            if memory.reserved:
                self._report(gang, memory.reserved, memory.reserved_at)
            elif gang.queue not in taken and self._due(outcome, memory.reserved_at):
                taken.add(gang.queue)
                pods = next(iter(pod_sets(outcome)), ())
                nodes = self._choose(gang, pods)
                self._record(gang, nodes, self._scope.facts.now_ms)
                if nodes:
                    self._report(gang, nodes, self._scope.facts.now_ms)
            if self._kept:
                self._explain(outcome)

    def _due(self, outcome: GangOutcome, last: int) -> bool:
        """Whether the job has waited long enough, since its newest pod was made or since the last try."""
        since = max((round(pod.created * 1000) for pod in outcome.unplaced), default=self._scope.facts.now_ms)
        due = bool(self._after) and outcome.reason in CURABLE and self._scope.facts.now_ms - since >= self._after
        held = memory_of(self._scope.draft, outcome.gang).nominated
        return due and not held and (not last or self._scope.facts.now_ms - last >= self._after)

    def _choose(self, gang: Gang, pods: Sequence[Pod]) -> tuple[str, ...]:
        """The nodes to reserve: the emptiest ones on which the pods fit once all other NPU work there has ended."""
        npu_pods = [pod for pod in pods if pod.count]
        if not npu_pods:
            return ()
        names = [
            name
            for name, view in self._scope.nodes.items()
            if self._usable(name) and name not in self._kept and self._what_if.may_ever_fit(gang, npu_pods[0], name)
        ]
        names.sort(key=lambda name: (-self._scope.nodes[name].free.bit_count(), name))
        count = max(1, len(npu_pods))
        while names:
            placed = self._what_if.drain(gang, pods, names[:count])
            if placed:
                return tuple(sorted({item.node for item in placed if item.pod.count}))
            if count >= len(names):
                break
            count = min(WIDER * count, len(names))
        return ()

    def _usable(self, name: str) -> bool:
        view = self._scope.nodes.get(name)
        return view is not None and view.closed is None and not view.suspended and view.node.ready

    def _report(self, gang: Gang, nodes: Sequence[str], since: int) -> None:
        shown = ", ".join(nodes[: messages.MAX_NAMES]) + ("" if len(nodes) <= messages.MAX_NAMES else " …")
        end = rfc3339((since + self._hold) / 1000)
        plural = "nodes are" if len(nodes) > 1 else "node is"
        messages.extend(
            self._scope.draft,
            gang,
            f"{len(nodes)} {plural} reserved for it until it starts, at most until {end} ({shown})",
            near=nodes,
        )

    def _explain(self, outcome: GangOutcome) -> None:
        """Name the job that a reserved node waits for, to a job that would have found room there."""
        entry = messages.entry_of(self._scope.draft, outcome.gang)
        if entry is None or RESERVED not in entry.nodes or not outcome.unplaced:
            return
        want = min(pod.count for pod in outcome.unplaced)
        refused = self._scope.recovery.refused.get(outcome.gang.key, {})
        for name, gang in sorted(self._kept.items()):
            view = self._scope.nodes[name]
            if gang.key != outcome.gang.key and name in refused and view.free.bit_count() >= max(1, want):
                end = rfc3339((memory_of(self._scope.draft, gang).reserved_at + self._hold) / 1000)
                text = (
                    f"waits until {messages.named(gang)} has started, at most until {end}; then {name} takes new work"
                )
                messages.amend(self._scope.draft, outcome.gang, text, reason=RESERVED, near=[name])
                return

    def _record(self, gang: Gang, nodes: tuple[str, ...], since: int) -> None:
        memory = memory_of(self._scope.draft, gang)
        if (memory.reserved, memory.reserved_at) != (nodes, since):
            self._scope.draft.memory.jobs[gang.key] = msgspec.structs.replace(
                memory, uid=gang.uid, reserved=nodes, reserved_at=since
            )
