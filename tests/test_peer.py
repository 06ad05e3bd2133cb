"""The comparison with MindCluster names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import peer_tables

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/peer.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:[a-z0-9]+/)?test_[a-z0-9_]+\.py)`", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    assert (ROOT / "tests" / name).is_file()


def test_every_row_of_scheduling_has_a_state_and_a_test_or_a_reason() -> None:
    section = PAGE.partition("## Scheduling and jobs")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for what, state, *where in rows:
        assert state.startswith(("works", "other")), f"{what}: {state}"
        assert state.startswith("other") or "test_" in "".join(where), what


def test_the_page_has_the_differences_of_the_tables() -> None:
    assert peer_tables.BEGINS in PAGE and peer_tables.ENDS in PAGE
    assert peer_tables.page() == PAGE, "make reference"


@pytest.mark.parametrize("name", sorted(peer_tables.tables()))
def test_every_difference_of_a_table_is_one_and_has_its_reason(name: str) -> None:
    table = peer_tables.tables()[name]
    assert table.sources and (ROOT / "tests" / "peer" / f"{name}.yaml").is_file()
    for number, state in enumerate(table.states):
        theirs = table.answers(number)
        for one in state.differences:
            assert len(one.why) > 10, f"{state.state}: {one.where}"
            assert one.belay != theirs.get(one.where, peer_tables.ABSENT), f"{state.state}: {one.where} is equal now"


@pytest.mark.parametrize("fact", peer_tables.facts(), ids=lambda fact: fact.what)
def test_every_other_difference_is_held_by_a_test(fact: peer_tables.PeerFact) -> None:
    file, _, name = fact.test.partition("::")
    assert re.search(rf"^ *(async )?def {name}\(", (ROOT / "tests" / file).read_text(encoding="utf-8"), re.M), fact.test
