"""Recovery after recovery of one job: nothing grows and no step is lost; ``make soak-recoveries`` plays 10,000."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs
from tests.training.recoveries import Account, different, hurt

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("training"), pytest.mark.timeout(600)]


def test_thirty_recoveries_lose_no_step_and_what_processes_hold_does_not_grow(tmp_path: Path) -> None:
    needs.torch()
    account = Account()
    # groups stay for some seconds
    hurt(tmp_path / "hurt", account, 30, 400, settled=15, look=5)
    assert account.wrong == [] and account.recoveries == 30
    assert account.last.keys() == {"rank 0", "agent", "supervisor"}
    assert different(tmp_path / "hurt", account.steps, tmp_path / "undisturbed") == []
