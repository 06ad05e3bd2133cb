"""What MindCluster's programs answer, state by state: the tables in `tests/peer/`.

A part of `docs/peer.md` is made from them (``make reference``).

A table has states; each has what leads to it (``do``), what MindCluster answers by the place of the answer
(``answers``), and where Belay answers otherwise, with the reason (``differences``). `test_peer_states.py` brings Belay
into each state. Facts of ``elsewhere.yaml`` are no states of one program; each names the test that holds Belay's side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "tests" / "peer"
PAGE: Final = ROOT / "docs" / "peer.md"
BEGINS: Final = "<!-- made by make reference from tests/peer -->\n"
ENDS: Final = "<!-- end of what make reference makes -->\n"
#: An answer that is not there.
ABSENT: Final = "absent"


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where Belay answers otherwise, and why."""

    where: str
    belay: Any
    why: str


class PeerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One state and MindCluster's answers in it."""

    state: str
    answers: dict[str, Any]
    do: dict[str, Any] = {}
    differences: tuple[Difference, ...] = ()

    @property
    def expected(self) -> dict[str, Any]:
        """Belay's answers."""
        return {**self.answers, **{one.where: one.belay for one in self.differences}}


class PeerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The states of one program or product. ``part`` names the runner, ``product`` the server model of an agent's,
    ``machine`` what the driver says of it beyond the product: its place in a super pod, its card."""

    title: str
    part: str
    sources: str
    states: tuple[PeerState, ...]
    product: str = ""
    machine: dict[str, Any] = {}

    def answers(self, number: int) -> dict[str, Any]:
        """MindCluster's answers in a state: those of an agent's table are changes of the first state's."""
        own = self.states[number].answers
        return {**self.states[0].answers, **own} if self.product else own


class PeerFact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A difference that is no state of one program."""

    what: str
    mindcluster: str
    belay: str
    why: str
    test: str


def tables() -> dict[str, PeerTable]:
    """Every table by its file's name."""
    files = sorted(file for file in FOLDER.glob("*.yaml") if file.name != "elsewhere.yaml")
    return {file.stem: msgspec.convert(_read(file), PeerTable) for file in files}


def facts() -> tuple[PeerFact, ...]:
    """The differences of `elsewhere.yaml`."""
    return msgspec.convert(_read(FOLDER / "elsewhere.yaml"), tuple[PeerFact, ...])


def _read(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)


def wrong(table: PeerTable, number: int, found: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where Belay's answers are not those that the table expects: place → (expected, found).

    An agent's answers are compared as a whole, those of other parts where the table names them.
    """
    state = table.states[number]
    expected = {**table.answers(number), **{one.where: one.belay for one in _differences(table, number)}}
    places = expected.keys() | found.keys() if table.product else expected.keys()
    rows = {place: (expected.get(place, ABSENT), found.get(place, ABSENT)) for place in sorted(places)}
    assert state.answers or not table.product or number, "a state says what changes"
    return {place: row for place, row in rows.items() if row[0] != row[1]}


def compare(table: PeerTable, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Assert that Belay's answers, by state, are those that the table expects."""
    rows = {state.state: number for number, state in enumerate(table.states)}
    assert len(rows) == len(table.states) and rows.keys() == found.keys()
    lines = []
    for name, number in rows.items():
        for place, (expected, there) in wrong(table, number, found[name]).items():
            lines.append(f"{name}: {place}: expected {expected!r}, found {there!r}")
    assert not lines, "\n".join(lines)


def _differences(table: PeerTable, number: int) -> tuple[Difference, ...]:
    """A state's own differences; an agent's first ones hold where a later state does not change the answer."""
    own = table.states[number].differences
    if not table.product or not number:
        return own
    changed = table.states[number].answers.keys() | {one.where for one in own}
    return (*own, *(one for one in table.states[0].differences if one.where not in changed))


def section() -> str:
    """The part of the page between the marks."""
    return "".join([BEGINS, *_lines(), "\n", ENDS])


def _lines() -> Iterator[str]:
    found = tables()
    states = sum(len(table.states) for table in found.values())
    yield (
        f"\nThe answers of MindCluster's programs in {states} states are tables in `tests/peer/`; "
        "`make test` brings Belay into each state\n(`test_peer_states.py`). Every place where it answers otherwise:\n"
    )
    for table in found.values():
        differing = [state for state in table.states if state.differences]
        yield f"\n### {table.title}\n\n{len(table.states)} states, {len(differing)} with a difference.\n"
        if differing:
            yield "\n| state | MindCluster | Belay | why |\n|---|---|---|---|\n"
        for number, state in enumerate(table.states):
            if state.differences:
                yield _row(state, table.answers(number))
    yield "\n### Other differences\n\n| what | MindCluster | Belay | why | tested in `tests/` |\n"
    yield "|---|---|---|---|---|\n"
    for fact in facts():
        file = fact.test.partition("::")[0]
        yield f"| {fact.what} | {fact.mindcluster} | {fact.belay} | {fact.why} | `{file}` |\n"


def _row(state: PeerState, theirs: Mapping[str, Any]) -> str:
    """The differences of a state as one row of a table."""
    there = [f"{one.where}: {_cell(theirs[one.where])}" for one in state.differences if one.where in theirs]
    here = [f"{one.where}: {_cell(one.belay)}" for one in state.differences if one.belay != ABSENT]
    reasons = dict.fromkeys(one.why for one in state.differences)
    return f"| {state.state} | {'; '.join(there) or '–'} | {'; '.join(here) or '–'} | {'; '.join(reasons)} |\n"


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"`{text}`" if text and "|" not in text and "`" not in text else (text.replace("|", "\\|") or "empty")


def page() -> str:
    """The whole page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    return before + section() + after


def write() -> None:
    """Write the page again."""
    PAGE.write_text(page(), encoding="utf-8")
