"""Levels and states stand once in the code, and every decision by them is complete."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from belay.engine.model import levels
from belay.engine.model.levels import (
    CHIP_LEVELS,
    FaultLevel,
    NodeLevel,
    SwitchLevel,
    SwitchTableLevel,
    known,
    node_rank,
    node_status,
    rank,
    reported,
    switch_status,
    worst,
)
from belay.engine.model.states import CONCERNS, IN_SERVICE, OUT_OF_SERVICE, ChipHealth, NodeHealth

ROOT = Path(__file__).parents[1]


def _constants(word_lists: tuple[type, ...]) -> dict[str, list[str]]:
    words = {str(level) for kind in word_lists for level in kind}  # type: ignore[attr-defined]
    found: dict[str, list[str]] = defaultdict(list)
    for folder in ("engine", "agents"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text()
            # most files name no level, and need not be parsed
            for node in ast.walk(ast.parse(text)) if any(word in text for word in words) else ():
                if isinstance(node, ast.Constant) and node.value in words:
                    found[node.value].append(str(file.relative_to(ROOT)))
    return found


def test_each_fault_level_stands_once_in_code() -> None:
    found = _constants((FaultLevel,))
    assert found == {level.value: ["engine/model/levels.py"] for level in FaultLevel}


def test_words_of_the_node_and_switch_tables_stand_once_in_code() -> None:
    found = _constants((NodeLevel, SwitchTableLevel))
    assert all(files == ["engine/model/levels.py"] for files in found.values()), found


def test_levels_order_by_severity_and_unknown_words_count_as_separate() -> None:
    assert [rank(level) for level in CHIP_LEVELS] == list(range(len(FaultLevel)))
    assert rank("Strange") == rank(FaultLevel.SEPARATE) and known("Strange") is FaultLevel.SEPARATE
    assert known("RestartNPU") is FaultLevel.RESTART and worst("RestartNPU", "NormalNPU") == "RestartNPU"
    assert node_rank("Strange") == node_rank("SeparateFault") and node_status("Strange") == "UnHealthy"


def test_a_level_is_its_word_in_text_json_and_dictionaries() -> None:
    level = FaultLevel.PRE_SEPARATE
    assert f"{level}" == str(level) == "PreSeparateNPU" and {"PreSeparateNPU": 1}[level] == 1
    assert sorted([level, "A", "Z"]) == ["A", "PreSeparateNPU", "Z"]


_STATUSES = ("Healthy", "SubHealthy", "UnHealthy", "PreSeparate", "UnHealthy")


@pytest.mark.parametrize(("level", "status"), list(zip(SwitchLevel, _STATUSES, strict=True)))
def test_switch_levels_have_a_node_status(level: SwitchLevel, status: str) -> None:
    assert switch_status(level) == status


def test_every_word_of_the_switch_table_is_reported() -> None:
    assert levels.SWITCH_WORDS.keys() == {level.value for level in SwitchTableLevel}
    assert reported(SwitchTableLevel.RESET) is SwitchLevel.SEPARATE


def test_chip_states_take_work_or_not() -> None:
    assert {"healthy", "sub-healthy", "suspect"} == IN_SERVICE
    assert set(ChipHealth) == OUT_OF_SERVICE | IN_SERVICE
    assert CONCERNS.keys() == {*map(str, ChipHealth), *map(str, NodeHealth)}
