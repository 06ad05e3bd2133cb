"""A site's programs in resets: what they receive, in which order, what bounds them, and what their word changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from belay.agents.common.clock import Clock
from belay.agents.daemon import __main__ as program
from belay.agents.drivers.base import BOOTED, DriverError
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.drivers.simulated import SimulatedDriver
from belay.agents.node import hooks
from belay.agents.node.acts import Act
from belay.agents.node.hooks import Device, Hooks
from belay.agents.node.plugins import ResetPlugins
from belay.agents.node.policy import FaultLevels
from belay.agents.node.resetter import Resetter
from belay.agents.node.settings import Settings
from belay.agents.node.state import NodeState
from belay.engine.wire.policy import NodePolicy
from tests.agent_world import FAULT, NODE, RULES
from tests.kubelet_world import Node

RING = [Device(3, 3, 0, 3, "Ascend910B", True, 2)]
"""One chip of an A2 server whose group has two resets left."""


class Site:
    """A folder of plugins that write what they see into one file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told, self.file = folder / "plugins", folder / "told", folder / "plugins.json"
        self.names: list[str] = []

    def plugin(self, name: str, programs: Mapping[str, str], *, on: bool = True) -> None:
        for hook, script in programs.items():
            path = self.folder / name / hook
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} {hook} [$HOT_RESET_ERROR]" >>{self.told}\n{script}\n')
            path.chmod(0o755)
        if on:
            self.names.append(name)
        self.file.write_text(json.dumps([{"pluginName": n, "state": "ON"} for n in self.names]))

    def lines(self) -> list[str]:
        return self.told.read_text().splitlines() if self.told.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def run(work: Awaitable[Any]) -> Any:
    async def within() -> Any:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(within())


def test_a_hook_reads_the_ring_and_little_of_the_agents_environment(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/secret")
    site.plugin("power", {"PreReset": f"cat >{tmp_path}/ring; env >{tmp_path}/env; pwd >{tmp_path}/where"})
    run(Hooks(site.folder).run("PreReset", ["power"], RING))
    assert json.loads((tmp_path / "ring").read_text()) == [
        {
            "LogicID": 3, "CardID": 3, "DeviceID": 0, "PhyID": 3, "CardType": "Ascend910B", "IsFaultDev": True,
            "TokensLeft": 2,
        }
    ]  # fmt: skip
    assert "KUBECONFIG" not in (tmp_path / "env").read_text() and (tmp_path / "where").read_text() == "/\n"


def test_each_plugin_gets_what_the_one_before_it_left(site: Site) -> None:
    site.plugin("a", {"CustomReset": "echo the board sleeps >&2; echo more >&2; exit 3"})
    site.plugin("b", {"PreReset": "true"})  # no hook of its own: the error passes by
    site.plugin("c", {"CustomReset": "exit 0"})
    site.plugin("d", {"CustomReset": "exit 7"})
    found = Hooks(site.folder)
    assert run(found.custom(["a", "b"], RING, "reset failed")) == "plugin a: the board sleeps"
    assert run(found.custom(["a", "c"], RING, "reset failed")) == ""
    assert run(found.custom(["d"], RING, "")) == "plugin d: CustomReset ended with code 7"
    assert site.lines() == [
        "a CustomReset [reset failed]", "a CustomReset [reset failed]", "c CustomReset [plugin a: the board sleeps]",
        "d CustomReset []",
    ]  # fmt: skip


def test_programs_are_bounded_in_time_in_words_and_in_number(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hooks.SECONDS == {"PreReset": 10.0, "CustomReset": 300.0, "AfterReset": 10.0}
    monkeypatch.setitem(hooks.SECONDS, "PreReset", 0.2)
    # a child that would hold the pipe is ended with it
    site.plugin("slow", {"PreReset": "sleep 60 & sleep 60"})
    site.plugin("talker", {"CustomReset": "exec 2>&1; yes word | head -c 3000000 >&2; exit 1"})
    found = Hooks(site.folder)
    run(found.run("PreReset", ["slow"], RING))
    assert found.taken() == "plugin slow: PreReset did not end in 0.2 s and was killed" and found.taken() == ""
    assert len(run(found.custom(["talker"], RING, ""))) < 200
    for number in range(12):
        site.plugin(f"n{number}", {"AfterReset": "true"})
        site.plugin(f"n{number}", {"CustomReset": "exit 1"})
    every = [f"n{number}" for number in range(12)]
    run(found.run("AfterReset", every, RING))
    assert len([line for line in site.lines() if "AfterReset" in line]) == hooks.MAX_PLUGINS
    assert run(found.custom(every, RING, "")) == f"plugin n{hooks.MAX_PLUGINS - 1}: CustomReset ended with code 1"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda s: (s.folder / "a" / "PreReset").chmod(0o777), "mode 0777 lets others write"),
        (lambda s: (s.folder / "a").chmod(0o777), "mode 0777 lets others write"),
        (lambda s: (s.folder / "a" / "PreReset").chmod(0o644), "cannot be run: Permission denied"),
        (lambda s: (s.folder / "a").rename(s.folder / "b"), "plugin a is on, but there is no folder"),
    ],
)
def test_what_others_could_have_put_there_is_not_run(site: Site, spoil: Callable[[Site], Any], reason: str) -> None:
    site.plugin("a", {"PreReset": "true"})
    spoil(site)
    found = Hooks(site.folder)
    run(found.run("PreReset", ["a"], RING))
    assert reason in found.trouble and site.lines() == []


def test_a_name_is_no_way_out_of_the_folder(site: Site, tmp_path: Path) -> None:
    site.plugin("a", {"PreReset": "true"})
    found = Hooks(site.folder / "a" / "x")
    for name in ("..", "../../a", "", "a/b"):
        run(found.run("PreReset", [name], RING))
        assert "cannot name a plugin" in found.taken()
    assert site.lines() == []


def resetter(site: Site) -> tuple[Resetter, SimulatedDriver, Act]:
    clock = Clock()
    driver = SimulatedDriver("n1", SERVER_MODELS["atlas-800t-a2"], scale=0.001, now_ms=clock.now_ms, sleep=clock.sleep)
    chips = run(driver.chips())
    state = NodeState("n1", run(driver.machine()), chips, FaultLevels(NodePolicy("default", RULES)))
    switches = ResetPlugins(site.file)
    switches.read()
    made = Resetter(
        state, driver, clock, Settings(scale=0.001), switches, lambda notice: None, Hooks(site.folder)
    )  # fmt: skip
    return made, driver, Act(tuple(state.name(n) for n in range(8)), tuple(range(8)), 1, left=2)


def test_a_reset_runs_between_its_hooks(site: Site) -> None:
    site.plugin("a", {"PreReset": "true", "CustomReset": "true", "AfterReset": "true"})
    site.plugin("off", {"PreReset": "true"}, on=False)
    site.plugin("b", {"PreReset": "exit 1", "AfterReset": "true"})
    made, driver, act = resetter(site)
    run(made.reset(act))
    assert driver.resets == [tuple(range(8))]
    assert [line.rsplit(" ", 1)[0] for line in site.lines()] == [
        "a PreReset", "b PreReset", "a CustomReset", "a AfterReset", "b AfterReset",
    ]  # fmt: skip
    assert made.trouble == "plugin b: PreReset ended with code 1"


def test_a_plugins_word_decides_and_its_cure_is_believed_once_the_chips_boot(site: Site) -> None:
    site.plugin("bmc", {"CustomReset": "true", "AfterReset": "true"})
    made, driver, act = resetter(site)
    driver.fail_resets(1)
    asked: list[int] = []

    async def boots(chip: int) -> int:
        asked.append(chip)
        return BOOTED if asked.count(chip) > 2 else 0

    driver.boot_status = boots  # type: ignore[method-assign]
    run(made.reset(act))
    assert {chip: asked.count(chip) for chip in range(8)} == dict.fromkeys(range(8), 3)
    assert site.lines()[0].startswith("bmc CustomReset [") and "reset failed" in site.lines()[0]
    # a plugin that is not content makes a reset of the driver's a failed one
    site.plugin("check", {"CustomReset": "echo link 3 is down >&2; exit 1"})
    made, _, act = resetter(site)
    with pytest.raises(DriverError, match="plugin check: link 3 is down"):
        run(made.reset(act))
    assert site.lines()[-1] == "bmc AfterReset []", "also after a reset that failed"


def test_without_plugins_a_failed_reset_stays_what_it_was(site: Site) -> None:
    site.plugin("a", {"CustomReset": "true"}, on=False)
    made, driver, act = resetter(site)
    driver.fail_resets(1)
    with pytest.raises(DriverError, match="-8020: reset failed"):
        run(made.reset(act))
    assert site.lines() == [] and made.trouble == ""


def test_an_agent_runs_them_around_an_ordered_reset_and_reports_trouble(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.plugin("a", {"PreReset": "true", "AfterReset": "echo no lamp >&2; exit 1"})

    async def story() -> None:
        node = Node(plugins=site.file, hooks=site.folder)
        async with node:
            node.driver.inject(5, FAULT)
            node.order_reset(range(8), 1)
            await node.until(lambda: node.driver.resets == [tuple(range(8))], 20)
            key = ("belay-nodes", f"belay-report-{NODE}")
            await node.until(lambda: "plugin a: no lamp" in node.cluster.maps[key]["data"]["report.json"], 20)
            report = json.loads(node.cluster.maps[key]["data"]["report.json"])
            assert report["chips"]["Ascend910-5"]["resetResult"] == "ok"
        assert [line.rsplit(" ", 1)[0] for line in site.lines()] == ["a PreReset", "a AfterReset"]

    run(story())


@pytest.mark.parametrize(
    ("words", "folder"),
    [([], hooks.FOLDER), (["--hot-reset-hooks=/opt/site"], Path("/opt/site")), (["--hot-reset-hooks="], None)],
)
def test_the_folder_is_a_setting(monkeypatch: pytest.MonkeyPatch, words: list[str], folder: Path | None) -> None:
    given: dict[str, Any] = {}

    async def note(node: str, **settings: Any) -> None:
        given.update(settings)

    monkeypatch.setattr(program, "run_agent", note)
    assert program.main(["--node=n1", "--driver=simulated", *words]) == 0
    assert given["hooks"] == folder
