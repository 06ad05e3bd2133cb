"""What `belay simulate` is asked without a timeline (`--kill`, `--drain`, `--fault`), and what it says in the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.cli.ages import length
from belay.engine.errors import InputError
from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.states import IN_SERVICE, NodeHealth
from belay.engine.model.wording import counted
from belay.engine.simulate.run import Outcome
from belay.engine.simulate.timeline import Event

USUAL_CODE: Final = "80C98001"
"""An error of the chip's memory that a reset does away with."""
_MOST_JOBS: Final = 10


class AskedWhatIf(NamedTuple):
    """Nodes that die, nodes that are drained, and faults of chips (``NODE/CHIP[=CODE]``), all at the beginning."""

    kill: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()

    def events(self) -> list[Event]:
        """What happens to the cluster.

        Raises:
            InputError: a fault names no chip or no code.
        """
        found = [Event.model_validate({"at": "0s", "node": node, "state": "not-ready"}) for node in self.kill]
        return found + [_fault(text) for text in self.fault]

    def documents(self) -> list[Mapping[str, bytes]]:
        """What Git would say beside what it says: an Isolation of the nodes that are drained."""
        if not self.drain:
            return []
        isolation = {
            "apiVersion": "belay.dev/v1alpha1",
            "kind": "Isolation",
            "metadata": {"name": "belay-simulate-drain"},
            "spec": {"nodes": list(dict.fromkeys(self.drain)), "reason": "a drain that is simulated", "until": None},
        }
        return [{"policies/belay-simulate-drain.yaml": json.dumps(isolation).encode()}]

    def check(self, nodes: Iterable[str]) -> None:
        """Raises InputError where a node is not there."""
        known = sorted(nodes)
        for option, names in (("--kill", self.kill), ("--drain", self.drain)):
            for name in names:
                if name not in known:
                    raise InputError(f"no node {name!r} with a good device report", where=option,
                                     hint=f"There are {', '.join(known[:5])}.")  # fmt: skip


class MovedJob(NamedTuple):
    """A job that lost pods: when first, how many, and when the last of them had a place again (None: it has none)."""

    key: str
    lost: float
    pods: int
    placed: float | None


def moved_jobs(outcome: Outcome) -> list[MovedJob]:
    """The jobs that lost pods, in order of time."""
    found: dict[str, MovedJob] = {}
    for moment in outcome.moments:
        for action in moment.actions:
            if isinstance(action, EvictPod):
                key = f"{action.namespace}/{action.owner.kind}/{action.owner.name}" if action.owner else ""
                key = key or f"{action.namespace}/Pod/{action.pod}"
                before = found.get(key) or MovedJob(key, moment.after, 0, None)
                found[key] = before._replace(pods=before.pods + 1, placed=None)
            elif isinstance(action, BindPod) and action.gang in found:
                found[action.gang] = found[action.gang]._replace(placed=moment.after)
    return list(found.values())


def closing_sentence(outcome: Outcome) -> str:
    """What happens to whom, for how long, and what stays so."""
    waiting = {f"{one.namespace}/{one.kind}/{one.name}": one for one in outcome.last.pending}
    moved = moved_jobs(outcome)
    parts = []
    for job in moved[:_MOST_JOBS]:
        loses = f"{_short(job.key)} loses {counted(job.pods, 'pod')} after {length(job.lost)}"
        wait = waiting.get(job.key)
        if wait is not None:
            parts.append(f"{loses} and then waits: {wait.reason}: {wait.state or wait.message}")
        elif job.placed is None:
            parts.append(f"{loses} and is not placed again within the time that is simulated")
        else:
            parts.append(f"{loses} and has its place again {length(job.placed - job.lost)} later")
    if len(moved) > _MOST_JOBS:
        parts.append(f"{counted(len(moved) - _MOST_JOBS, 'more job')} are moved")
    staying = {key: pods for key, pods in outcome.stranded.items() if key not in {job.key for job in moved}}
    for key, pods in list(staying.items())[:_MOST_JOBS]:
        parts.append(
            f"{_short(key)} has {counted(pods, 'pod')} on a node that is down and is not moved: see whether its label "
            "fault-scheduling lets Belay move it"
        )
    if not moved and not staying:
        parts.append("no job loses a pod")
    still = [one for key, one in waiting.items() if key not in {job.key for job in moved}]
    if still:
        parts.append(f"{counted(len(still), 'other job')} {'waits' if len(still) == 1 else 'wait'}")
    ill = [node.node for node in outcome.last.nodes if node.state != NodeHealth.HEALTHY]
    if ill:
        more = f" and {len(ill) - _MOST_JOBS} more" if len(ill) > _MOST_JOBS else ""
        parts.append(
            f"in the end {', '.join(ill[:_MOST_JOBS])}{more} {'takes' if len(ill) == 1 else 'take'} no new work"
        )
    out = sum(chip.state not in IN_SERVICE for chip in outcome.last.chips)
    parts.append(f"in the end {counted(out, 'chip')} {'is' if out == 1 else 'are'} out of service by a fault")
    return f"What happens: {'; '.join(parts)}."


def _fault(text: str) -> Event:
    place, _, code = text.partition("=")
    node, _, chip = place.partition("/")
    number = chip.rpartition("-")[2]
    if not node or not (number.isascii() and number.isdecimal() and len(number) <= 4):
        raise InputError(f"{text[:60]!r} names no chip", where="--fault", hint="Write NODE/3 or NODE/3=80C98001.")
    try:
        return Event.model_validate({"at": "0s", "node": node, "chip": int(number), "code": code or USUAL_CODE})
    except ValueError as error:
        raise InputError(f"{code[:40]!r} is no fault code", where="--fault", hint="Write NODE/3=80C98001.") from error


def _short(key: str) -> str:
    namespace, _, rest = key.partition("/")
    return f"{namespace}/{rest.partition('/')[2]}"


def asked(kill: Sequence[str], drain: Sequence[str], fault: Sequence[str]) -> AskedWhatIf:
    """What is asked, each option given any number of times, with commas too."""
    return AskedWhatIf(_split(kill), _split(drain), _split(fault))


def _split(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(one for text in given for one in text.split(",") if one)
