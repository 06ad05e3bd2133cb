"""The comparison with MindCluster names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
