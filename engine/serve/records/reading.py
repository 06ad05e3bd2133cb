"""What the engine's status says of the cluster at a moment, as the history needs it.

The status is durable and carries its own times (recoveries, lines about jobs, faults, commits), so a server that was
away for a while still learns of them. What an editor by hand broke counts as empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from belay.engine.model.costs import RecoveryLevel
from belay.engine.model.times import parse_rfc3339
from belay.engine.model.wording import counted
from belay.engine.serve.console.layout import map_parts, nodes_of
from belay.engine.serve.console.texts import decoded, line, mapping, name, number, numbers, rows, words
from belay.engine.status.status_reader import read_status
from belay.engine.wire import clustermap, history, names, revisionlog, sync
from belay.engine.wire.errors import WireError

Data = Mapping[str, str]
T = TypeVar("T")
MOST_FAULTS: Final = 20_000


class SeenRecovery(msgspec.Struct, frozen=True):
    """One recovery of a job; ``back`` is 0 while it is under way, ``cost`` then too. ``chips`` are those that make no
    progress meanwhile.
    """

    at: int
    seen: int
    back: int
    level: str
    reason: str
    codes: tuple[str, ...]
    chips: int
    cost: int


class SeenJob(msgspec.Struct, frozen=True):
    """One job. ``holdings`` are (pod, node, chips); ``since`` is when it was made (0: unknown); ``lines`` are the
    newest lines of its story with their times; ``former`` are the last nodes of its ranks while it holds no chips.
    """

    key: str
    namespace: str
    name: str
    phase: str
    queue: str
    person: str
    wanted: int
    since: int
    reason: str
    message: str
    holdings: tuple[tuple[str, str, tuple[str, ...]], ...]
    recoveries: tuple[SeenRecovery, ...]
    lines: tuple[tuple[int, str], ...]
    way_out: str = ""
    former: tuple[str, ...] = ()

    @property
    def chips(self) -> int:
        """How many chips it holds now."""
        return sum(len(chips) for _, _, chips in self.holdings)


class SeenFault(msgspec.Struct, frozen=True):
    """A fault code on a chip (-1: on the node)."""

    node: str
    chip: int
    code: str
    level: str
    since: int


class SeenHolder(msgspec.Struct, frozen=True):
    """What keeps a chip (-1: its node) out of service."""

    node: str
    chip: int
    kind: str
    by: str


class SeenRevision(msgspec.Struct, frozen=True):
    """An accepted revision."""

    revision: str
    at: int
    author: str
    subject: str
    signer: str
    verified: str


class SeenCluster(msgspec.Struct, frozen=True):
    """One moment. ``refused`` is the newest revision where nothing of it came into force, with the reason;
    ``held_deletion`` the digest of a deletion that waits for a person, with what it says.
    """

    jobs: Mapping[str, SeenJob] = {}
    faults: tuple[SeenFault, ...] = ()
    holders: tuple[SeenHolder, ...] = ()
    pools: Mapping[str, str] = {}
    revisions: tuple[SeenRevision, ...] = ()
    applied: str = ""
    refused: tuple[str, str] = ("", "")
    held_deletion: tuple[str, str] = ("", "")

    @property
    def newest(self) -> SeenRevision | None:
        """The revision that was accepted last."""
        return self.revisions[-1] if self.revisions else None


class StatusReading:
    """Reads moments; what did not change since the last one is not read again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Data, object]] = {}
        self._kept: dict[str, tuple[Data, object]] = {}

    def read(self, found: Mapping[str, Data]) -> SeenCluster:
        """The moment that these ConfigMaps (name → data) show."""
        self._kept = {}
        jobs = {}
        for key, data in found.items():
            if key.startswith(names.JOB_PREFIX):
                job = self._once(key, data, _job)
                jobs[job.key] = job

        faults: list[SeenFault] = []
        holders: list[SeenHolder] = []
        for part, data in map_parts(found, names.CHIPS_PREFIX).items():
            faults += self._once(f"{part} faults", data, _faults)
            holders += self._once(f"{part} holders", data, _holders)

        revisions: list[SeenRevision] = []
        for key, data in found.items():
            if key.split(".")[0] == names.REVISIONS:
                revisions += self._once(key, data, _revisions)

        pools: dict[str, str] = {}
        # of a node that two parts have, the first one counts, as in the console's layout
        for part, data in reversed(map_parts(found).items()):
            pools |= self._once(part, data, _pools)

        published = found.get(names.SYNC, {})
        self._known = self._kept
        return SeenCluster(
            jobs=jobs,
            faults=tuple(faults[:MOST_FAULTS]),
            holders=tuple(holders[:MOST_FAULTS]),
            pools=pools,
            revisions=tuple(sorted(revisions, key=lambda one: one.at)),
            applied=line(published.get(sync.APPLIED), 64),
            refused=_refused(published),
            held_deletion=_held_deletion(published),
        )

    def _once(self, key: str, data: Data, parse: Callable[[str, Data], T]) -> T:
        known = self._known.get(key)
        if known is not None and (known[0] is data or known[0] == data):
            self._kept[key] = known
            return known[1]  # type: ignore[return-value]  # what this parser made of the same data
        made = parse(key, data)
        self._kept[key] = (data, made)
        return made


def _job(key: str, data: Data) -> SeenJob:
    status = mapping(decoded(data.get(history.JOB_STATUS_KEY)))
    job = name(data.get(history.JOB_NAME_KEY) or key.removeprefix(names.JOB_PREFIX))
    pending = mapping(status.get("pending"))
    requests = numbers(status.get("requests"))
    holdings = []
    for pod, place in mapping(status.get("placement")).items():
        place = mapping(place)
        chips = tuple(words(place.get("chips"), 64))
        if chips and place.get("phase") not in ("Succeeded", "Failed"):
            holdings.append((name(pod), name(place.get("node")), chips))

    listed = status.get("recoveries")
    return SeenJob(
        key=job,
        namespace=job.partition("/")[0],
        name=job.rpartition("/")[2],
        phase=line(data.get(history.JOB_PHASE_KEY) or "Unknown", 32),
        queue=name(status.get("queue")),
        person=line(status.get("user"), 253),
        wanted=min(10**9, int(sum(requests.values()))),
        since=moment(status.get("since")),
        reason=line(pending.get("reason"), 120),
        message=line(pending.get("message")),
        holdings=tuple(sorted(holdings)),
        recoveries=tuple(map(_recovery, listed if isinstance(listed, list) else ())),
        lines=_lines(status.get("history")),
        way_out=line(pending.get("unblock")),
        former=() if holdings else _former(data),
    )


def _pools(_: str, data: Data) -> dict[str, str]:
    """The pool of each node of one part of the map."""
    return {node.name: node.pool for node in nodes_of(data.get(clustermap.NODES_KEY, ""))}


def _former(data: Data) -> tuple[str, ...]:
    """The nodes where a job's ranks were last, by the engine's memory of it."""
    memory = mapping(decoded(data.get(history.JOB_KEY)))
    return tuple(sorted({name(node) for node in mapping(memory.get("nodes")).values()}))


def _lines(value: Any) -> tuple[tuple[int, str], ...]:
    listed = [mapping(one) for one in value[:64]] if isinstance(value, list) else []
    return tuple((moment(one.get("time")), line(one.get("what"))) for one in listed if moment(one.get("time")))


def _recovery(value: Any) -> SeenRecovery:
    one = mapping(value)
    lost = mapping(one.get("lost"))
    stages = one.get("stages") if isinstance(one.get("stages"), list) else []
    times = {str(mapping(stage).get("stage")): moment(mapping(stage).get("time")) for stage in stages or ()}
    chips = whole(one.get("chips"))
    level = line(one.get("level"), 40)
    # while a job trains on without its hit part, only that part is lost
    stopped = whole(one.get("hitChips")) if level == RecoveryLevel.SHRINK else chips
    return SeenRecovery(
        at=moment(one.get("time")),
        seen=times.get("seen", 0),
        back=times.get("resumed", 0) if one.get("actual") else 0,
        level=level,
        reason=line(one.get("reason"), 120),
        codes=tuple(words(one.get("codes"))),
        chips=stopped,
        cost=whole(lost.get("chipSeconds")),
    )


def _faults(_: str, data: Data) -> list[SeenFault]:
    found = []
    for row in rows(data.get(clustermap.FAULTS_KEY)):
        chip = number(row.get("chip"))
        found.append(
            SeenFault(
                node=name(row.get("node")),
                chip=-1 if chip is None else whole(chip),
                code=line(row.get("code"), 120),
                level=line(row.get("level"), 64),
                since=moment(row.get("since")),
            )
        )
    return found


def _holders(_: str, data: Data) -> list[SeenHolder]:
    found = []
    for row in rows(data.get(clustermap.HELD_KEY)):
        chip = number(row.get("chip"))
        found.append(
            SeenHolder(
                node=name(row.get("node")),
                chip=-1 if chip is None else whole(chip),
                kind=line(row.get("kind"), 32),
                by=line(row.get("by")),
            )
        )
    return found


def _revisions(_: str, data: Data) -> list[SeenRevision]:
    try:
        entries = revisionlog.parse({"data": dict(data)}).entries
    except WireError:
        return []
    found = []
    for entry in entries:
        author, subject = entry.said()
        found.append(
            SeenRevision(
                revision=line(entry.revision, 64),
                at=entry.time,
                author=line(author, 200),
                subject=line(subject, 200),
                signer=line(entry.signer, 200),
                verified=line(entry.verified, 16),
            )
        )
    return found


def _refused(published: Data) -> tuple[str, str]:
    """The newest revision where it was tried and nothing of it came into force, and why."""
    attempted = published.get(sync.ATTEMPTED, "")
    if not attempted or attempted == published.get(sync.APPLIED, ""):
        return "", ""
    found = read_status([{"metadata": {"name": names.SYNC}, "data": dict(published)}])
    why = next((str(one.get("message")) for one in found.conditions if one.get("type") == "Ready"), "")
    return line(attempted, 64), line(why)


def _held_deletion(published: Data) -> tuple[str, str]:
    held = mapping(decoded(published.get(sync.HELD_PRUNE)))
    digest = line(held.get("digest"), 80)
    listed = held.get("list")
    count = len(listed) if isinstance(listed, list) else 0
    return (digest, f"the deletion of {counted(count, 'object')} waits for a confirmation") if digest else ("", "")


def moment(text: object) -> int:
    """Unix milliseconds of an RFC 3339 time; 0 for anything else."""
    try:
        return round(parse_rfc3339(text) * 1000) if isinstance(text, str) and text else 0
    except (ValueError, OverflowError):
        return 0


def whole(value: object) -> int:
    """A number as a whole one from 0 to a billion billions; 0 for anything else."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 10**18 else 0


def first_words(values: Sequence[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    rest = len(values) - most
    return ", ".join(values[:most]) + (f" and {rest} more" if rest > 0 else "")
