"""The list of the agent's parts: options switch them on, each begins, and one that fails leaves the rest alone."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import pytest

from belay.agents.common.client import KubeClient
from belay.agents.common.clock import Clock
from belay.agents.common.credentials import Access
from belay.agents.daemon.__main__ import _parser
from belay.agents.daemon.context import AgentContext
from belay.agents.daemon.parts import PARTS, chosen_parts, run_beside
from belay.agents.drivers.choice import make_driver
from belay.agents.node.agent import NodeAgent
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy

ROOT = Path(__file__).parent.parent
SWITCHES = (
    ["--hardware", "--ipmi=off"],
    ["--enable-healthz"],
    ["--exporter=-ip=127.0.0.1"],
    ["--dra"],
    [f"--rdma-config={ROOT}/tests/fuzz/corpus/rdma-config/shipped"],
    ["--links=/run/links"],
    ["--step-times=/run/steps"],
    ["--log-roots=/var/log"],
)


def options(words: list[str]) -> argparse.Namespace:
    return _parser().parse_args(["--node=n1", "--driver=simulated", *words])


def context(folder: Path) -> AgentContext:
    driver = make_driver("simulated", "n1")
    client = KubeClient(Access("http://127.0.0.1:9"))
    settings, policy = Settings(), shipped_policy("default")
    agent = NodeAgent("n1", driver, client, folder, settings, Clock(), policy=policy)
    return AgentContext(
        agent=agent, driver=driver, client=client, api=client, folder=folder, settings=settings, policy=policy
    )


def test_every_part_with_options_has_a_switch_here() -> None:
    assert len(SWITCHES) + 1 == len(PARTS)  # ports of Ascend950 are the driver's to switch on


@pytest.mark.parametrize("words", SWITCHES, ids=lambda words: words[0].partition("=")[0])
def test_an_option_switches_one_part_on(words: list[str]) -> None:
    assert len(chosen_parts(options(words))) == len(chosen_parts(options([]))) + 1


def test_parts_begin_before_any_runs_and_one_that_does_not_fit_says_so(tmp_path: Path) -> None:
    around = context(tmp_path)
    fitting = [word for words in SWITCHES if not words[0].startswith("--exporter") for word in words]
    begun = [begin(around) for begin in chosen_parts(options(fitting))]
    assert sum(run is not None for run in begun) == len(SWITCHES) - 1
    with pytest.raises(ValueError, match="--exporter needs readings of real chips"):
        [begin(around) for begin in chosen_parts(options(["--exporter=-ip=127.0.0.1"]))]


def test_a_part_that_fails_leaves_the_rest_running_and_parts_end_after_the_work() -> None:
    ended: list[str] = []

    async def failing() -> None:
        raise RuntimeError("a bug")

    async def lasting() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("part")

    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append("work")

    async def story() -> Any:
        await asyncio.wait_for(run_beside(work(), [failing, lasting]), 5)

    asyncio.run(story())
    assert ended == ["work", "part"]
