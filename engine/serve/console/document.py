"""The document of a moment, from the status ConfigMaps; kubectl shows the same.

Nodes and chips are columns, so that 80,000 chips are small. Every text is bounded, every list is cut and says in
``leftOut`` how much is missing. What an editor by hand broke counts as empty.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.states import NodeHealth
from belay.engine.model.times import rfc3339
from belay.engine.serve.console import jobs as job_rows
from belay.engine.serve.console import repository
from belay.engine.serve.console.layout import Layout, map_parts, map_texts
from belay.engine.serve.console.texts import (
    MOST_ROWS,
    decoded,
    first,
    line,
    mapping,
    name,
    number,
    numbers,
    rows,
    words,
)
from belay.engine.wire import clustermap, names
from belay.engine.wire.clustermap import HOLDS, STATES

VERSION: Final = 1
#: Selects the ConfigMaps of ``belay-system`` that a document is made of.
SELECTOR: Final = f"{ABOUT_LABEL} in (sync,pool,job,map,chips,queues,link,revisions)"
MOST_JOBS: Final = 20_000
"""Jobs of a document: twice the nodes of the largest cluster. More are counted."""
COLUMNAR: Final = ("nodes", "chips")
LISTED: Final = ("jobs", "queues", "recoveries", "faults", "holders", "offenders", "links", "boards", "problems")
NODE_STATES: Final = tuple(state.value for state in NodeHealth)
_DIGITS: Final = frozenset("0123456789")

Data = Mapping[str, str]


class StateDocument(msgspec.Struct, frozen=True):
    """One moment: its id, and the sections by name as plain JSON values. ``layout`` says which chip is where; ``text``
    is the sections as JSON where they were encoded already.
    """

    moment: dict[str, Any]
    sections: dict[str, Any]
    layout: Layout
    text: bytes = b""

    @property
    def id(self) -> str:
        """The id of the moment."""
        return str(self.moment["id"])

    def body(self) -> dict[str, Any]:
        """Return the document as plain JSON values: the moment, the words of its columns, and its sections."""
        return {**self._head(), **self.sections}

    def encoded(self) -> bytes:
        """Return the document as JSON text. Of 800,000 chips that is 26 MB, so what is encoded already is used."""
        if not self.text:
            return msgspec.json.encode(self.body())
        return msgspec.json.encode(self._head())[:-1] + b"," + self.text[1:]

    def _head(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "moment": self.moment,
            "states": STATES,
            "holds": HOLDS,
            "nodeStates": NODE_STATES,
        }


class Builder:
    """Makes documents; what did not change since the last one is kept. Not safe for several threads at a time."""

    def __init__(self, shard: str = names.MAIN_SHARD) -> None:
        self._shard = shard
        self._texts: tuple[str, ...] | None = None
        self._layout = Layout(())
        self._jobs = job_rows.JobSlots()
        self._links: dict[str, tuple[Data, list[dict[str, Any]]]] = {}

    def build(
        self, found: Mapping[str, Data], *, time: float, problems: Sequence[str] = (), git: Sequence[Any] = ()
    ) -> StateDocument:
        """The document of these ConfigMaps (name → data) as of ``time`` (Unix seconds).

        ``problems`` says what could not be read; ``git`` are commits that were read from the repository, newest first.
        """
        texts = map_texts(found)
        if texts != self._texts:
            self._texts, self._layout = texts, Layout(texts, self._layout)
        layout, left = self._layout, {}
        if layout.left_out:
            left["nodes"] = layout.left_out
        sync = found.get(names.SYNC, {})
        listed = _of(found, names.JOB_PREFIX)
        if len(listed) > MOST_JOBS:
            left["jobs"] = len(listed) - MOST_JOBS
            listed = dict(islice(listed.items(), MOST_JOBS))
        jobs = self._jobs.read(listed, layout)
        faults, boards, holders = [], [], []
        for data in map_parts(found, names.CHIPS_PREFIX).values():
            faults += [_fault(row) for row in rows(data.get(clustermap.FAULTS_KEY))]
            boards += [_board(row) for row in rows(data.get(clustermap.BOARDS_KEY))]
            holders += [_holder(row) for row in rows(data.get(clustermap.HELD_KEY))]
            for section, missing in numbers(decoded(data.get("leftOut"))).items():
                left[section] = left.get(section, 0) + int(missing)
        faults.sort(key=lambda row: (row["since"] or "", row["node"], row["chip"] or 0, row["code"]), reverse=True)
        links = self._read_links(found)
        recoveries = job_rows.recoveries(jobs)
        sections: dict[str, Any] = {
            "nodes": self._nodes(found, layout),
            "chips": self._chips(found, layout, jobs),
            "jobs": jobs.rows,
            "queues": self._queues(found, jobs),
            "recoveries": recoveries,
            "fleet": job_rows.fleet(recoveries, jobs, time),
            "faults": faults,
            "holders": holders,
            "offenders": _offenders(found),
            "links": links,
            "boards": boards,
            "git": repository.section(sync, _of(found, names.REVISIONS), git, self._shard),
            "problems": [line(problem) for problem in problems],
        }
        for section in LISTED:
            # chips point into the list of jobs, which is cut before it is read
            if section != "jobs":
                sections[section], missing = first(sections[section])
                if missing:
                    left[section] = left.get(section, 0) + missing
        listed_git = sections["git"]
        listed_git["findings"], missing = first(listed_git["findings"], repository.MOST_FINDINGS)
        if missing:
            left["findings"] = missing
        sections["leftOut"] = left
        text = msgspec.json.encode(sections)
        digest = hashlib.sha256(text)
        digest.update(repr(time).encode())
        revision = line(sync.get("appliedRevision"), 64)
        moment = {"id": digest.hexdigest()[:16], "time": rfc3339(time), "shard": self._shard, "revision": revision}
        return StateDocument(moment, sections, layout, text)

    def _nodes(self, found: Mapping[str, Data], layout: Layout) -> dict[str, list[Any]]:
        count = len(layout.names)
        states, levels, messages = ["healthy"] * count, [""] * count, [""] * count
        for data in _of(found, names.POOL_PREFIX).values():
            for row in rows(data.get("nodes.json")):
                at = layout.index.get(str(row.get("node")))
                if at is not None:
                    states[at] = line(row.get("state"), 32)
                    levels[at] = line(row.get("level"), 64)
                    messages[at] = line(", ".join(words(row.get("codes"))))
        return {**layout.columns, "state": states, "level": levels, "message": messages, "cordoned": layout.cordoned}

    def _chips(self, found: Mapping[str, Data], layout: Layout, jobs: job_rows.JobSlots) -> dict[str, list[Any]]:
        states, holds = [0] * layout.chips, [0] * layout.chips
        cuts: list[Any] = [0] * layout.chips
        for data in map_parts(found, names.CHIPS_PREFIX).values():
            _spread(states, mapping(decoded(data.get(clustermap.STATES_KEY))), layout, len(STATES))
            _spread(holds, mapping(decoded(data.get(clustermap.HOLDS_KEY))), layout, len(HOLDS))
            for node, pieces in mapping(decoded(data.get(clustermap.CUTS_KEY))).items():
                for chip, templates in mapping(pieces).items():
                    at = layout.at(node, int(chip)) if chip.isascii() and chip.isdecimal() and len(chip) < 4 else -1
                    if at >= 0:
                        cuts[at] = words(templates, 16)
        return {
            "node": layout.chip_node, "chip": layout.chip_id, "ring": layout.chip_ring, "state": states,
            "job": jobs.of_chips(layout), "hold": holds, "cuts": cuts,
        }  # fmt: skip

    def _queues(self, found: Mapping[str, Data], jobs: job_rows.JobSlots) -> list[dict[str, Any]]:
        listed = [row for data in _of(found, names.QUEUES_PREFIX).values() for row in rows(data.get(names.QUEUES_KEY))]
        return [
            {
                "name": name(row.get("name")),
                "weight": number(row.get("weight")) or 0,
                "state": line(row.get("state"), 32),
                "capacity": numbers(row.get("capacity")),
                "used": numbers(row.get("used")),
                "deserved": numbers(row.get("deserved")),
                "waiting": number(row.get("waiting")) or 0,
                "running": number(row.get("running")) or 0,
                "share": number(row.get("share")) or 0,
            }
            for row in listed
        ]

    def _read_links(self, found: Mapping[str, Data]) -> list[dict[str, Any]]:
        kept = {}
        for key, data in _of(found, names.LINK_PREFIX).items():
            known = self._links.get(key)
            kept[key] = (
                known if known and known[0] is data else (data, _links(key.removeprefix(names.LINK_PREFIX), data))
            )
        self._links = kept
        return [row for _, listed in kept.values() for row in listed]


def _of(found: Mapping[str, Data], prefix: str) -> dict[str, Data]:
    return {key: found[key] for key in sorted(found) if key.startswith(prefix)}


def _spread(column: list[int], by_node: Mapping[str, Any], layout: Layout, codes: int) -> None:
    """Set the codes of a column from one digit per chip id."""
    for node, digits in by_node.items():
        row = layout.index.get(node)
        if row is None or not isinstance(digits, str) or not _DIGITS.issuperset(digits):
            continue
        offset = layout.offsets[row]
        for place, chip in enumerate(layout.ids[row]):
            if chip < len(digits) and (code := ord(digits[chip]) - 48) < codes:
                column[offset + place] = code


def _fault(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "code": line(row.get("code"), 120),
        "level": line(row.get("level"), 64),
        "node": name(row.get("node")),
        "chip": number(row.get("chip")),
        "since": line(row.get("since"), 40) or None,
        "count": number(row.get("count")) or 1,
        "policy": line(row.get("policy")),
        "action": line(row.get("action"), 64),
        "isolated": line(row.get("isolated"), 40) or None,
    }


def _holder(row: Mapping[str, Any]) -> dict[str, Any]:
    """What holds a chip or a whole node (``chip`` None)."""
    return {
        "node": name(row.get("node")),
        "chip": number(row.get("chip")),
        "kind": line(row.get("kind"), 32),
        "by": line(row.get("by"), 400),
        "until": line(row.get("until"), 40) or None,
    }


def _board(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node": name(row.get("node")),
        "device": line(row.get("device"), 64),
        "id": number(row.get("id")),
        "codes": words(row.get("codes")),
        "level": line(row.get("level"), 64),
    }


def _offenders(found: Mapping[str, Data]) -> list[dict[str, Any]]:
    listed = [row for data in _of(found, names.POOL_PREFIX).values() for row in rows(data.get("lemons.json"))]
    return [
        {
            "node": name(row.get("node")),
            "chip": line(row.get("chip"), 64),
            "failures": round(number(row.get("failures")) or 0, 2),  # it decays with every pass
            "threshold": number(row.get("threshold")) or 0,
            "avoided": row.get("avoided") is True,
        }
        for row in listed
    ]


def _links(link: str, data: Data) -> list[dict[str, Any]]:
    keys = ("state", "error", "node", "decode", "prefill", "since")
    return [
        {"link": name(link), "latencyMs": number(row.get("latencyMs"))}
        | {key: line(row.get(key)) or ("" if key != "since" else None) for key in keys}
        for row in rows(data.get("links.json"))[:MOST_ROWS]
    ]


def data_of(config_maps: Iterable[Mapping[str, Any]]) -> dict[str, Data]:
    """Name → data of ConfigMaps of Belay's namespace."""
    found: dict[str, Data] = {}
    for one in config_maps:
        metadata = mapping(one.get("metadata"))
        if metadata.get("namespace", names.SYSTEM) == names.SYSTEM:
            data = mapping(one.get("data"))
            found[str(metadata.get("name", ""))] = {str(k): v for k, v in data.items() if isinstance(v, str)}
    return found
