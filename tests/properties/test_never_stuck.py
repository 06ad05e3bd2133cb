"""A chip whose reports are clean comes back, whatever was lost; ``make soak`` runs 100,000 of these histories."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belay.engine.plan.health import chips
from tests.soak.stuck import history


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=0, max_value=2**32))
def test_a_clean_chip_that_no_hold_covers_returns_within_two_report_periods(seed: int) -> None:
    history(seed)


def test_the_histories_find_what_stays_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A duration rule that never lets go is found within a few hundred of them."""
    monkeypatch.setattr(chips, "lingering", lambda seen, rule, now_ms: not seen.present)
    with pytest.raises(AssertionError, match=r"long after every hold's end|nothing holds it"):
        for seed in range(600):
            history(seed)
