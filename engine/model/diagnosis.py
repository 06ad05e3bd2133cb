"""Which rank broke a job, from what the logs of its pods say: a pure function of the evidence.

The order of what is believed follows CANN's "HCCL User Guide" (fault locating, notify wait timeout, connection setup):

1. HCCL's own broadcast names the abnormal device (heartbeat lost, error CQE, process stuck).
2. A rank has an error of its own before, or about when, the others began to wait; not one that it lived on with.
3. A rank is silent while others wait: it reports no collective error, or its logs are missing.
4. Ranks wait for each other: the one at the end of the chain that others wait for.
5. All ranks report the same timeout: the last one to report came late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from belay.engine.model.log_evidence import EventRole, LogEvent, PodEvidence
from belay.engine.model.quantities import whole_number

#: Clocks of two nodes of a cluster with NTP differ by less; earlier than another by less counts as about the same time.
SKEW_MS: Final = 3_000
#: Collections of one failure: agents collect when pods fail or are deleted, which a graceful eviction spreads.
EPISODE_MS: Final = 1_800_000
#: Ranks that all began to wait at about the same time; a later one was late itself.
SPREAD_MS: Final = 60_000
#: Priority of causes from which nothing lives on, or that count wherever they are: hardware, memory, disks.
GRAVE: Final = 60
MAX_ROOTS: Final = 8
MAX_EVENTS: Final = 20


class Root(NamedTuple):
    """A rank that is held responsible; ``rank`` is -1 where the pod as a whole is."""

    rank: int
    pod: str
    node: str
    code: str
    at_ms: int


class EventSummary(NamedTuple):
    """One code over all ranks: lines, ranks and the first of them."""

    code: str
    role: EventRole
    lines: int
    pods: int
    first_ms: int
    node: str
    example: str


class Diagnosis(NamedTuple):
    """The answer. ``rule`` is the step that found ``roots``: ``located``, ``firstError``, ``silent``, ``waitedFor``,
    ``late``, or ``unclear``; ``figures`` are the numbers behind it, in words. ``heard``: pods with evidence."""

    rule: str
    roots: tuple[Root, ...]
    figures: str
    events: tuple[EventSummary, ...]
    heard: int
    expected: int
    at_ms: int


class _Seen(NamedTuple):
    pod: PodEvidence
    event: LogEvent


def newest_episode(evidence: Iterable[PodEvidence]) -> list[PodEvidence]:
    """The evidence of the newest failure: of each pod the newest, none much older than the newest of all; by name."""
    newest: dict[str, PodEvidence] = {}
    for one in evidence:
        known = newest.get(one.pod)
        if known is None or (one.collected_ms, one.uid) > (known.collected_ms, known.uid):
            newest[one.pod] = one
    last = max((one.collected_ms for one in newest.values()), default=0)
    return sorted(
        (one for one in newest.values() if one.collected_ms >= last - EPISODE_MS), key=lambda one: (one.pod, one.uid)
    )


def diagnose(
    evidence: Sequence[PodEvidence],
    *,
    expected: Mapping[str, str] | None = None,
    priorities: Mapping[str, int] | None = None,
) -> Diagnosis | None:
    """The root of the newest failure; None where no log says anything.

    Args:
        evidence: of all pods of one job.
        expected: nodes by name of the pods that the job had, where known; those without evidence are silent.
        priorities: of rules by code (0 to 100, 50 without).
    """
    pods = newest_episode(evidence)
    seen = [_Seen(pod, event) for pod in pods for event in pod.events]
    if not any(event.role is not EventRole.SYMPTOM for _, event in seen):
        return None
    weights = priorities or {}
    missing = {pod: node for pod, node in sorted((expected or {}).items()) if pod not in {one.pod for one in pods}}
    waits = [one for one in seen if one.event.role is EventRole.COLLECTIVE]
    causes = [one for one in seen if one.event.role is EventRole.CAUSE]
    begin = min((one.event.first_ms for one in waits if one.event.first_ms), default=0)
    rule, roots = "unclear", list[Root]()
    figures = f"{len({one.pod.pod for one in waits})} pods wait for others, and no log says for which"
    for name, found in (
        ("located", _located(pods, seen)),
        ("firstError", _first_error(_without_tolerated(pods, causes, waits, weights), begin, weights)),
        ("silent", _silent(pods, waits, missing)),
        ("waitedFor", _waited_for(pods, waits)),
        ("late", _late(waits)),
        ("firstError", _first_error(causes, 0, weights)),
    ):
        if found[0]:
            rule, (roots, figures) = name, found
            break
    first = min((one.event.first_ms for one in seen if one.event.first_ms), default=0)
    return Diagnosis(
        rule, tuple(roots[:MAX_ROOTS]), figures, _summaries(seen), len(pods), len(pods) + len(missing), first
    )


def _located(pods: Sequence[PodEvidence], seen: Sequence[_Seen]) -> tuple[list[Root], str]:
    """The devices that HCCL names in every rank's log; the one named by most pods is the root."""
    votes: dict[tuple[str, int], set[str]] = {}
    code: dict[tuple[str, int], LogEvent] = {}
    for pod, event in seen:
        for place in event.places:
            host, _, tail = place.rpartition("/")
            number = whole_number(tail, digits=4)
            if host and number is not None:
                key = host, number
                votes.setdefault(key, set()).add(pod.pod)
                old = code.get(key)
                if old is None or _time(event) < _time(old):
                    code[key] = event
    by_address: dict[str, list[PodEvidence]] = {}
    for one in pods:
        by_address.setdefault(one.host_ip, []).append(one)
    most = max(map(len, votes.values()), default=0)
    roots = []
    for address, device in sorted(key for key, voters in votes.items() if len(voters) == most):
        home = by_address.get(address, ())
        own = next((one for one in home if device in one.chips), home[0] if home else None)
        event = code[address, device]
        rank = _rank_of(own, device) if own is not None else -1
        name, node = (own.pod, own.node) if own is not None else ("", address)
        roots.append(Root(rank, name, node, event.code, event.first_ms))
    return roots, f"{most} of {len(pods)} pods name it in HCCL's record of abnormal devices" if roots else ""


def _without_tolerated(
    pods: Sequence[PodEvidence], causes: Sequence[_Seen], waits: Sequence[_Seen], weights: Mapping[str, int]
) -> list[_Seen]:
    """Drop errors that scripts print and survive.

    These are errors below priority `GRAVE` on ranks that wait for others afterwards, or alike on most pods while others
    wait.
    """
    if not waits:
        return list(causes)
    waiting: dict[str, set[int]] = {}
    for pod, event in waits:
        waiting.setdefault(pod.pod, set()).add(_own_rank(pod, event))
    pods_with: dict[str, set[str]] = {}
    for pod, event in causes:
        pods_with.setdefault(event.code, set()).add(pod.pod)
    many = sum(not pod.bystander for pod in pods)

    def survives(pod: PodEvidence, event: LogEvent) -> bool:
        waiters, own = waiting.get(pod.pod, set()), _own_rank(pod, event)
        return own in waiters if own >= 0 else bool(pod.ranks) and waiters.issuperset(pod.ranks)

    return [
        one
        for one in causes
        if weights.get(one.event.code, 50) >= GRAVE
        or not (survives(*one) or (many >= 4 and len(pods_with[one.event.code]) * 2 > many))
    ]


def _first_error(causes: Sequence[_Seen], begin: int, weights: Mapping[str, int]) -> tuple[list[Root], str]:
    """Own errors before the first collective timeout, or within the skew after it; without ``begin`` all count."""
    timed = [one for one in causes if one.event.first_ms and (not begin or one.event.first_ms <= begin + SKEW_MS)]
    if not timed and not begin:
        timed = list(causes)
    if not timed:
        return [], ""
    first = min(_time(one.event) for one in timed)
    close = [one for one in timed if _time(one.event) <= first + SKEW_MS]
    best = max(weights.get(one.event.code, 50) for one in close)
    chosen = sorted(
        (one for one in close if weights.get(one.event.code, 50) == best),
        key=lambda one: (_time(one.event), one.pod.pod, one.event.rank),
    )
    roots, known = [], set[tuple[str, int]]()
    for pod, event in chosen:
        if (pod.pod, event.rank) not in known:
            known.add((pod.pod, event.rank))
            roots.append(Root(_own_rank(pod, event), pod.pod, pod.node, event.code, event.first_ms))
    later = f", {round((begin - first) / 1000)} s before the first rank stopped waiting" if begin > first else ""
    same = f"; {len(roots)} ranks within {SKEW_MS // 1000} s, which clocks cannot order" if len(roots) > 1 else ""
    return roots, f"its own error came first{later}{same}"


def _silent(pods: Sequence[PodEvidence], waits: Sequence[_Seen], missing: Mapping[str, str]) -> tuple[list[Root], str]:
    """Ranks that report no collective error while most others do; those that others wait for come first."""
    waiting: dict[str, set[int]] = {}
    for pod, event in waits:
        waiting.setdefault(pod.pod, set()).add(_own_rank(pod, event))
    if not waiting:
        return [], ""
    named = {rank for _, event in waits for rank in event.remotes}
    silent: list[Root] = [Root(-1, pod, node, "", 0) for pod, node in missing.items()]
    for pod in (one for one in pods if not one.bystander):
        heard = waiting.get(pod.pod, set())
        quiet = [rank for rank in pod.ranks if rank not in heard]
        if not heard and not pod.ranks:
            silent.append(Root(-1, pod.pod, pod.node, "", 0))
        elif -1 not in heard:
            silent += [Root(rank, pod.pod, pod.node, "", 0) for rank in quiet]
    total = sum(max(len(pod.ranks), 1) for pod in pods if not pod.bystander) + len(missing)
    wanted = [root for root in silent if root.rank in named and root.rank >= 0] or silent
    if not wanted or len(wanted) * 2 > total:
        return [], ""
    many = sum(map(len, waiting.values()))
    return wanted, f"{many} ranks wait for others and {len(silent)} of {total} report nothing"


def _waited_for(pods: Sequence[PodEvidence], waits: Sequence[_Seen]) -> tuple[list[Root], str]:
    """The end of the chains of waiting ranks; a circle has no end, then its most awaited rank counts."""
    waits_for: dict[int, set[int]] = {}
    votes: dict[int, int] = {}
    event_of: dict[int, LogEvent] = {}
    for pod, event in waits:
        own = _own_rank(pod, event)
        for remote in event.remotes:
            if remote != own and own >= 0:
                waits_for.setdefault(own, set()).add(remote)
                votes[remote] = votes.get(remote, 0) + 1
                event_of.setdefault(remote, event)
    if not votes:
        return [], ""
    ends: dict[int, int] = {}
    for start in sorted(waits_for):
        at, passed = start, set[int]()
        while at in waits_for and at not in passed:
            passed.add(at)
            at = max(sorted(waits_for[at]), key=lambda rank: votes.get(rank, 0))
        ends[at] = ends.get(at, 0) + 1
    most = max(ends.values())
    chosen = sorted(rank for rank, count in ends.items() if count == most)
    chosen = [max(chosen, key=lambda rank: (votes.get(rank, 0), -rank))]
    roots = [_root_of_rank(pods, rank, event_of[rank]) for rank in chosen]
    return roots, f"the waits of {most} of {len(waits_for)} ranks end at it"


def _late(waits: Sequence[_Seen]) -> tuple[list[Root], str]:
    """The last rank to time out, where the others began to wait much earlier."""
    timed = sorted(
        (one for one in waits if one.event.first_ms), key=lambda one: (one.event.first_ms, one.pod.pod, one.event.rank)
    )
    if len(timed) < 2:
        return [], ""
    first, last, before = timed[0].event.first_ms, timed[-1], timed[-2].event.first_ms
    if last.event.first_ms - before < SPREAD_MS:
        return [], ""
    root = Root(_own_rank(*last), last.pod.pod, last.pod.node, last.event.code, last.event.first_ms)
    return [root], f"it reported {round((last.event.first_ms - first) / 1000)} s after the first rank"


def _root_of_rank(pods: Sequence[PodEvidence], rank: int, event: LogEvent) -> Root:
    pod = next((one for one in pods if rank in one.ranks), None)
    if pod is None:
        pod = next((one for one in pods if one.pod_rank >= 0 and _holds(one, rank)), None)
    name, node = (pod.pod, pod.node) if pod is not None else ("", "")
    return Root(rank, name, node, event.code, event.first_ms)


def _holds(pod: PodEvidence, rank: int) -> bool:
    """Whether a rank is one of the pod's where pods have equally many chips and ranks follow pods."""
    size = max(len(pod.chips), 1)
    return pod.pod_rank * size <= rank < (pod.pod_rank + 1) * size


def _rank_of(pod: PodEvidence, device: int) -> int:
    """The rank on a device: ranks and chips of a pod are both in order."""
    if device in pod.chips and len(pod.ranks) == len(pod.chips):
        return sorted(pod.ranks)[sorted(pod.chips).index(device)]
    return -1


def _own_rank(pod: PodEvidence, event: LogEvent) -> int:
    if event.rank >= 0:
        return event.rank
    return pod.ranks[0] if len(pod.ranks) == 1 else -1


def _time(event: LogEvent) -> int:
    return event.first_ms or 1 << 62


def _summaries(seen: Sequence[_Seen]) -> tuple[EventSummary, ...]:
    by_code: dict[str, list[_Seen]] = {}
    for one in seen:
        by_code.setdefault(one.event.code, []).append(one)
    found = []
    for code, ones in by_code.items():
        first = min(ones, key=lambda one: (_time(one.event), one.pod.pod, one.event.rank))
        found.append(
            EventSummary(
                code,
                first.event.role,
                sum(one.event.count for one in ones),
                len({one.pod.pod for one in ones}),
                first.event.first_ms,
                first.pod.node,
                first.event.example,
            )
        )
    order = list(EventRole)
    found.sort(key=lambda one: (order.index(one.role), one.first_ms or 1 << 62, one.code))
    return tuple(found[:MAX_EVENTS])
