"""Some of the scripts of ``user_scripts.py``, hurt once each; ``make soak-scripts`` plays all of them, often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs
from tests.training.script_matrix import SCRIPTS
from tests.training.user_scripts import judged

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("training"), pytest.mark.timeout(600)]

SAMPLE = ("fsdp", "fsdp-kept", "zero", "micro-steps", "statistics", "around", "lightning", "outside")

FRAMEWORKS = ("accelerate", "megatron-core", "transformers")


def test_there_are_at_least_thirty_scripts() -> None:
    assert len(SCRIPTS) >= 30
    assert {*SAMPLE, *FRAMEWORKS} <= SCRIPTS.keys()


@pytest.mark.parametrize("name", SAMPLE)
def test_a_user_s_script_ends_bit_equal_or_is_refused(name: str, tmp_path: Path) -> None:
    needs.torch()
    if missing := SCRIPTS[name].missing():
        needs.lacking(f"{missing} is not installed: run make venv-training")
    assert judged(name, SCRIPTS[name], 1, 1, tmp_path).wrong == ""


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_s_sample_ends_bit_equal(name: str, tmp_path: Path) -> None:
    needs.torch()
    if missing := SCRIPTS[name].missing():
        pytest.skip(f"{missing} is not installed: run make venv-frameworks")
    assert judged(name, SCRIPTS[name], 1, 1, tmp_path).wrong == ""
