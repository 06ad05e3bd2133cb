"""The servers that a sandbox is asked for, and what another terminal needs to use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli.sandbox import up
from engine.errors import InputError
from engine.sandbox.folder import DataFolder, running_folder
from engine.sandbox.host import fleet_nodes
from engine.sandbox.settings import SandboxSettings
from engine.sandbox.shapes import shipped_shapes
from engine.sandbox.world import members


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "0"], "0 nodes are not 1 to 1000"),
        (["--nodes", "600x800t-a2,401x300i-duo"], "1001 nodes are not 1 to 1000"),
        (["--nodes", "3xtoaster"], "this names no servers"),
        (["--nodes", "2x800t-a2", "--product", "atlas-800t-a2"], "--nodes names products already"),
    ],
)
def test_what_is_no_number_of_servers_is_said(words: list[str], said: str) -> None:
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
