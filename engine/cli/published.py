"""Answers of `belay get` from what the engine publishes: the status ConfigMaps of ``belay-system``, without a planner.

The rows are those that `belay.engine.cli.answers` makes of a plan. What is published in part only (a list that was cut,
a kind or column that is not in the status) has no answer here, and the caller plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from belay.engine.cli.counted_chips import CountedChips, chip_use, pool_rows
from belay.engine.cli.link_rows import link_rows
from belay.engine.cli.selection import JOB_COLUMNS, JOB_WIDE, Answer
from belay.engine.model.labels import ABOUT_LABEL, HUAWEI_PREFIX, MANAGED_BY
from belay.engine.model.levels import FaultLevel
from belay.engine.model.states import OUT_OF_SERVICE, NodeHealth
from belay.engine.serve.console.layout import Layout, map_parts, map_texts
from belay.engine.serve.console.texts import decoded, mapping, number, rows
from belay.engine.status.status_reader import PublishedStatus, read_status
from belay.engine.wire import clustermap, history, names
from belay.engine.wire.errors import WireError

if TYPE_CHECKING:
    from belay.engine.model.history import JobMemory

#: By kind, which ConfigMaps are about it, beside ``belay-sync`` and ``belay-pass``.
ABOUT: Final[Mapping[str, tuple[str, ...]]] = {
    "nodes": ("pool", "job", "map", "chips"),
    "chips": ("pool", "job", "map", "chips"),
    "pools": ("pool", "job", "map", "chips"),
    "faults": ("pool", "map", "chips"),
    "jobs": ("job",),
    "queues": ("queues",),
    "recoveries": ("job",),
    "revisions": ("revisions",),
    "vnpus": ("map",),
    "links": ("link",),
}
#: By kind, the namespace and the selector of the ConfigMaps that are needed besides: what agents and orders say.
BESIDES: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "vnpus": ((names.NODES, f"{MANAGED_BY}=belay"), (names.SYSTEM, f"{MANAGED_BY}=belay,!{ABOUT_LABEL}")),
}
#: By kind, the columns that only a plan has.
PLANNED_COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "nodes": frozenset({"report"}),
    "chips": frozenset({"faultType", "failures"}),
}
_UNKNOWN: Final = "unknown"
_ENDED: Final = ("Succeeded", "Failed")

Data = Mapping[str, str]


def selector(what: str) -> str:
    """Selects the ConfigMaps that answer for a kind."""
    return f"{ABOUT_LABEL} in ({','.join(('sync', 'pass', *ABOUT[what]))})"


class PublishedCluster:
    """What the engine published, as of its last pass; ``now`` in Unix seconds."""

    note: Final = ""

    def __init__(self, config_maps: Iterable[Mapping[str, Any]], now: float) -> None:
        self.now = now
        self._raw = {str((one.get("metadata") or {}).get("name", "")): one for one in config_maps}
        self._found: dict[str, Data] = {name: mapping(one.get("data")) for name, one in self._raw.items()}
        self._status = read_status(self._raw.values(), now)

    @property
    def current(self) -> bool:
        """Whether passes come, and every list of what was read is whole."""
        cut = any(data.get("leftOut") for name, data in self._found.items() if name != names.SYNC)
        return self._status.found and not self._status.no_pass and bool(self._status.passes) and not cut

    def answer(self, what: str) -> Answer:
        """The rows of a kind."""
        return _ANSWERS[what](self)

    # what the parts say

    @cached_property
    def layout(self) -> Layout:
        """Which nodes and chips there are."""
        return Layout(map_texts(self._found))

    @cached_property
    def states(self) -> dict[str, str]:
        """By node one digit per chip id; nodes whose chips are all healthy are left out."""
        return {
            node: digits
            for part in self._parts()
            for node, digits in mapping(decoded(part.get(clustermap.STATES_KEY))).items()
            if isinstance(digits, str) and digits.isascii() and digits.isdecimal()
        }

    @cached_property
    def held(self) -> dict[tuple[str, int | None], list[str]]:
        """By node and chip (None: the node), by what it is held."""
        found: dict[tuple[str, int | None], list[str]] = {}
        for row in self._rows(clustermap.HELD_KEY):
            from belay.engine.cli.holds import held_sentence

            node, kind, rule, by, until = (str(row.get(key) or "") for key in ("node", "kind", "rule", "by", "until"))
            found.setdefault((node, _chip(row)), []).append(held_sentence(node, kind, rule, by, until))
        return found

    @cached_property
    def faults(self) -> list[dict[str, Any]]:
        """Every fault of a chip or node."""
        return list(self._rows(clustermap.FAULTS_KEY))

    @cached_property
    def users(self) -> dict[tuple[str, int], str]:
        """By node and chip id, the pod that holds it."""
        found: dict[tuple[str, int], str] = {}
        for key, status in self.jobs.items():
            namespace = key.partition("/")[0]
            for pod, place in sorted(mapping(status.get("placement")).items()):
                if mapping(place).get("phase") in _ENDED:
                    continue
                for chip in mapping(place).get("chips") or ():
                    index = str(chip).rpartition("-")[2]
                    if index.isascii() and index.isdecimal():
                        found.setdefault((str(place.get("node")), int(index)), f"{namespace}/{pod}")
        return found

    @cached_property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """The status of every job, by ``namespace/Kind/name``."""
        found = {}
        for name, data in sorted(self._found.items()):
            if name.startswith(names.JOB_PREFIX):
                key = str(data.get(history.JOB_NAME_KEY) or name.removeprefix(names.JOB_PREFIX))
                phase = str(data.get(history.JOB_PHASE_KEY, "Unknown"))
                found[key] = {**mapping(decoded(data.get(history.JOB_STATUS_KEY))), "phase": phase}
        return {key: found[key] for key in sorted(found) if key.count("/") >= 2}

    @cached_property
    def job_of(self) -> dict[str, str]:
        """By ``namespace/pod`` its job."""
        return {
            f"{key.partition('/')[0]}/{pod}": key
            for key, status in self.jobs.items()
            for pod in mapping(status.get("placement"))
        }

    @cached_property
    def failures(self) -> dict[str, str]:
        """What is said of jobs that have failed."""
        return {job.name: str(job.failure.get("message") or "") for job in self._status.jobs if job.failure}

    @cached_property
    def ill(self) -> dict[str, dict[str, Any]]:
        """The nodes that are not healthy."""
        return {str(row.get("node")): row for pool in self._status.pools for row in pool.nodes}

    @property
    def published(self) -> PublishedStatus:
        """The status as `belay status` shows it."""
        return self._status

    def memories(self) -> dict[str, JobMemory]:
        """What the planner remembers of jobs; what cannot be read is left out, as the next pass leaves it."""
        found = {}
        for name, one in self._raw.items():
            if name.startswith(names.JOB_PREFIX):
                try:
                    known = history.parse_job(one)
                except WireError:
                    continue
                if known is not None:
                    found[known[0]] = known[1]
        return found

    def of(self, prefix: str) -> dict[str, Mapping[str, Any]]:
        """The ConfigMaps whose name begins so."""
        return {name: one for name, one in self._raw.items() if name.startswith(prefix)}

    @cached_property
    def chip_uses(self) -> dict[str, CountedChips]:
        """By node, how many of its chips are in use, free and out of service."""
        used: dict[str, set[int]] = {}
        for node, index in self.users:
            used.setdefault(node, set()).add(index)

        found = {}
        for at, node in enumerate(self.layout.names):
            states = self._chip_states(node)
            found[node] = chip_use(
                len(states),
                used.get(node, set()),
                {index for index, state in states.items() if state in OUT_OF_SERVICE},
                state=self.node_state(node),
                cordoned=bool(self.layout.cordoned[at]),
                closed=self.layout.closed[at],
            )
        return found

    def node_state(self, node: str) -> str:
        """The state of a node."""
        return self.ill.get(node, {}).get("state") or NodeHealth.HEALTHY.value

    def has_report(self, node: str) -> bool:
        """Whether a good report of the node is in force."""
        states = self._chip_states(node)
        return _UNKNOWN not in states.values() and bool(states or self.node_state(node) != NodeHealth.UNKNOWN)

    def _chip_states(self, node: str) -> dict[int, str]:
        digits = self.states.get(node, "")
        return {index: _state(digits, index) for index in self.layout.ids[self.layout.index[node]]}

    def cuts(self) -> Iterable[Any]:
        """vNPUs by node and chip, of each part."""
        return [decoded(part.get(clustermap.CUTS_KEY)) for part in self._parts()]

    def _parts(self) -> Iterable[Data]:
        return map_parts(self._found, names.CHIPS_PREFIX).values()

    def _rows(self, key: str) -> Iterable[dict[str, Any]]:
        return (row for part in self._parts() for row in rows(part.get(key)))


def _state(digits: str, index: int) -> str:
    code = int(digits[index]) if index < len(digits) else 0
    return clustermap.STATES[code] if code < len(clustermap.STATES) else _UNKNOWN


def _chip(row: Mapping[str, Any]) -> int | None:
    index = number(row.get("chip"))
    return None if index is None else int(index)


def _nodes(found: PublishedCluster) -> Answer:
    layout = found.layout
    any_held = any(chip is None for _, chip in found.held)
    shown = []
    for at, node in enumerate(layout.names):
        ill, use = found.ill.get(node, {}), found.chip_uses[node]
        shown.append(
            {
                "node": node,
                "pool": layout.columns["pool"][at],
                "state": found.node_state(node),
                "level": ill.get("level") or FaultLevel.NORMAL.value,
                "cordoned": bool(layout.cordoned[at]),
                "chips": use.chips,
                "used": use.used,
                "free": use.free,
                "unhealthy": use.out if found.has_report(node) else None,
                "codes": list(ill.get("codes") or ()),
                "heldBy": found.held.get((node, None), []),
            }
        )
    held_by = ("heldBy",) if any_held else ()
    columns = ("node", "pool", "state", "cordoned", "level", "chips", "used", "free", "unhealthy", "codes", *held_by)
    return Answer(columns, shown, ("report",))


def _chips(found: PublishedCluster) -> Answer:
    layout = found.layout
    known = {(str(row.get("node")), str(row.get("chip"))): row for one in found.published.pools for row in one.chips}
    seen: dict[tuple[str, int], dict[str, Any]] = {}
    for fault in found.faults:
        if (index := _chip(fault)) is not None:
            row = seen.setdefault((str(fault.get("node")), index), {"level": fault.get("level"), "codes": []})
            row["codes"].append(str(fault.get("code")))
    cuts = {
        (node, int(chip)): pieces
        for part in found.cuts()
        for node, by_chip in mapping(part).items()
        for chip, pieces in mapping(by_chip).items()
        if chip.isascii() and chip.isdecimal()
    }
    shown = []
    for at, node in enumerate(layout.names):
        for index in layout.ids[at]:
            name = f"{layout.columns['prefix'][at]}{index}"
            user = found.users.get((node, index))
            said = known.get((node, name)) or seen.get((node, index)) or {}
            shown.append(
                {
                    "node": node,
                    "chip": name,
                    "state": _state(found.states.get(node, ""), index),
                    "level": said.get("level") or (FaultLevel.NORMAL.value if user else ""),
                    "codes": list(said.get("codes") or ()),
                    "usedBy": user,
                    "vnpus": list(cuts.get((node, index)) or ()),
                    "heldBy": [*found.held.get((node, index), ()), *found.held.get((node, None), ())],
                }
            )
    held_by = ("heldBy",) if found.held else ()
    columns = ("node", "chip", "state", "level", "codes", "usedBy", "vnpus", *held_by)
    return Answer(columns, shown, ("faultType", "failures"))


def _pools(found: PublishedCluster) -> Answer:
    pools = found.layout.columns["pool"]
    names_of = enumerate(found.layout.names)
    return pool_rows((pools[at], found.node_state(node), found.chip_uses[node]) for at, node in names_of)


def _faults(found: PublishedCluster) -> Answer:
    prefix = dict(zip(found.layout.names, found.layout.columns["prefix"], strict=True))
    shown = []
    for row in found.faults:
        node, index = str(row.get("node")), _chip(row)
        chip = "" if index is None else f"{prefix.get(node, '')}{index}"
        shown.append(
            {"node": node, "chip": chip, "code": row.get("code"), "level": row.get("level"),
             "state": row.get("action"), "since": row.get("since")}
        )  # fmt: skip
    shown.sort(key=lambda row: not row["chip"])
    return Answer(("node", "chip", "code", "level", "state", "since"), shown)


def _jobs(found: PublishedCluster) -> Answer:
    shown = []
    for key, status in found.jobs.items():
        namespace, kind, name = key.split("/", 2)
        places = [mapping(place) for place in mapping(status.get("placement")).values()]
        running = sum(place.get("phase") == "Running" for place in places)
        pending = mapping(status.get("pending"))
        waits = f"{pending.get('reason', '')}: {pending.get('message', '')}" if pending else ""
        shown.append(
            {
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "phase": status["phase"],
                "ready": f"{running}/{status.get('wanted', 0)}",
                "chips": sum(int(number(one) or 0) for one in mapping(status.get("requests")).values()),
                "nodes": sorted({str(place.get("node")) for place in places}),
                "queue": status.get("queue"),
                "priority": status.get("priority"),
                "created": status.get("since"),
                "reason": found.failures.get(key) or waits,
            }
        )
    return Answer(JOB_COLUMNS, shown, JOB_WIDE)


def _queues(found: PublishedCluster) -> Answer:
    shown = []
    for data in found.of(names.QUEUES_PREFIX).values():
        for row in rows(mapping(data.get("data")).get("queues.json")):
            shown.append(
                {
                    "queue": row.get("name"),
                    "state": row.get("state"),
                    "weight": row.get("weight"),
                    "priority": row.get("priority"),
                    "declaredBy": row.get("declaredBy"),
                    "capability": _chips_only(row.get("capacity")),
                    "used": _chips_only(row.get("used")),
                    "running": row.get("running"),
                    "waiting": row.get("waiting"),
                    "wanted": _chips_only(row.get("wanted")),
                }
            )
    columns = ("queue", "state", "weight", "capability", "used", "running", "waiting", "wanted")
    return Answer(columns, sorted(shown, key=lambda row: str(row["queue"])), ("priority", "declaredBy"))


def _chips_only(amounts: Any) -> dict[str, Any]:
    return {name: most for name, most in mapping(amounts).items() if name.startswith(HUAWEI_PREFIX)}


def _recoveries(found: PublishedCluster) -> Answer:
    from belay.engine.cli.status_records import recovery_rows

    return recovery_rows(found.memories(), found.now)


def _revisions(found: PublishedCluster) -> Answer:
    from belay.engine.cli.status_records import revision_rows

    return revision_rows(found.of(names.REVISIONS), found.published, found.published.applied)


def _vnpus(found: PublishedCluster) -> Answer:
    from belay.engine.cli.vnpus import published_rows

    prefixes = dict(zip(found.layout.names, found.layout.columns["prefix"], strict=True))
    said = {**found.of(names.REPORT_PREFIX), **found.of(names.ORDERS_PREFIX)}
    return published_rows(said.values(), prefixes)


def _links(found: PublishedCluster) -> Answer:
    """By KVLink, the rows of its ConfigMap, whose name ends with the KVLink's."""
    return link_rows(
        (name.removeprefix(names.LINK_PREFIX), row)
        for name, one in found.of(names.LINK_PREFIX).items()
        for row in rows(mapping(one.get("data")).get("links.json"))
    )


_ANSWERS: Final[Mapping[str, Callable[[PublishedCluster], Answer]]] = {
    "nodes": _nodes,
    "chips": _chips,
    "pools": _pools,
    "faults": _faults,
    "jobs": _jobs,
    "queues": _queues,
    "recoveries": _recoveries,
    "revisions": _revisions,
    "vnpus": _vnpus,
    "links": _links,
}
