"""Faults in the middle of a migration: no step costs chips that the device plugin alone would leave."""

from __future__ import annotations

import pytest

from tests.migration_world import STEPS, history


@pytest.mark.parametrize("seed", range(len(STEPS)), ids=list(STEPS))
def test_no_step_leaves_fewer_free_chips_than_the_device_plugin_alone(seed: int) -> None:
    assert history(seed) > 50
