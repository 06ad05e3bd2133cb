"""What a recorded pass saw and did, in a few kilobytes beside the recording, so that a history need not be derived.

``<recording>.summary.json``; losing it costs only that: everything in it follows from the recording.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from belay.engine.model.actions import BindPod, EvictPod
from belay.engine.model.links import LINKED
from belay.engine.model.plan import Plan

MOST_ROWS: Final = 2_000
MAX_BYTES: Final = 1024 * 1024
SUFFIX: Final = ".summary.json"
RECORDING_SUFFIX: Final = ".belay.json.gz"
"""What the names of recordings end with."""


class PassDigest(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of a pass, and its first rows.

    ``faults`` are (node, chip id or -1, code), ``links`` those that do not hold, as (link, node, state);
    ``fault_count`` counts all faults. ``evictions`` and ``bound`` count pods, ``waiting`` jobs.
    """

    revision: str
    fault_count: int
    evictions: int
    bound: int
    waiting: int
    faults: tuple[tuple[str, int, str], ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()


def digest_of(plan: Plan) -> PassDigest:
    """The figures of a plan."""
    faults = [(chip.node, _number(chip.chip), code) for chip in plan.chips for code in chip.codes]
    faults += [(node.node, -1, code) for node in plan.nodes for code in node.codes]
    links = [(row.link, row.node, row.state) for row in plan.links if row.state != LINKED]
    return PassDigest(
        revision=plan.revision,
        fault_count=len(faults),
        evictions=sum(isinstance(action, EvictPod) for action in plan.actions),
        bound=sum(isinstance(action, BindPod) for action in plan.actions),
        waiting=len(plan.pending),
        faults=tuple(faults[:MOST_ROWS]),
        links=tuple(links[:MOST_ROWS]),
    )


def path_of(recording: Path) -> Path:
    """The file beside a recording."""
    return recording.with_name(recording.name.partition(".")[0] + SUFFIX)


def write_digest(recording: Path, plan: Plan) -> None:
    """Write it beside the recording. Raises OSError."""
    path_of(recording).write_bytes(msgspec.json.encode(digest_of(plan)))


def read_digest(recording: Path) -> PassDigest | None:
    """What stands beside the recording; None without it, or where it cannot be read."""
    try:
        with path_of(recording).open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=PassDigest)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError):
        return None


def _number(chip: str) -> int:
    text = chip.rpartition("-")[2]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else -1
