"""The invariants of the design over random histories of a small cluster; ``make soak`` runs many thousands."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.soak.histories import history


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(min_value=0, max_value=2**32))
def test_every_history_keeps_the_invariants_and_comes_to_rest(seed: int) -> None:
    history(seed)
