"""What `belay simulate` is asked without a timeline (`--kill`, `--drain`, `--fault`), and what it says in the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from belay.engine.cli.ages import length
from belay.engine.errors import InputError
from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.plan import Pending, Plan
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
    moved = moved_jobs(outcome)
    keys_moved = {job.key for job in moved}
    waiting = {f"{row.namespace}/{row.kind}/{row.name}": row for row in outcome.last.pending}
    stranded = {key: pods for key, pods in outcome.stranded.items() if key not in keys_moved}

    parts = [_fate(job, waiting.get(job.key)) for job in moved[:_MOST_JOBS]]
    if len(moved) > _MOST_JOBS:
        parts.append(f"{counted(len(moved) - _MOST_JOBS, 'more job')} are moved")
    parts += [_left_behind(key, pods) for key, pods in islice(stranded.items(), _MOST_JOBS)]
    if not moved and not stranded:
        parts.append("no job loses a pod")

    others = len(waiting.keys() - keys_moved)
    if others:
        parts.append(f"{counted(others, 'other job')} {'waits' if others == 1 else 'wait'}")
    return f"What happens: {'; '.join([*parts, *_hardware_in_the_end(outcome.last)])}."


def _fate(job: MovedJob, wait: Pending | None) -> str:
    """What becomes of a job that loses pods."""
    loses = f"{_short(job.key)} loses {counted(job.pods, 'pod')} after {length(job.lost)}"
    if wait is not None:
        return f"{loses} and then waits: {wait.reason}: {wait.state or wait.message}"
    if job.placed is None:
        return f"{loses} and is not placed again within the time that is simulated"
    return f"{loses} and has its place again {length(job.placed - job.lost)} later"


def _left_behind(key: str, pods: int) -> str:
    return (
        f"{_short(key)} has {counted(pods, 'pod')} on a node that is down and is not moved: see whether its label "
        "fault-scheduling lets Belay move it"
    )


def _hardware_in_the_end(plan: Plan) -> Iterator[str]:
    """Which nodes take no work after the last pass, and how many chips are out of service."""
    nodes = [node.node for node in plan.nodes if node.state != NodeHealth.HEALTHY]
    if nodes:
        more = f" and {len(nodes) - _MOST_JOBS} more" if len(nodes) > _MOST_JOBS else ""
        verb = "takes" if len(nodes) == 1 else "take"
        yield f"in the end {', '.join(nodes[:_MOST_JOBS])}{more} {verb} no new work"

    chips = sum(chip.state not in IN_SERVICE for chip in plan.chips)
    yield f"in the end {counted(chips, 'chip')} {'is' if chips == 1 else 'are'} out of service by a fault"


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
