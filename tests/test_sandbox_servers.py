"""The servers that a sandbox is asked for, and what another terminal needs to use it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from click.testing import CliRunner

from belay.engine.cli.sandbox import up
from belay.engine.errors import BelayError, InputError
from belay.engine.sandbox import git_repository
from belay.engine.sandbox import up as sandbox_up
from belay.engine.sandbox.folder import DataFolder, running_folder
from belay.engine.sandbox.git_repository import clone_command
from belay.engine.sandbox.host import fleet_nodes
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.sandbox.shapes import shipped_shapes
from belay.engine.sandbox.up import Sandbox, SandboxOptions
from belay.engine.sandbox.world import members


def test_a_mix_of_products_becomes_nodes_in_its_order() -> None:
    servers = (("atlas-800t-a2", 2), ("atlas-300i-duo", 1))
    found = members(SandboxSettings(servers=servers), shipped_shapes())
    assert [node.name for node in found] == ["node-1", "node-2", "node-3"]
    assert [node.shape.resource for node in found] == [
        "huawei.com/Ascend910", "huawei.com/Ascend910", "huawei.com/Ascend310P",
    ]  # fmt: skip
    assert len(members(SandboxSettings(servers=(("atlas-800t-a2", 1000),)), shipped_shapes())) == 1000


def test_agents_find_the_chips_of_the_server_that_they_run_on() -> None:
    """They found those of --product on every node, and labelled a 310P server as one of 910Bs."""
    settings = SandboxSettings(servers=(("atlas-800t-a2", 1), ("atlas-300i-pro", 1), ("atlas-300i-duo", 1)))
    shapes = shipped_shapes()
    found = fleet_nodes(members(settings, shapes), settings, shapes)
    assert [(one.row.machine.chip_name, one.row.machine.accelerator, one.row.chips_per_card) for one in found] == [
        ("910B3", "huawei-Ascend910", 1), ("310P3", "huawei-Ascend310P", 1), ("310P3", "huawei-Ascend310P", 2),
    ]  # fmt: skip
    usual = SandboxSettings(nodes=1)
    assert [one.row.machine.chip_name for one in fleet_nodes(members(usual, shapes), usual, shapes)] == [
        "910B3", "310P3",
    ]  # fmt: skip


def test_a_large_sandbox_has_the_time_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes were given up after a minute, of which the API server spent much on being asked for them."""
    now, asked = [0.0], [0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(sandbox_up, "time", clock)

    def reported() -> bool:
        now[0] += 0.5  # a list of all reports
        asked[0] += 1
        return now[0] > 200

    def wait(nodes: int) -> None:
        now[0], asked[0] = 0.0, 0
        Sandbox(SandboxOptions(nodes=nodes, data=str(tmp_path / "d")), lambda _: None).wait("reports", reported)

    wait(1000)
    assert asked[0] < 100, "most of the time is the nodes' own"
    with pytest.raises(BelayError, match="reports: not within 69 s"):
        wait(8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "0"], "0 nodes are not 1 to 1000"),
        (["--nodes", "600x800t-a2,401x300i-duo"], "1001 nodes are not 1 to 1000"),
        (["--nodes", "3xtoaster"], "this names no servers. Write NxPRODUCT"),
        (["--nodes", "3x800ta2"], "this names no servers. Did you mean 3x800t-a2? Write"),
        (["--nodes", "2xdynamic-vnpu"], "this names no servers"),
        (["--nodes", "-1"], "-1 nodes are not 1 to 1000"),
        (["--nodes", "99999999"], "these are not 1 to 1000 nodes"),
        (["--nodes", "2x800t-a2", "--product", "atlas-800t-a2"], "--nodes names products already"),
        (["--product", "toaster"], "product 'toaster' is unknown. Choose one of"),
        (["--data", ""], "--data: no folder is named"),
        (["--env", "--data", ""], "--data: no folder is named"),
    ],
)
def test_what_is_no_number_of_servers_is_said(words: list[str], said: str) -> None:
    with mock.patch("belay.engine.sandbox.up.main", side_effect=AssertionError("it started")):
        ended = CliRunner().invoke(up, words)
    assert ended.exit_code == 2 and said in ended.output


def test_the_environment_is_that_of_a_sandbox_that_runs(tmp_path: Path) -> None:
    folder = DataFolder(str(tmp_path / "sand box"))
    with pytest.raises(InputError, match="no sandbox runs"):
        running_folder(str(folder.root))
    folder.open()
    folder.kubeconfig.write_text("")
    try:
        ended = CliRunner().invoke(up, ["--env", "--data", str(folder.root)])
        assert ended.exit_code == 0
        assert f"export KUBECONFIG='{folder.kubeconfig}'" in ended.output.splitlines()
    finally:
        folder.close()
    with pytest.raises(InputError, match="no sandbox runs"):
        running_folder(str(folder.root))


def test_the_third_line_works_beside_an_earlier_clone(tmp_path: Path) -> None:
    """A clone of a sandbox that has ended would take commits and lead their pushes nowhere."""
    repositories = [tmp_path / "first sandbox" / "state.git", tmp_path / "second" / "state.git"]
    for repository in repositories:
        repository.parent.mkdir()
        git_repository.git("init", "--quiet", "--bare", "--initial-branch=main", str(repository))

    def typed(repository: Path) -> str:
        subprocess.run(["bash", "-ec", clone_command(repository, tmp_path)], cwd=tmp_path, check=True)
        return git_repository.git("-C", "state", "remote", "get-url", "origin", cwd=tmp_path)

    first, second = repositories
    assert typed(first) == str(first)
    assert typed(second) == str(second)
    (tmp_path / "state" / "mine").write_text("kept")
    assert typed(first) == str(first)
    assert (tmp_path / "state.2" / "mine").read_text() == "kept"
    assert clone_command(first, tmp_path) == "git -C state pull", "its own clone is only brought up to date"
    (tmp_path / "state" / ".git" / "config").unlink()
    assert clone_command(first, tmp_path).startswith("mv state state.3 && git clone ")
