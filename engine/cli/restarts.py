"""Running pods that keep a pod template which Git has changed, and whether the job would find room with the new one.

Kubernetes, Volcano and MindCluster never restart a running training job for a changed template. It takes effect with
the next restart, which may be a fault at night; so each such job is restarted once on a copy of the world.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from belay.engine.gangs.forming import pending_by_gang
from belay.engine.gangs.grouping import group
from belay.engine.gangs.templates import pod_templates
from belay.engine.model.actions import PatchObject
from belay.engine.model.cluster import Pod
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.jobs import Gang
from belay.engine.model.plan import Plan
from belay.engine.model.rules import RuleKind
from belay.engine.simulate import World
from belay.engine.simulate.objects import applied
from belay.engine.simulate.run import simulate

TRIALS: Final = 8
"""Most jobs that are restarted on a copy; of the others it is only said that they keep their template."""
TRIAL_PASSES: Final = 60
FITS, WAITS, UNSERVED, UNTRIED = "fits", "waits", "unserved", "untried"


class KeptTemplate(msgspec.Struct, frozen=True, rename="camel"):
    """A job whose running pods keep their old template.

    ``next_restart``: ``fits``, ``waits`` (with its reason, message and way out), ``unserved`` (its pods name a
    scheduler that Belay does not serve) or ``untried``.
    """

    kind: str
    namespace: str
    name: str
    next_restart: str
    reason: str = ""
    message: str = ""
    unblock: str | None = None

    @property
    def sentence(self) -> str:
        """What a reviewer has to know."""
        rest = {
            FITS: "the next restart takes the new one, and fits",
            WAITS: "the next restart would not fit",
            UNSERVED: "after the next restart Belay would not schedule it",
            UNTRIED: "the next restart takes the new one",
        }
        return f"running pods keep the old template; {rest[self.next_restart]}"


def changed_templates(first: Plan, world: World) -> set[ObjectKey]:
    """Objects whose pod templates the plan changes; ``world`` is as it was before the plan is carried out."""
    found = set()
    for action in first.actions:
        if not isinstance(action, PatchObject) or action.evidence.rule_kind is not RuleKind.SYNC:
            continue
        key = ObjectKey(action.api_version, action.object_kind, action.namespace, action.name)
        live = world.objects.get(key)
        if live is None:
            continue
        after = applied(live, action.patch)
        if pod_templates(live.get("spec")) != pod_templates(after.get("spec")):
            found.add(key)
    return found


def kept_templates(changed: set[ObjectKey], pods_before: frozenset[str], world: World) -> tuple[KeptTemplate, ...]:
    """The jobs among ``changed`` that still run pods of ``pods_before`` (uids), each restarted on a copy of the end."""
    observed = world.observed()
    gangs, _ = group(observed, world.cache)
    keeping = [
        gang
        for _, gang in sorted(gangs.items())
        if _owner(gang) in changed and any(pod.uid in pods_before for pod in _running(gang, observed.pods))
    ]
    return tuple(_trial(gang, world, number < TRIALS) for number, gang in enumerate(keeping))


def _trial(gang: Gang, world: World, affordable: bool) -> KeptTemplate:
    """Delete the job's pods on a copy and play it until nothing is left to do."""
    if not affordable:
        return KeptTemplate(gang.kind, gang.namespace, gang.name, UNTRIED)

    trial = _copied(world)
    for key in gang.pods:
        namespace, _, name = key.partition("/")
        trial.delete(ObjectKey("v1", "Pod", namespace, name))
    outcome = simulate(trial, [], most=TRIAL_PASSES, rest=2)

    observed = trial.observed()
    gangs, _ = group(observed, trial.cache)
    again = gangs.get(gang.key)
    waiting = pending_by_gang(outcome.last.pending, gangs).get(gang.key)
    if waiting is not None:
        return KeptTemplate(
            gang.kind, gang.namespace, gang.name, WAITS, waiting.reason, waiting.message, waiting.unblock
        )
    unplaced = [pod for pod in _all(again, observed.pods) if not pod.node]
    if unplaced:
        scheduler = unplaced[0].scheduler or "default-scheduler"
        text = f"its pods name the scheduler {scheduler}, which gives chips without Belay's knowledge of faults"
        return KeptTemplate(gang.kind, gang.namespace, gang.name, UNSERVED, "SchedulerNotServed", text)
    return KeptTemplate(gang.kind, gang.namespace, gang.name, FITS)


def _copied(world: World) -> World:
    """A world with the same objects and servers, so that the outcome itself stays as it is."""
    trial = World(world.desired, now=world.now, report_every=world.report_every, kubelets_die=world.kubelets_die)
    trial.populate(copy.deepcopy(list(world.objects.values())))
    trial.uids = world.uids
    for name, server in trial.nodes.items():
        server.silent = world.nodes[name].silent if name in world.nodes else server.silent
    return trial


def _owner(gang: Gang) -> ObjectKey:
    return ObjectKey(gang.api_version, gang.kind, gang.namespace, gang.name)


def _all(gang: Gang | None, pods: Mapping[str, Pod]) -> Sequence[Pod]:
    return [pods[key] for key in (gang.pods if gang is not None else ()) if key in pods]


def _running(gang: Gang, pods: Mapping[str, Pod]) -> Sequence[Pod]:
    return [pod for pod in _all(gang, pods) if pod.node and pod.deleting is None and not pod.finished]
