"""Why a request can be met by no node, as values, and what people read about it: the state, then the change.

MindCluster's own line for the same state stands in ``Refusal.message``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final, NamedTuple

from belay.engine.model.remedies import Remedy, Step
from belay.engine.model.wording import counted

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
        state = f"a pod of task {self.task} asks for {counted(self.chips, 'chip')}, but one pod of this job"
        change = f"ask for {counted(best, 'chip')} a pod"
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
        wanted = counted(self.total, "chip")
        state = f"the job asks for {wanted} in all, but chips of these servers come in modules of 2"
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
        change = f"ask for one of {', '.join(self.known)}"
        return Told(state, change, Remedy(Step.ASK_RESOURCE, values={self.known[0]: ""}) if self.known else None)


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
        change = f"write one of {_listed(self.known)} there, or remove it"
        return Told(state, change, Remedy(Step.SET_SELECTOR, remove=(self.key,)))


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
        change = f"write one of {_listed(self.known)} there"
        first = Remedy(Step.SET_POLICY, values={self.key: self.known[0]}) if self.known else None
        return Told(state, change, first)


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


class NumberWanted(NamedTuple):
    """A label of the job has to hold a whole number of ``least`` to ``most`` (0: no limit); ``wanted`` is one that fits
    the job.
    """

    key: str
    value: str
    least: int
    most: int
    wanted: int

    def told(self) -> Told:
        """The number that fits."""
        given = f"is {self.value!r:.60}" if self.value else "is missing"
        limit = f"a whole number from {self.least} to {self.most}" if self.most else f"at least {self.least}"
        limit = f"{self.least}, which its pods ask for" if self.least == self.most else limit
        state = f"label {self.key} of the job {given}, and has to be {limit}"
        best = str(max(self.least, min(self.wanted, self.most or self.wanted)))
        return Told(state, f"write {self.key}: {best}", Remedy(Step.SET_LABEL, values={self.key: best}))


class UnequalPods(NamedTuple):
    """Pods of one job ask for different numbers of chips, and have to ask for the same."""

    sizes: tuple[int, ...]

    def told(self) -> Told:
        """The largest of them, so that no pod gets less than it asks for."""
        state = f"pods of the job ask for {_numbers(self.sizes)} chips, and have to ask for the same number"
        most = self.sizes[-1]
        return Told(state, f"ask for {counted(most, 'chip')} in every pod", Remedy(Step.ASK_CHIPS, count=most))


class IllegalCores(NamedTuple):
    """A pod asks for a number of AI cores that no template of its chips has; ``legal`` ends with a whole chip."""

    pod: str
    cores: int
    legal: tuple[int, ...]

    def told(self) -> Told:
        """The nearest legal number: the next larger one, so that the pod has enough, else a whole chip."""
        best = min((size for size in self.legal if size >= self.cores), default=self.legal[-1])
        state = f"pod {self.pod} asks for {counted(self.cores, 'AI core')}, but a part of these chips has"
        change = f"ask for {best}, or for whole chips of {self.legal[-1]}"
        return Told(f"{state} {_numbers(self.legal)}", change, Remedy(Step.ASK_CHIPS, count=best))


class NotForCores(NamedTuple):
    """A label of the job has a value that this number of AI cores cannot have."""

    key: str
    value: str
    cores: int
    wanted: str

    def told(self) -> Told:
        """The value that it can have."""
        state = f"a part with {counted(self.cores, 'AI core')} cannot have {self.key}: {self.value}"
        return Told(state, f"write {self.key}: {self.wanted}", Remedy(Step.SET_LABEL, values={self.key: self.wanted}))


class NamespaceOfSystem(NamedTuple):
    """The job is in a namespace whose pods Belay leaves alone."""

    namespace: str

    def told(self) -> Told:
        """Another namespace."""
        state = f"namespace {self.namespace} belongs to Kubernetes or Belay, and its pods are left alone"
        return Told(state, "create the job in a namespace of its own", Remedy(Step.MOVE_JOB))


class UnlabelledInTree(NamedTuple):
    """A node lacks labels of the configured tree, or names a tree that is not configured."""

    node: str
    labels: tuple[str, ...]
    tree: str
    known: tuple[str, ...]

    def told(self) -> Told:
        """Its place in the tree; only people know the units."""
        if self.tree not in self.known:
            state = f"node {self.node} is of tree {self.tree}, which resource-level-config does not name"
            change = f"label {self.node} with {self.labels[0]}={' or '.join(self.known)}"
            return Told(state, change, Remedy(Step.LABEL_NODE, self.node, values={self.labels[0]: self.known[0]}))
        named = ", ".join(self.labels)
        state = f"node {self.node} lacks labels of tree {self.tree}: {named}"
        remedy = Remedy(Step.LABEL_NODE, self.node, values=dict.fromkeys(self.labels, ""))
        return Told(state, f"label {self.node} with its place in tree {self.tree}: {named}", remedy)


class CannotBeCut(NamedTuple):
    """The chips of a node are of a product without vNPUs on demand; ``product`` is empty if none is known, and
    ``layouts`` says whether a VNPULayout may cut them.
    """

    resource: str
    product: str
    layouts: bool

    def told(self) -> Told:
        """Another node."""
        what = f"chips of {self.product}" if self.product else "its chips"
        state = f"{what} cannot be cut on demand"
        change = "add a node whose product cuts vNPUs on demand"
        change += ", or cut these chips by a VNPULayout in mode static" if self.layouts else ""
        return Told(state, change, Remedy(Step.ADD_NODE, count=1, values={self.resource: ""}))


class CoresDisagree(NamedTuple):
    """What a node offers of AI cores is no multiple of what one of its chips has, or its label says otherwise."""

    node: str
    offered: int
    each: int
    key: str
    label: str

    def told(self) -> Told:
        """Its device plugin writes both."""
        state = f"node {self.node} offers {self.offered} AI cores with label {self.key}={self.label}"
        change = (
            f"restart the device plugin of {self.node}, which writes label {self.key} and offers the cores: "
            f"{self.offered} with {self.key}={self.label} do not fit chips of {self.each}"
        )
        return Told(state, change, Remedy(Step.REPORT, self.node))


class OtherBlocks(NamedTuple):
    """A job cannot be divided into the blocks, rack blocks or groups that its annotations ask for; these are legal.

    ``remove`` are annotations to leave out, ``chips`` another number of chips in each pod, where one is needed.
    """

    values: dict[str, str]
    remove: tuple[str, ...] = ()
    chips: int = 0

    def told(self) -> Told:
        """The nearest annotations and numbers that the rules accept."""
        steps = [f"write {key}: {value}" for key, value in self.values.items()]
        steps += [f"leave out annotation {key}" for key in self.remove]
        steps += [f"ask for {counted(self.chips, 'chip')} a pod"] if self.chips else []
        state = "the job cannot be divided as its annotations ask"
        if self.values or self.remove:
            remedy = Remedy(Step.SET_POLICY, count=self.chips, values=self.values, remove=self.remove)
        else:
            remedy = Remedy(Step.ASK_CHIPS, count=self.chips)
        return Told(state, ", and ".join(steps), remedy)


class ParameterMissing(NamedTuple):
    """The scheduler's configuration lacks a parameter that such jobs need, or it cannot be used; ``value`` is the
    least that is enough, empty where only people know it.
    """

    key: str
    value: str = ""

    def told(self) -> Told:
        """Where it is written."""
        state = f"the scheduler's configuration has no usable {self.key}, which such jobs need"
        shown = f"{self.key}: {self.value}" if self.value else self.key
        change = f"write {shown} into spec.initParams of SchedulingSettings, or into init-params of Volcano's ConfigMap"
        return Told(state, change, Remedy(Step.SET_PARAMETER, values={self.key: self.value}))


class CutByLayoutsOnly(NamedTuple):
    """The job asks for AI cores, which are cut on demand, but the scheduler's configuration lets layouts alone cut."""

    resource: str
    key: str

    def told(self) -> Told:
        """A layout's vNPU, or the other setting, which people choose for all jobs."""
        state = f"the job asks for {self.resource}, but with {self.key}: true no vNPU is cut on demand"
        change = (
            f'ask for a vNPU that a VNPULayout cuts, or write {self.key}: "false" into spec.initParams of '
            "SchedulingSettings, or into init-params of Volcano's ConfigMap"
        )
        return Told(state, change, Remedy(Step.SET_PARAMETER, values={self.key: "false"}))


class NoDevices(NamedTuple):
    """A node publishes no devices for resource claims."""

    node: str

    def told(self) -> Told:
        """Its agent publishes them."""
        state = f"node {self.node} publishes no devices for resource claims"
        change = f"run belay agent with its DRA driver on {self.node}, and see its ResourceSlice"
        return Told(state, change, Remedy(Step.REPORT, self.node))


class TooManyVolumes(NamedTuple):
    """A pod mounts more volumes of a driver than a node can have attached, with no other pod there."""

    driver: str
    wanted: int
    most: int

    def told(self) -> Told:
        """Fewer volumes in one pod."""
        state = f"a pod mounts {self.wanted} volumes of driver {self.driver}, and a node can have {self.most}"
        change = f"mount no more than {self.most} of driver {self.driver} in a pod, instead of {self.wanted}"
        return Told(state, change, Remedy(Step.ASK_LESS, values={"volumes": str(self.most)}))


class UnsuitableDevices(NamedTuple):
    """No devices of a node suit a resource claim, not even if all were free."""

    node: str
    claim: str

    def told(self) -> Told:
        """Another claim; of other nodes nothing is said."""
        state = f"node {self.node} has no devices that suit resource claim {self.claim}, free or in use"
        change = (
            f"correct the count and selectors of resource claim {self.claim}: no devices of {self.node} suit it, "
            "free or in use"
        )
        return Told(state, change, Remedy(Step.NEW_CLAIM, self.node, self.claim))


Cause = (
    CannotBeCut
    | CoresDisagree
    | IllegalCores
    | IllegalSize
    | NamespaceOfSystem
    | NotForCores
    | NumberWanted
    | UnequalPods
    | CutByLayoutsOnly
    | NoDevices
    | OddTotal
    | OnePodOnly
    | OtherBlocks
    | ParameterMissing
    | SeveralResources
    | SeveralVNPUs
    | TooManyVolumes
    | UnknownResource
    | UnknownAccelerator
    | PolicyNeeded
    | UnknownLabel
    | UnlabelledInTree
    | UnsuitableDevices
)


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
