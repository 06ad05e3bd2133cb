"""Why a request can be met by no node, as values, and what people read about it: the state, then the change.

MindCluster's own line for the same state stands in ``Refusal.message``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final, NamedTuple

from engine.model.remedies import Remedy, Step

_SHOWN: Final = 8


class Told(NamedTuple):
    """A cause in words: what is the matter, the way out, and the same as values where it is one definite change."""

    state: str
    unblock: str
    remedy: Remedy | None = None


class IllegalSize(NamedTuple):
    """A pod of ``task`` asks for a number of chips that the job's servers never give to one pod."""

    task: str
    chips: int
    legal: tuple[int, ...]
    pods: int

    def told(self) -> Told:
        """The nearest legal number: the next smaller one, else the next larger."""
        most = self.legal[-1]
        best = max((size for size in self.legal if size <= self.chips), default=self.legal[0])
        state = f"a pod of task {self.task} asks for {_chips(self.chips)}, but one pod of this job"
        change = f"ask for {_chips(best)} a pod"
        if self.chips > most and not self.chips % most:
            change += f" in {self.pods * self.chips // most} pods instead of {self.pods}"
        return Told(
            f"{state} may have {_numbers(self.legal)} on such servers", change, Remedy(Step.ASK_CHIPS, count=best)
        )


class OddTotal(NamedTuple):
    """A job of several pods asks for an odd number of dies, which come in modules of two."""

    total: int

    def told(self) -> Told:
        """An even number in every pod."""
        state = f"the job asks for {_chips(self.total)} in all, but chips of these servers come in modules of 2"
        return Told(state, "ask for an even number of chips in every pod", Remedy(Step.ASK_CHIPS, count=2))


class OnePodOnly(NamedTuple):
    """Several pods ask for what only a job of one pod may have."""

    pods: int
    what: str

    def told(self) -> Told:
        """One pod, or another request."""
        state = f"the job has {self.pods} pods, but {self.what} is for jobs of one pod"
        return Told(state, f"run it as a job of one pod, or do without {self.what}", Remedy(Step.ONE_POD))


class SeveralResources(NamedTuple):
    """The pods of one job, or one pod, ask for more than one NPU resource; the first is the one to keep."""

    resources: tuple[str, ...]
    pod: str = ""

    def told(self) -> Told:
        """One of them."""
        who = f"pod {self.pod}" if self.pod else "the job"
        keep = self.resources[0]
        state = f"{who} asks for {len(self.resources)} NPU resources, {', '.join(self.resources)}, and may ask for one"
        change = f"ask for {keep} alone, or put what asks for {self.resources[1]} into a job of its own"
        return Told(state, change, Remedy(Step.ASK_RESOURCE, values={keep: ""}))


class SeveralVNPUs(NamedTuple):
    """A pod asks for more than one vNPU."""

    wanted: int
    resource: str

    def told(self) -> Told:
        """One vNPU a pod."""
        state = f"a pod asks for {self.wanted} {self.resource}, but a pod holds one vNPU"
        return Told(state, "ask for 1 a pod, and for more pods or a larger vNPU", Remedy(Step.ASK_CHIPS, count=1))


class UnknownResource(NamedTuple):
    """The job asks for a resource that no device plugin of NPUs offers."""

    resource: str
    known: tuple[str, ...]

    def told(self) -> Told:
        """The resource of a similar name, else any of those that are placed."""
        close = _similar(self.resource, self.known)
        state = f"the job asks for {self.resource}, which is no NPU resource that Belay places"
        if close:
            return Told(state, f"ask for {close}", Remedy(Step.ASK_RESOURCE, values={close: ""}))
        return Told(state, f"ask for one of {', '.join(self.known)}")


class UnknownAccelerator(NamedTuple):
    """The pods' node selector names a kind of server that no product has."""

    key: str
    value: str
    known: tuple[str, ...]

    def told(self) -> Told:
        """The kind of a similar name, else the list of those that exist."""
        close = _similar(self.value, self.known)
        state = f"the job's nodeSelector has {self.key}: {self.value}, which is the kind of no server that is known"
        if close:
            return Told(state, f"write {self.key}: {close}", Remedy(Step.SET_SELECTOR, values={self.key: close}))
        return Told(state, f"write one of {_listed(self.known)} there, or remove it")


class PolicyNeeded(NamedTuple):
    """Chips of this resource are placed by the policy that the job names, and it names none that is known."""

    resource: str
    key: str
    given: str
    known: tuple[str, ...]

    def told(self) -> Told:
        """The policy of a similar name, else the list of those for the resource."""
        close = _similar(self.given, self.known) if self.given else ""
        written = f"names {self.given!r}, which is none that is known" if self.given else "is missing"
        state = f"{self.resource} is placed by a policy, and annotation {self.key} {written}"
        if close or len(self.known) == 1:
            value = close or self.known[0]
            return Told(state, f"write {self.key}: {value}", Remedy(Step.SET_POLICY, values={self.key: value}))
        return Told(state, f"write one of {_listed(self.known)} there")


class UnknownLabel(NamedTuple):
    """A label of the job has a value that means nothing."""

    key: str
    value: str
    known: tuple[str, ...]

    def told(self) -> Told:
        """One of the values that mean something."""
        given = f"is {self.value!r}, which means nothing" if self.value else "is missing"
        state = f"label {self.key} of the job {given}"
        change = f"write {self.key}: {' or '.join(self.known)}"
        return Told(state, change, Remedy(Step.SET_LABEL, values={self.key: self.known[0]}))


class NamespaceOfSystem(NamedTuple):
    """The job is in a namespace whose pods Belay leaves alone."""

    namespace: str

    def told(self) -> Told:
        """Another namespace."""
        state = f"namespace {self.namespace} belongs to Kubernetes or Belay, and its pods are left alone"
        return Told(state, "create the job in a namespace of its own")


Cause = (
    IllegalSize
    | NamespaceOfSystem
    | OddTotal
    | OnePodOnly
    | SeveralResources
    | SeveralVNPUs
    | UnknownResource
    | UnknownAccelerator
    | PolicyNeeded
    | UnknownLabel
)


def _chips(count: int) -> str:
    return f"{count} chip" if count == 1 else f"{count} chips"


def _numbers(legal: tuple[int, ...]) -> str:
    """``1, 2, 4 or 8``; ``1 to 16`` where all between are legal."""
    if len(legal) > 2 and legal == tuple(range(legal[0], legal[-1] + 1)):
        return f"{legal[0]} to {legal[-1]}"
    *first, last = [str(size) for size in legal]
    return f"{', '.join(first)} or {last}" if first else last


def _similar(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)), "")


def _listed(known: tuple[str, ...]) -> str:
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more
