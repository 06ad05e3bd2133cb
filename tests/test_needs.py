"""A test whose needs are not met is skipped on a laptop only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import control_planes, needs
from tests.runtime_host import possible


def test_without_a_control_plane_and_outside_of_ci_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="runc is missing"):
        needs.lacking("runc is missing")
    with pytest.raises(pytest.skip.Exception, match="KUBEBUILDER_ASSETS is not set"):
        needs.assets("etcd")


@pytest.mark.parametrize("variable", ["KUBEBUILDER_ASSETS", "CI"])
def test_where_one_is_offered_and_in_ci_it_fails(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(variable, "/assets")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert possible() == "", "tests on hosts of their own run, and fail by what they lack"
    with pytest.raises(pytest.fail.Exception, match="runc is missing"):
        needs.lacking("runc is missing")


def test_a_control_plane_without_a_program_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    (tmp_path / "etcd").touch(0o755)
    assert needs.assets("etcd") == tmp_path
    with pytest.raises(pytest.fail.Exception, match="holds no kubelet, kubectl"):
        needs.assets("etcd", "kubelet", "kubectl")


def test_the_lane_of_a_second_control_plane_holds_every_test_that_starts_one() -> None:
    found = {path.name for path in control_planes.files()}
    assert {"test_admission.py", "test_running.py", "test_node.py", "test_chain.py", "test_volumes_real.py"} <= found
    assert "test_cli.py" not in found and len(found) < 40, "a lane of minutes"
