"""How a changed template reaches running instances: a few at a time, and never so that a service falls over.

Each role gives up at most ``maxUnavailable`` of its instances, and waits until their successors serve. Roles of a
service advance together, so that the ratio of, say, prefill to decode of one version stays what is declared. Services
of a set change one after the other. Safety budgets count each replaced instance as an eviction.

The infer operator never changes a workload; the rules are those of Deployments and LeaderWorkerSets in Kubernetes
(maxUnavailable, maxSurge, highest index first).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from belay.engine.model.labels import MAX_SURGE, MAX_UNAVAILABLE, ROLLOUT_ANNOTATION, SURGE_INSTANCE
from belay.engine.model.quantities import whole_number
from belay.engine.model.reasons import ActionReason
from belay.engine.model.unstructured import nested_map, string_map
from belay.engine.plan.jobs.inference import labels as names
from belay.engine.plan.jobs.inference.serving import ServingContext, ServingInstance, ServingRole, annotations_of
from belay.engine.plan.jobs.lifecycle import JobObject

RULE: Final = "rolling-update"


@dataclass(slots=True)
class ServiceRollout:
    """The roles of one inference service, of a set or alone; ``limit``: how many services of the set may be down."""

    set_name: str
    index: int
    limit: int
    roles: list[ServingRole]

    @property
    def outdated(self) -> bool:
        """Whether an instance runs an earlier template."""
        return any(role.outdated for role in self.roles)

    @property
    def disrupted(self) -> bool:
        """Whether it lacks an instance."""
        return any(role.ready < role.count for role in self.roles)

    @property
    def begun(self) -> bool:
        """Whether some instances run the new template and some an earlier one."""
        return any(role.outdated and len(role.outdated) < role.count for role in self.roles)


def advance(serving: ServingContext, services: Sequence[ServiceRollout]) -> None:
    """Replace the instances that may be replaced now."""
    by_set: dict[str, list[ServiceRollout]] = {}
    for service in services:
        by_set.setdefault(service.set_name, []).append(service)
    for _, group in sorted(by_set.items()):
        room = group[0].limit - sum(one.disrupted or one.begun for one in group)
        for service in sorted(group, key=lambda one: (not (one.disrupted or one.begun), one.index)):
            if not service.outdated:
                continue
            if not (service.disrupted or service.begun):
                if room <= 0:
                    continue
                room -= 1
            _advance_service(serving, service)


def surge_of(role: ServingRole) -> int:
    """How many instances beyond the declared number the role has while others are replaced."""
    most = limits(role)[1]
    if not most or role.paused:
        return 0
    standing_in = any(is_surge(one) and one.index >= role.count for one in role.instances.values())
    waiting = any(not (one.ready and one.standing) for one in role.declared)
    return most if role.outdated or (standing_in and waiting) else 0


def is_surge(one: ServingInstance) -> bool:
    """Whether the instance only stands in for others."""
    return one.live is not None and SURGE_INSTANCE in string_map(nested_map(one.live, "metadata").get("annotations"))


def limits(role: ServingRole) -> tuple[int, int]:
    """How many instances may be missing, and how many may exist beyond the declared number, during a change."""
    found = annotations_of(role.job)
    surge = amount(found.get(MAX_SURGE), role.count, up=True) or 0
    missing = amount(found.get(MAX_UNAVAILABLE), role.count, up=False)
    return (missing if missing is not None else 1) or (0 if surge else 1), surge


def amount(text: str | None, total: int, *, up: bool) -> int | None:
    """A number, or a percentage of ``total`` rounded as Kubernetes rounds it; None where there is none."""
    text = (text or "").strip()
    number = whole_number(text.removesuffix("%"), digits=5)
    if number is None or not text.endswith("%"):
        return number
    exact = number * total / 100
    return math.ceil(exact) if up else math.floor(exact)


def malformed(one: JobObject) -> Iterable[str]:
    """Annotations of a role, service or set that are not what they must be: a sentence for each."""
    found = annotations_of(one)
    for key in (MAX_UNAVAILABLE, MAX_SURGE):
        if key in found and amount(found[key], 1, up=True) is None:
            yield f"annotation {key} is {found[key]!r:.40}: write a number or a percentage, such as 1 or 25%"
    rollout = found.get(ROLLOUT_ANNOTATION, names.PAUSED)
    if rollout not in (names.PAUSED, names.RUNNING):
        yield f"annotation {ROLLOUT_ANNOTATION} is {rollout!r:.40}: write {names.PAUSED} or {names.RUNNING}"


def _advance_service(serving: ServingContext, service: ServiceRollout) -> None:
    """Replace instances of all roles within their limits, each role no further than the others have come."""
    roles = [role for role in service.roles if role.outdated and not role.paused]
    for role in roles:
        for one in role.outdated:
            if not one.ready:  # it does not serve: nothing is lost
                _replace(serving, role, one)
    moved = True
    while moved:
        moved = False
        for role in roles:
            waiting = [one for one in role.outdated if one.ready]
            if not waiting or role.serving - (role.count - limits(role)[0]) < 1:
                continue
            started = role.count - len(role.outdated)
            behind = (other for other in roles if other is not role and other.outdated)
            if any(started * other.count > _done(other) * role.count for other in behind):
                continue
            _replace(serving, role, max(waiting, key=lambda one: one.index))
            moved = True


def _done(role: ServingRole) -> int:
    """How many instances serve with the template in force."""
    return sum(one.standing and one.current and one.ready for one in role.declared)


def _replace(serving: ServingContext, role: ServingRole, one: ServingInstance) -> None:
    missing, surge = limits(role)
    text = (
        f"{role.job.key}: instance {one.key.name} starts again with the changed template; {role.ready} of {role.count} "
        f"are ready, at most {missing} may be missing" + (f" beside {surge} that stand in" if surge else "")
    )
    serving.remove(role, one, ActionReason.INSTANCE_OUTDATED, text, rule=RULE)
