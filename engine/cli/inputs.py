"""The inputs of the verbs that read a cluster: its objects, the time, and the plan made of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from belay.engine.cli.progress import progress

if TYPE_CHECKING:
    from belay.engine.cli.counted_chips import CountedChips
    from belay.engine.cli.measurements import Measured
    from belay.engine.cli.published import PublishedCluster
    from belay.engine.cli.selection import Answer
    from belay.engine.documents import Desired
    from belay.engine.kube import Kube, Lister
    from belay.engine.model.cluster import Observed
    from belay.engine.model.plan import Plan

LIVE = "live"
_SHOWN = 5


class PlannedCluster(NamedTuple):
    """A cluster read once: the plan of one pass, the snapshot that it was made from, and the desired state."""

    plan: Plan
    observed: Observed
    desired: Desired
    note: str = ""
    """Why no pass comes; empty while they come."""

    @property
    def now(self) -> float:
        """The time that was planned for, in Unix seconds."""
        return self.plan.now

    def answer(self, what: str) -> Answer:
        """The rows of a kind of `belay get`."""
        from belay.engine.cli import answers, records

        if what in answers.GET:
            return answers.GET[what](self.plan, self.observed)
        return records.RECORDS[what](self.plan, self.observed, self.desired)

    @property
    def chip_uses(self) -> dict[str, CountedChips]:
        """By node, how many of its chips are in use, free and out of service."""
        from belay.engine.cli.answers import planned_use

        return planned_use(self.plan, self.observed)

    @property
    def job_of(self) -> dict[str, str]:
        """By ``namespace/pod`` its job."""
        from belay.engine.gangs.grouping import group

        return dict(group(self.observed)[1])

    def readings(self, places: Sequence[str]) -> Measured:
        """Return what chips measure, read from these places.

        Raises:
            InputError: a place cannot be read.
        """
        from belay.engine.cli.measurements import measured

        addresses = {node.internal_ip: name for name, node in self.observed.nodes.items() if node.internal_ip}
        addresses |= {name: name for name in self.observed.nodes}
        return measured(places, addresses) if places else {}


def plan_cluster(
    desired: str | None,
    policies: Sequence[str],
    cluster: str,
    now: str | None,
    kubeconfig: str | None,
    about: str = "",
    context: str | None = None,
) -> PlannedCluster:
    """Read a cluster or a file and plan one pass; ``about`` names the job or pod whose pending reason is wanted.

    Raises:
        BelayError: an input is not usable, or the cluster does not answer.
    """
    from belay.engine.replay.offline import plan_offline

    items, clock, now = cluster_items(cluster, now, kubeconfig, context)
    live = cluster == LIVE
    with progress("planning", plain=False):
        return PlannedCluster(
            *plan_offline(items, tree=desired, overlays=policies, now=now, clock=clock, live=live, about=about)
        )


def published_cluster(what: str, inputs: Mapping[str, Any]) -> PublishedCluster | None:
    """What the engine published of a kind of the live cluster; None where only a plan can answer: none is published, or
    in part only, or no pass comes.

    Raises:
        BelayError: the cluster does not answer.
    """
    from functools import partial

    from belay.engine.kube import ask_once

    return ask_once(inputs["kubeconfig"], partial(read_published, what), context=inputs["context"])


async def read_published(what: str, kube: Lister) -> PublishedCluster | None:
    """The same over a connection."""
    from belay.engine.cli.published import BESIDES, PublishedCluster, selector
    from belay.engine.kube import CONFIGMAP
    from belay.engine.wire import names

    items = (await kube.list(CONFIGMAP, names.SYSTEM, selector(what))).items
    for namespace, labels in BESIDES.get(what, ()):
        items += (await kube.list(CONFIGMAP, namespace, labels)).items
    found = PublishedCluster(items, time.time())
    return found if found.current else None


def asks_of_now(inputs: Mapping[str, Any]) -> bool:
    """Whether the live cluster as it is now is asked about, with nothing laid over it."""
    return inputs["cluster"] == LIVE and not (inputs["desired"] or inputs["policies"] or inputs["now"])


def cluster_planner(inputs: Mapping[str, Any]) -> Callable[[Kube], Awaitable[PlannedCluster]]:
    """Return a function for ``-w`` that reads the live cluster and plans one pass at each call.

    Raises:
        InputError: the inputs name a file, which does not change, or a fixed time.
    """
    from belay.engine.errors import InputError
    from belay.engine.model.times import rfc3339
    from belay.engine.observe.resources import fetch
    from belay.engine.replay.offline import plan_offline

    if inputs["cluster"] != LIVE:
        raise InputError("a file does not change", where="-w", hint="Leave --cluster out to watch the live cluster.")
    if inputs["now"] is not None:
        raise InputError("time goes on", where="-w", hint="Leave --now out.")

    async def read(kube: Kube) -> PlannedCluster:
        items, clock = await fetch(kube), time.time()
        return PlannedCluster(
            *plan_offline(
                items, tree=inputs["desired"], overlays=inputs["policies"], now=rfc3339(clock), clock=clock, live=True
            ),
            missing_pass_note(items, clock),
        )

    return read


def cluster_items(
    cluster: str, now: str | None, kubeconfig: str | None, context: str | None = None
) -> tuple[list[dict[str, Any]], float, str | None]:
    """The objects, the clock, and the time to plan for (None: the newest report's)."""
    if cluster == LIVE:
        from belay.engine.cli.output import plain
        from belay.engine.model.times import rfc3339
        from belay.engine.observe.live import read_live

        with progress("reading the cluster", plain=False):
            items, clock = read_live(kubeconfig, context), time.time()
        if note := missing_pass_note(items, clock):
            click.echo(plain(note), err=True)
        return items, clock, now or rfc3339(clock)
    from belay.engine.replay.cluster_file import read_cluster

    with progress(f"reading {cluster}", plain=False):
        return read_cluster(cluster), time.time(), now


def missing_pass_note(items: Sequence[Mapping[str, Any]], now: float) -> str:
    """What to know before reading an answer while no pass comes; empty while passes do."""
    from belay.engine.model.freshness import missing_pass
    from belay.engine.wire import names, passinfo

    for item in items:
        metadata = item.get("metadata") or {}
        if metadata.get("namespace") != names.SYSTEM or str(metadata.get("name")).split(".")[0] != names.PASS:
            continue
        if text := missing_pass(passinfo.parse(item), now):
            return f"{text}\nWhat follows is what a pass would decide now; none has ordered or done it."
    return ""


def left_out(plan: Plan, items: Sequence[Mapping[str, Any]], cluster: str) -> str:
    """A note on objects that the plan creates, although pods of them run: the file does not hold them. Empty: none."""
    from belay.engine.model.actions import CreateObject
    from belay.engine.model.diagnostics import ObjectKey
    from belay.engine.observe.observed import key_of
    from belay.engine.simulate.owners import absent_owners

    created = {
        ObjectKey(a.api_version, a.object_kind, a.namespace, a.name)
        for a in plan.actions
        if isinstance(a, CreateObject)
    }
    if cluster == LIVE or not created:
        return ""
    found = sorted(created & absent_owners({key_of(item): item for item in items}).keys())
    if not found:
        return ""
    shown = ", ".join(f"{key.kind}/{key.namespace}/{key.name}" for key in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    kinds = ",".join(sorted({f"{key.kind.lower()}s" for key in found}))
    return f"{cluster} does not hold {shown}{more}, although pods of them run: have `kubectl get` list {kinds} too"
