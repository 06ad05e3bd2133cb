"""Orders: every sentence of the contract between engine and agents about epochs, the journal and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.node.journal import Done, Journal
from belay.agents.node.settings import Settings
from belay.engine.model.labels import FORMAT_ANNOTATION
from belay.engine.wire.names import NODES, REPORT_PREFIX, SYSTEM
from tests.agent_world import FAULT, NODE, ORDERS_KEY, World, journal_lines, pod, scenario

ALL = list(range(8))


async def faulty(world: World, chip: int = 3) -> None:
    """Bring the node up, break a chip, and let the group be idle for long enough."""
    await world.start()
    world.driver.inject(chip, FAULT)
    await world.run(70)


def test_an_idle_faulty_group_is_reset_once_and_comes_back(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        assert world.device.unhealthy == 1 << 3
        world.order({3: 7})
        await world.run(2)
        assert world.device.recovering == 0xFF and world.device.unhealthy == 0xFF
        assert world.report.chips[3].reset_epoch_done == 0  # it runs: not done
        await world.run(30)
        assert world.driver.resets == [tuple(ALL)]
        assert {world.result(c) for c in ALL} == {(7, "ok")}
        assert world.device.unhealthy == 0 and world.device.recovering == 0
        await world.run(300)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_after_a_reset_the_group_must_be_idle_for_another_minute(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(32)
        assert world.result(3) == (7, "ok")
        world.driver.inject(3, FAULT)
        world.order({3: 8})
        await world.run(20)
        assert len(world.driver.resets) == 1, "what booted a moment ago has not been idle since"
        await world.run(80)
        assert len(world.driver.resets) == 2 and world.result(3) == (8, "ok")

    scenario(tmp_path, story)


def test_a_redelivered_order_never_runs_twice(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(40)
        world.driver.inject(3, FAULT)
        await world.run(70)
        for _ in range(3):
            world.order({3: 7})
            await world.run(70)
        await world.restart()
        world.order({3: 7, 4: 6})
        await world.run(70)
        assert len(world.driver.resets) == 1
        world.order({3: 8})
        await world.run(70)
        assert len(world.driver.resets) == 2 and world.result(3) == (8, "ok")

    scenario(tmp_path, story)


def test_an_epoch_that_is_old_for_one_chip_of_the_group_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        await world.kill()
        journal = Journal(world.folder)
        journal.open()
        journal.end(["Ascend910-5"], 9, "ok")
        await faulty(world)
        world.order({3: 9})
        await world.run(5)
        assert world.driver.resets == []
        assert world.result(3)[0] == 9 and world.result(3)[1].startswith("refused: epoch 9 was already taken")
        assert world.result(5) == (9, "ok")

    scenario(tmp_path, story)


def test_the_journal_is_written_before_the_act(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        seen: list[dict[str, Any]] = []
        real = world.driver.reset

        async def watched(chips: Any, **how: Any) -> None:
            seen.append(journal_lines(world)[-1])
            await real(chips)

        world.driver.reset = watched  # type: ignore[method-assign]
        world.order({3: 7})
        await world.run(3)
        assert seen[0]["kind"] == "begin" and seen[0]["epoch"] == 7 and len(seen[0]["keys"]) == 8

    scenario(tmp_path, story)


def test_nothing_is_done_while_the_journal_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        broken = True
        real = os.fsync

        def fsync(descriptor: int) -> None:
            if broken and "journal" in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(28, "No space left on device")
            real(descriptor)

        monkeypatch.setattr("belay.agents.common.linefile.os.fsync", fsync)
        world.order({3: 7})
        await world.run(20)
        assert world.driver.resets == [] and world.report.chips[3].reset_epoch_done == 0
        assert any("journal" in error for error in world.report.errors)
        broken = False
        await world.run(40)
        assert len(world.driver.resets) == 1 and world.result(3) == (7, "ok")
        assert not world.report.errors

    scenario(tmp_path, story)


def test_a_result_that_the_disk_refuses_is_reported_and_counts_as_interrupted_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        full = False
        real, reset = os.fsync, world.driver.reset

        def fsync(descriptor: int) -> None:
            if full and "journal" in os.readlink(f"/proc/self/fd/{descriptor}"):
                raise OSError(28, "No space left on device")
            real(descriptor)

        async def fills(chips: Any, **how: Any) -> None:
            nonlocal full
            full = True
            await reset(chips)

        monkeypatch.setattr("belay.agents.common.linefile.os.fsync", fsync)
        world.driver.reset = fills  # type: ignore[method-assign]
        world.order({3: 7})
        await world.run(40)
        assert len(world.driver.resets) == 1 and world.result(3) == (7, "ok"), "else its chips stay out for ever"
        assert any("journal" in error for error in world.report.errors)
        await world.run(60)
        assert len(world.driver.resets) == 1
        full = False
        await world.restart()
        await world.run(40)
        assert len(world.driver.resets) == 1 and world.result(3)[0] == 7, "never again, whatever is known of its end"

    scenario(tmp_path, story)


@pytest.mark.parametrize("moment", ["before the reset", "during the reset", "before the result"])
def test_a_crash_after_the_journal_entry_is_failed_interrupted_and_never_run_again(tmp_path: Path, moment: str) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        if moment == "before the reset":

            async def never(chips: Any, **how: Any) -> None:
                await world.clock.sleep(1e9)

            real, world.driver.reset = world.driver.reset, never  # type: ignore[method-assign]
        world.order({3: 7})
        await world.run(2 if moment != "before the result" else 18)
        assert journal_lines(world)[-1]["kind"] == "begin"
        await world.kill()
        if moment == "before the reset":
            world.driver.reset = real  # type: ignore[method-assign]
        before = len(world.driver.resets)
        await world.start(120)
        assert world.result(3) == (7, "failed: interrupted")
        assert len(world.driver.resets) == before
        if moment == "before the reset":
            world.order({3: 8})
            await world.run(70)
            assert world.result(3) == (8, "ok")

    scenario(tmp_path, story)


def test_a_crash_after_the_result_but_before_the_report_loses_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.cluster.refuse_writes = True
        world.order({3: 7})
        await world.run(40)
        assert journal_lines(world)[-1]["kind"] == "end"
        await world.kill()
        world.cluster.refuse_writes = False
        await world.start(100)
        assert world.result(3) == (7, "ok") and len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_a_lost_journal_takes_reported_and_ordered_epochs_as_done_and_waits_for_a_new_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(40)
        world.driver.inject(3, FAULT)
        await world.kill()
        (world.folder / "journal").unlink()
        world.order({3: 8})
        await world.start(120)
        assert world.result(3) == (8, "refused: journal lost") and len(world.driver.resets) == 1
        world.order({3: 8})
        await world.run(120)
        assert len(world.driver.resets) == 1
        world.order({3: 9})
        await world.run(70)
        assert len(world.driver.resets) == 2 and world.result(3) == (9, "ok")

    scenario(tmp_path, story)


def test_a_lost_journal_keeps_the_larger_epoch_of_the_last_report(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(40)
        await world.kill()
        (world.folder / "journal").unlink()
        world.driver.inject(3, FAULT)
        world.order({3: 5})
        await world.start(120)
        assert world.result(3) == (7, "ok") and len(world.driver.resets) == 1
        world.order({3: 7})
        await world.run(120)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story)


@pytest.mark.parametrize("damage", ["gone", "garbage", "flipped bit", "empty"])
def test_without_journal_and_without_a_readable_report_it_waits_and_does_not_overwrite_the_report(
    tmp_path: Path, damage: str
) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(40)
        await world.kill()
        path = world.folder / "journal"
        raw = path.read_bytes()
        match damage:
            case "gone":
                path.unlink()
            case "garbage":
                path.write_bytes(b"\x00\xffgarbage\n" + raw)
            case "flipped bit":
                path.write_bytes(raw[:20] + bytes([raw[20] ^ 1]) + raw[21:])
            case _:
                path.write_bytes(b"")
        world.driver.inject(3, FAULT)
        key = (NODES, REPORT_PREFIX + NODE)
        good = world.cluster.maps[key]
        world.cluster.maps[key] = {**good, "data": {"report.json": "{"}}
        world.order({3: 8})
        await world.start(200)
        assert len(world.driver.resets) == 1 and world.cluster.maps[key]["data"]["report.json"] == "{"
        world.cluster.maps[key] = good
        await world.run(130)
        assert world.result(3) == (8, "refused: journal lost") and len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_a_journal_from_an_old_backup_is_corrected_by_the_report(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        backup = (world.folder / "journal").read_bytes()
        world.order({3: 7})
        await world.run(40)
        await world.kill()
        (world.folder / "journal").write_bytes(backup)
        world.driver.inject(3, FAULT)
        await world.start(200)
        assert len(world.driver.resets) == 1 and world.result(3) == (7, "ok")

    scenario(tmp_path, story)


@pytest.mark.parametrize("journal", ["kept", "of a newer kind"])
def test_an_agent_after_a_downgrade_runs_nothing_twice_and_its_report_counts(tmp_path: Path, journal: str) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(40)
        assert world.result(3) == (7, "ok") and len(world.driver.resets) == 1
        await world.kill()
        key = (NODES, REPORT_PREFIX + NODE)
        newer = world.cluster.maps[key]
        # a newer agent ran 8 and said so in words that this one does not know
        newer = {**newer, "metadata": {**newer["metadata"], "annotations": {FORMAT_ANNOTATION: "2", "a": "b"}}}
        world.cluster.maps[key] = {**newer, "data": {"report.json": '{"chips": "elsewhere"}'}}
        if journal != "kept":
            path = world.folder / "journal"
            path.write_bytes(path.read_bytes() + b"v2 something\n")
        world.driver.inject(3, FAULT)
        world.order({3: 8})
        await world.start(200)
        assert len(world.driver.resets) == 1 and world.result(3) == (8, "refused: journal lost")
        written = world.cluster.maps[key]
        assert written["metadata"]["annotations"] == {FORMAT_ANNOTATION: "1", "a": "b"}, "the report is its own"
        # what is ordered after it runs
        world.order({3: 9})
        await world.run(200)
        assert world.result(3) == (9, "ok") and len(world.driver.resets) == 2

    scenario(tmp_path, story)


def test_a_first_start_runs_no_order_that_was_there_before_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.driver.inject(3, FAULT)
        world.order({3: 1})
        await world.start(100)
        assert world.driver.resets == [] and world.result(3) == (1, "refused: journal lost")

    scenario(tmp_path, story)


@pytest.mark.parametrize("who", ["pod", "terminating pod", "silent pod", "process", "peer"])
def test_a_group_in_use_is_refused(tmp_path: Path, who: str) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        match who:
            case "pod":
                world.cluster.set_pods([pod("job-0", ["Ascend910-3"])])
            case "terminating pod":
                world.cluster.set_pods([pod("job-0", ["Ascend910-3"], deleting=True)])
            case "silent pod":
                world.cluster.set_pods([pod("job-0", [])])
            case "peer":
                world.cluster.set_pods([pod("job-0", ["Ascend910-7"])])
            case _:
                world.driver.occupy(3, 2)
        world.order({3: 7})
        await world.run(15)
        assert world.driver.resets == []
        epoch, result = world.result(3)
        assert (
            epoch == 7
            and result.startswith("refused: in use by")
            and ("processes" in result or "default/job-0" in result)
        )

    scenario(tmp_path, story)


def test_finished_pods_hold_nothing(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.cluster.set_pods(
            [pod("job-0", ["Ascend910-3"], phase="Succeeded"), pod("job-1", ["Ascend910-4"], phase="Failed")]
        )
        await faulty(world)
        world.order({3: 7})
        await world.run(40)
        assert world.result(3) == (7, "ok")

    scenario(tmp_path, story)


def test_a_pod_that_only_the_api_server_knows_of_is_seen_right_before_the_act(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.cluster.stale.add("pods")
        world.cluster.set_pods([pod("late", ["Ascend910-0"])])
        world.order({3: 7})
        await world.run(3)
        assert world.driver.resets == [] and world.result(3)[1].startswith("refused: in use by default/late")

    scenario(tmp_path, story)


def test_the_idle_time_is_waited_out_and_any_use_restarts_it(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.cluster.set_pods([pod("job-0", ["Ascend910-3"])])
        await world.start()
        world.driver.inject(3, FAULT)
        await world.run(100)
        world.cluster.set_pods([])
        await world.run(1)
        world.order({3: 7})
        await world.run(50)
        assert world.driver.resets == [] and world.report.chips[3].idle_since_ms is not None
        assert world.agent.withheld(3) and world.agent.withheld(0) == "an order is about to act on it"
        world.driver.occupy(5, 1)
        await world.run(6)
        world.driver.occupy(5, 0)
        await world.run(55)
        assert world.driver.resets == []
        await world.run(20)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story, settings=Settings(in_use_grace=1e6))


def test_use_that_begins_while_the_order_waits_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(3, FAULT)
        world.order({3: 7})
        await world.run(20)
        world.cluster.set_pods([pod("job-1", ["Ascend910-6"])])
        await world.run(3)
        assert world.driver.resets == [] and world.result(3) == (7, "refused: in use by default/job-1")

    scenario(tmp_path, story)


def test_a_fault_that_went_away_means_no_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.driver.clear(3, FAULT)
        await world.run(3)
        world.order({3: 7})
        await world.run(5)
        assert world.driver.resets == [] and world.result(3) == (7, "refused: no fault of the group is left")

    scenario(tmp_path, story)


def test_an_order_past_its_time_is_refused_and_never_run_after_an_outage(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.cluster.offline = True
        world.order({3: 7}, life=60)
        await world.run(3)
        await world.run(120)
        world.cluster.offline = False
        world.cluster.notify()
        await world.run(80)
        assert world.driver.resets == [] and world.result(3) == (7, "refused: the order has expired")

    scenario(tmp_path, story)


def test_a_clock_that_is_set_back_does_not_revive_an_order(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.driver.occupy(0, 1)
        await world.run(6)
        world.order({3: 7})
        await world.run(1)
        world.clock.wall -= 86_400
        await world.run(2000)
        world.driver.occupy(0, 0)
        await world.run(200)
        assert world.driver.resets == [] and world.result(3)[1].startswith("refused: the order has expired")

    scenario(tmp_path, story, settings=Settings(in_use_grace=1e6))


def test_while_the_api_server_is_away_no_chip_is_reset(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.driver.occupy(3, 1)
        await world.run(6)
        world.driver.occupy(3, 0)
        world.order({3: 7})
        await world.run(2)
        world.cluster.offline = True
        await world.run(100)
        assert world.driver.resets == []
        world.cluster.offline = False
        await world.run(60)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_an_order_withdrawn_before_the_act_is_dropped_and_the_chips_are_free_again(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.driver.inject(3, FAULT)
        await world.run(10)
        world.order({3: 7})
        await world.run(5)
        assert world.agent.withheld(0)
        world.withdraw()
        await world.run(3)
        assert world.agent.withheld(0) is None and world.report.orders_seen == world.generation
        await world.run(200)
        assert world.driver.resets == [] and world.result(3)[0] == 0

    scenario(tmp_path, story)


def test_a_withdrawal_between_the_watch_and_the_act_is_noticed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.driver.occupy(3, 1)
        await world.run(6)
        world.driver.occupy(3, 0)
        world.order({3: 7})
        await world.run(20)
        world.cluster.stale.add("maps")
        world.withdraw()
        await world.run(200)
        assert world.driver.resets == []

    scenario(tmp_path, story)


def test_orders_seen_stays_behind_while_a_withdrawn_reset_still_runs(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(3)
        ordered = world.generation
        world.withdraw()
        await world.run(5)
        assert world.report.orders_seen == ordered and world.agent.withheld(0) == "it is being reset"
        await world.run(30)
        assert world.report.orders_seen == world.generation and world.result(3) == (7, "ok")

    scenario(tmp_path, story)


def test_an_order_whose_group_is_not_the_hardwares_is_refused(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7}, group=[2, 3])
        await world.run(3)
        assert world.driver.resets == [] and world.result(3)[1].startswith(
            "refused: Ascend910-2 resets together with Ascend910-0"
        )
        world.order({63: 8}, group=[63])
        await world.run(3)
        assert world.driver.resets == []

    scenario(tmp_path, story)


def test_not_before_is_honoured(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7}, not_before=world.clock.now() + 30)
        await world.run(25)
        assert world.driver.resets == []
        await world.run(15)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_an_order_of_a_clock_a_day_ahead_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    """It stood until the next day, and its chips were out: found by rounds in which a worker's clock jumped."""

    async def story(world: World) -> None:
        await faulty(world)
        await world.run(100)
        world.order({3: 7}, not_before=world.clock.now() + 86_430, ahead=86_400)
        await world.run(25)
        assert world.driver.resets == []
        await world.run(15)
        assert len(world.driver.resets) == 1

    scenario(tmp_path, story)


def test_a_failed_reset_is_reported_and_the_fault_stays(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.driver.fail_resets(1)
        world.order({3: 7})
        await world.run(5)
        assert world.result(3) == (7, "failed: the driver returned -8020: reset failed")
        assert world.device.unhealthy == 1 << 3 and world.device.recovering == 0

    scenario(tmp_path, story)


def test_a_reset_that_hangs_ends_as_failed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7})
        await world.run(3)
        world.driver.hang = True
        await world.run(250)
        assert world.result(3)[0] == 7 and world.result(3)[1].startswith("failed: the driver")
        assert any("did not answer" in error for error in world.report.errors)
        world.driver.hang = False
        await world.run(10)
        assert world.report.errors == () and world.device.recovering == 0

    scenario(tmp_path, story)


def test_bad_orders_are_named_and_the_last_good_ones_stay(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.order(isolate={2: "SeparateNPU"})
        await world.run(2)
        good = world.generation
        body = world.cluster.maps[ORDERS_KEY]
        world.cluster.set_map({**body, "data": {"orders.json": '{"node": "another", "generation": 99}'}})
        await world.run(2)
        assert world.report.orders_seen == good and "SeparateNPU" in (world.agent.withheld(2) or "")
        assert any("another" in error for error in world.report.errors)
        world.withdraw()
        await world.run(2)
        assert world.agent.withheld(2) is None and not world.report.errors

    scenario(tmp_path, story)


def test_isolation_survives_a_restart_without_api_server_but_resets_do_not(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await faulty(world)
        world.order({3: 7}, isolate={3: "RestartNPU", 6: "SeparateNPU"}, not_before=world.clock.now() + 40)
        await world.run(2)
        await world.kill()
        world.cluster.offline = True
        await world.start(300)
        assert world.agent.withheld(6) == "isolated by order: SeparateNPU" and world.driver.resets == []

    scenario(tmp_path, story)


def test_an_isolated_chip_is_not_offered_and_the_report_shows_only_what_the_driver_says(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start()
        world.order(isolate={2: "SeparateNPU"})
        await world.run(3)
        assert world.device.free == 0xFF & ~(1 << 2)
        assert world.device.unhealthy == 0 and world.device.faults == () and world.device.manual == 0

    scenario(tmp_path, story)


# ---- layouts

INFER = SERVER_MODELS["atlas-300i-pro"]
P = "huawei.com/Ascend310P"


def templates(world: World, chip: int) -> list[str]:
    return sorted(v.template for v in world.report.vnpus if v.chip == chip)


def test_a_layout_is_created_merged_and_split_once_per_epoch(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(70)
        world.order(layout={0: ["vir04", "vir02", "vir01"], 1: ["vir01"] * 7}, layout_epoch=1)
        await world.run(30)
        assert templates(world, 0) == ["vir01", "vir02", "vir04"] and templates(world, 1) == ["vir01"] * 7
        assert (world.report.vnpu_epoch_done, world.report.vnpu_result) == (1, "ok")
        world.order(layout={0: ["vir02"] * 3}, layout_epoch=2)
        await world.run(30)
        assert templates(world, 0) == ["vir02"] * 3 and templates(world, 1) == ["vir01"] * 7
        world.order(layout={0: ["vir04"]}, layout_epoch=2)
        await world.run(30)
        assert templates(world, 0) == ["vir02"] * 3  # the epoch is spent

    scenario(tmp_path, story, row=INFER)


def test_a_vnpu_in_use_is_never_touched(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(70)
        world.order(layout={0: ["vir04", "vir02"], 1: ["vir02"]}, layout_epoch=1)
        await world.run(30)
        used = next(v for v in world.report.vnpus if v.template == "vir04")
        world.cluster.set_pods([pod("infer-0", [f"Ascend310P-4c-{used.id}-0"], resource=f"{P}-4c")])
        await world.run(70)
        assert next(v for v in world.report.vnpus if v.id == used.id).used_by == "default/infer-0"
        world.order(layout={0: ["vir02", "vir02", "vir02"], 1: ["vir04"]}, layout_epoch=2)
        await world.run(20)
        assert used.id in {v.id for v in world.report.vnpus} and templates(world, 0) == ["vir02", "vir04"]
        assert templates(world, 1) == ["vir04"]  # the other chip was free
        assert world.report.vnpu_result.startswith("refused: vNPU") and "default/infer-0" in world.report.vnpu_result
        # what is in use may stay while the rest of the chip changes
        world.order(layout={0: ["vir04", "vir01", "vir01"]}, layout_epoch=3)
        await world.run(20)
        assert templates(world, 0) == ["vir01", "vir01", "vir04"] and used.id in {v.id for v in world.report.vnpus}

    scenario(tmp_path, story, row=INFER)


def test_a_vnpu_that_is_taken_while_others_are_destroyed_stays(tmp_path: Path) -> None:
    """Through a kubelet that did not ask this agent."""

    async def story(world: World) -> None:
        await world.start(70)
        world.order(layout={0: ["vir02", "vir02", "vir02"]}, layout_epoch=1)
        await world.run(90)
        destroy, gone = world.driver.destroy_vnpu, []

        async def slow(vnpu: int) -> None:
            await destroy(vnpu)
            gone.append(vnpu)
            taken = next(v for v in await world.driver.vnpus() if v.chip == 0)
            name = f"Ascend310P-2c-{taken.id}-0"
            world.cluster.set_pods([pod("infer-0", [name], resource=f"{P}-2c")])

        world.driver.destroy_vnpu = slow  # type: ignore[method-assign]
        world.order(layout={0: ["vir04"]}, layout_epoch=2)
        await world.run(30)
        assert len(gone) == 1 and templates(world, 0) == ["vir02", "vir02"]
        assert world.report.vnpu_epoch_done == 2
        assert world.report.vnpu_result.startswith("failed: vNPU") and "default/infer-0" in world.report.vnpu_result

    scenario(tmp_path, story, row=INFER)


def test_a_pod_that_does_not_say_which_vnpu_blocks_all_of_its_size(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(70)
        world.order(layout={0: ["vir02", "vir02"]}, layout_epoch=1)
        await world.run(30)
        world.cluster.set_pods([pod("infer-0", [], resource=f"{P}-2c")])
        world.order(layout={0: ["vir04"]}, layout_epoch=2)
        await world.run(70)
        assert templates(world, 0) == ["vir02", "vir02"] and world.report.vnpu_result.startswith("refused")

    scenario(tmp_path, story, row=INFER)


def test_a_chip_in_whole_use_is_not_partitioned(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(70)
        world.cluster.set_pods([pod("whole", ["Ascend310P-0"], resource=P)])
        world.order(layout={0: ["vir04"]}, layout_epoch=1)
        await world.run(20)
        assert world.report.vnpus == () and "default/whole" in world.report.vnpu_result

    scenario(tmp_path, story, row=INFER)


def test_a_layout_that_does_not_fit_fails_with_the_drivers_words(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(70)
        world.order(layout={0: ["vir04", "vir04"]}, layout_epoch=1)
        await world.run(20)
        assert world.report.vnpu_epoch_done == 1 and world.report.vnpu_result.startswith("failed: vir04 does not fit")

    scenario(tmp_path, story, row=INFER)


def test_an_interrupted_partition_is_failed_and_the_next_epoch_continues(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(70)
        world.order(layout={0: ["vir01"] * 6}, layout_epoch=1)
        await world.run(4)
        assert 0 < len(await world.driver.vnpus()) < 6
        await world.restart(100)
        assert (world.report.vnpu_epoch_done, world.report.vnpu_result) == (1, "failed: interrupted")
        world.order(layout={0: ["vir01"] * 6}, layout_epoch=2)
        await world.run(100)
        assert templates(world, 0) == ["vir01"] * 6 and world.report.vnpu_result == "ok"

    scenario(tmp_path, story, row=INFER)


def test_a_layout_that_is_already_there_is_done_without_an_act(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await world.start(2)
        world.order(layout={0: []}, layout_epoch=1)
        await world.run(3)
        assert (world.report.vnpu_epoch_done, world.report.vnpu_result) == (1, "ok")
        assert [line["kind"] for line in journal_lines(world) if line["epoch"]] == ["end"]

    scenario(tmp_path, story, row=INFER)


# ---- the journal alone


def test_a_torn_line_is_dropped_because_its_act_never_began(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.establish({"a": Done(3, "ok")})
    journal.begin(["a"], 4, 1)
    journal.end(["a"], 4, "ok")
    raw = (tmp_path / "journal").read_bytes()
    for cut in range(1, len(raw.splitlines(keepends=True)[-1])):
        (tmp_path / "journal").write_bytes(raw[:-cut])
        again = Journal(tmp_path)
        again.open()
        assert again.done["a"] == Done(4, "failed: interrupted" if cut > 0 else "ok")
        assert again.last("a") == 4
        # what is written after it is not glued to what was left of it
        again.begin(["a"], 5, 2)
        third = Journal(tmp_path)
        third.open()
        assert third.done["a"] == Done(5, "failed: interrupted")


def test_the_journal_is_bounded_and_survives_its_own_rewriting(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.establish({})
    keys = [f"Ascend910-{c}" for c in range(16)]
    for epoch in range(1, 1500):
        journal.begin(keys, epoch, epoch)
        journal.end(keys, epoch, "ok")
    journal.begin(keys[:2], 2000, 1)
    assert (tmp_path / "journal").stat().st_size <= 256 * 1024
    again = Journal(tmp_path)
    again.open()
    assert again.done[keys[0]] == Done(2000, "failed: interrupted") and again.done[keys[5]] == Done(1499, "ok")
    (tmp_path / "journal.new").write_bytes(b"half a snapshot")
    Journal(tmp_path).open()


def test_an_old_epochs_answer_takes_nothing_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.establish({"a": Done(5, "ok")})
    journal.begin(["a"], 7, 1)
    journal.end(["a", "b"], 3, "refused: late")
    assert journal.done == {"a": Done(5, "ok"), "b": Done(3, "refused: late")} and journal.running == {"a": 7}
    again = Journal(tmp_path)
    again.open()
    assert again.done == {"a": Done(7, "failed: interrupted"), "b": Done(3, "refused: late")}


def test_beginning_an_old_epoch_is_a_bug_that_raises(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.establish({"a": Done(3, "ok")})
    with pytest.raises(ValueError, match="not newer"):
        journal.begin(["b", "a"], 3, 1)
    assert journal.last("b") == 0


def test_orders_namespace_is_the_systems() -> None:
    assert ORDERS_KEY[0] == SYSTEM
