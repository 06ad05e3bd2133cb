"""What `belay plan` foretells of a change is what the cluster then does; `make soak` plays 10,000 such cases."""

from __future__ import annotations

import pytest

from tests.forecast_cases import case

WRONG_ONCE = (1120, 1444, 2448, 2776, 6508)
"""Nodes reserved for a job that waits long; a pod below a StatefulSet's partition, which keeps the older template."""


@pytest.mark.parametrize("seed", [*range(12), *WRONG_ONCE])
def test_the_forecast_and_the_cluster_agree_on_who_runs_where_who_waits_and_who_went(seed: int) -> None:
    case(seed)
