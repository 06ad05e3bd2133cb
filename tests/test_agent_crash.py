"""Killing the agent at every single step of its journal: no epoch ever runs twice, and none is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

from belay.agents.node.journal import Journal
from tests.agent_world import FAULT, World, play

STEPS = ("open", "write", "fsync", "replace", "close")


class Crash(BaseException):
    """The power went."""


class Power:
    """Cuts the power before or after the n-th call of the journal into the operating system."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool, torn: bool = False) -> None:
        self.at, self.after, self.torn, self.calls, self.on = at, after, torn, 0, False
        real = {name: getattr(os, name) for name in STEPS}
        fake = type("os", (), {name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
        for name in STEPS:
            setattr(fake, name, staticmethod(self._wrap(name, real[name])))
        monkeypatch.setattr("belay.agents.common.linefile.os", fake)

    def _wrap(self, name: str, real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return real(*args, **kwargs)
            self.calls += 1
            if self.calls == self.at and not self.after:
                if self.torn and name == "write":
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Crash
            if self.calls > self.at:
                raise Crash  # the dead do not act, nor do their finally blocks
            result = real(*args, **kwargs)
            if self.calls == self.at and self.after:
                raise Crash
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 14))
def test_a_power_cut_at_any_step_never_repeats_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    power = Power(monkeypatch, at, after=after, torn=at % 2 == 0)

    async def story() -> None:
        world = World(tmp_path)
        await world.start()
        world.driver.inject(3, FAULT)
        await world.run(70)
        power.on = True
        world.order({3: 7})
        # the loop notices the exception; the rest of the process is gone with it
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        with contextlib.suppress(Crash, BaseExceptionGroup):
            await world.run(60)
        crashed = power.calls >= power.at
        await dead(world)
        power.on = False
        ran = len(world.driver.resets)
        world.driver._booting.clear()
        world.driver.inject(3, FAULT)
        await world.start(130)
        epoch, result = world.result(3)
        assert len(world.driver.resets) <= 1
        if ran:
            assert len(world.driver.resets) == ran and epoch == 7
            assert result == "ok" or result.startswith("failed"), result
        else:
            # not begun, or begun and cut off before the act: then it is failed and waits for a new epoch
            assert epoch == 7 and result in ("ok", "failed: interrupted"), (result, crashed)
        world.driver.inject(3, FAULT)
        await world.run(70)
        world.order({3: 8})
        await world.run(60)
        assert world.result(3) == (8, "ok")
        await world.kill()

    async def dead(world: World) -> None:
        """Nothing of the process is left when the power is back."""
        if world.task is not None:
            world.task.cancel()
            await asyncio.wait([world.task])
            world.task = None

    play(story)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_power_cut_while_the_journal_is_established_or_compacted_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    from belay.agents.node.journal import Done

    journal = Journal(tmp_path)
    journal.establish({f"c{n}": Done(5, "ok") for n in range(50)})
    journal.begin(["c0"], 6, 1)
    power = Power(monkeypatch, at, after=after, torn=True)
    monkeypatch.setattr("belay.agents.node.journal.MAX_BYTES", 100)
    power.on = True
    with contextlib.suppress(Crash):
        journal.end(["c0"], 6, "ok")
    power.on = False
    again = Journal(tmp_path)
    again.open()
    assert again.last("c0") == 6 and again.done["c0"].result in ("ok", "failed: interrupted")
    assert all(again.done[f"c{n}"] == Done(5, "ok") for n in range(1, 50))
