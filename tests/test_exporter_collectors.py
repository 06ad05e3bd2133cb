"""Collectors of people's own: the sample package installed and loaded, faulty ones kept apart, switched by the file."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belay.agents.exporter import collectors, exporter, groups
from belay.agents.exporter.collectors import Collectors, CustomMetric
from belay.agents.exporter.exporter import Exporter
from belay.agents.exporter.settings import parse
from tests.test_exporter_collect import READINGS, HccnTool, Recorded, recorded_tool

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "deploy" / "samples" / "exporter-collector"


class Entry:
    """An entry point of a package that is installed."""

    def __init__(self, name: str, made: Any) -> None:
        self.name, self.value, self._made = name, f"package:{name}", made

    def load(self) -> Any:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def collector(*found: Any, fails: Exception | None = None, wait: threading.Event | None = None) -> Any:
    class Made:
        def collect(self) -> list[Any]:
            if wait is not None:
                wait.wait(60)
            if fails is not None:
                raise fails
            return list(found)

    return Made


def metric(name: str = "rack_power_watts", *rows: tuple[dict[str, str], float]) -> CustomMetric:
    return CustomMetric(name, "Power of the rack", rows or (({"rack": "7"}, 21.5),))


def load(*entries: Entry) -> Collectors:
    return Collectors(lambda: 1_700_000_000_000, entries)  # type: ignore[arg-type]


def test_the_sample_package_is_installed_and_loaded(tmp_path: Path) -> None:
    place, zone = tmp_path / "site", tmp_path / "zones" / "thermal_zone0"
    arguments = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *arguments, "--target", str(place), str(SAMPLE)],
        check=True,
        timeout=100,
    )
    zone.mkdir(parents=True)
    (zone / "type").write_text("cpu\n")
    (zone / "temp").write_text("41500\n")
    code = (
        "import asyncio, json; from belay.agents.exporter.collectors import Collectors\n"
        "found = Collectors(lambda: 5); asyncio.run(found.collect('hostSensors', None))\n"
        "print(json.dumps([found.names, [(m.name, m.labels, m.rows) for m in found.metrics]]))"
    )
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{place}", "HOST_SENSORS": str(zone.parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100, check=True
    )
    names, metrics = json.loads(done.stdout)
    assert names == ["hostSensors"]
    assert metrics == [["host_sensor_celsius", ["type", "zone"], [[["cpu", "thermal_zone0"], 41.5]]]]


def test_a_collector_that_cannot_be_loaded_costs_the_others_nothing() -> None:
    found = load(Entry("bad", ImportError("no module")), Entry("good", collector(metric())))
    asyncio.run(found.collect("good", None))  # type: ignore[arg-type]
    assert found.names == ("good",) and [one.name for one in found.metrics] == ["rack_power_watts"]


@pytest.mark.parametrize(
    "wrong",
    [
        metric("npu_chip_info_temperature"),
        metric("no name"),
        metric("two", ({"a": "1"}, 1), ({"b": "1"}, 2)),
        metric("label", ({"no label": "1"}, 1)),
        metric("nan", ({}, float("nan"))),
        metric("many", *[({"n": str(n)}, 1.0) for n in range(129)]),
        CustomMetric("none", "nothing", ()),
        "text",
    ],
)
def test_what_breaks_a_rule_is_left_out_and_the_last_values_stay(wrong: Any) -> None:
    answers = [[metric()], [wrong]]

    class Turning:
        def collect(self) -> list[Any]:
            return answers.pop(0)

    found = load(Entry("one", Turning))
    asyncio.run(found.collect("one", None))  # type: ignore[arg-type]
    before = found.metrics
    asyncio.run(found.collect("one", None))  # type: ignore[arg-type]
    assert before and found.metrics == before


def test_a_collector_that_hangs_is_not_started_again_and_counts_once_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "PATIENCE", 0.01)
    released = threading.Event()
    found = load(Entry("slow", collector(metric(), wait=released)))

    async def go() -> None:
        await found.collect("slow", None)  # type: ignore[arg-type]
        await found.collect("slow", None)  # type: ignore[arg-type]
        assert [one.name for one in threading.enumerate()].count("collector slow") == 1 and not found.metrics
        released.set()
        async with asyncio.timeout(60):
            while not found.metrics:
                await asyncio.sleep(0.01)

    asyncio.run(go())


@pytest.mark.parametrize("error", [RuntimeError("sensor is gone " * 500), SystemExit(3), KeyboardInterrupt()])
def test_whatever_a_collector_raises_is_logged_in_bounds_and_costs_its_own_metrics_only(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign code may raise anything; the exporter's own metrics, and other collectors, must not end with it."""

    class Broken:
        def collect(self) -> list[CustomMetric]:
            raise error

    class Unloadable:
        def __init__(self) -> None:
            raise error if isinstance(error, SystemExit) else RuntimeError("no such device " * 500)

    found = load(Entry("broken", Broken), Entry("never", Unloadable), Entry("one", collector(metric())))
    assert found.names == ("broken", "one"), "what cannot be loaded is left out"
    for name in found.names:
        asyncio.run(found.collect(name, None))  # type: ignore[arg-type]
    assert [one.name for one in found.metrics] == [metric().name]
    said = [(line.getMessage(), vars(line)["belay_fields"]) for line in caplog.records]
    assert [(message, fields["collector"]) for message, fields in said] == [
        ("a collector cannot be loaded", "never"), ("a collector failed", "broken"),
    ]  # fmt: skip
    assert all(len(fields["error"]) <= 300 for _, fields in said)
    assert type(error).__name__ in said[1][1]["error"]


def test_the_page_shows_collectors_as_the_file_switches_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(exporter, "SETTLE_SECONDS", 0.01)
    info = {"name": "910B3", "type": "Ascend", "version": "V1"}
    source = Recorded({**READINGS, "chip_info": info, "board": {"board": 0x30}, "mainboard": 0, "version": "25.0"}, [
        (0, 0, 0, 0)])  # fmt: skip
    own = load(Entry("rackPower", collector(metric())))

    async def go() -> None:
        work = Exporter(
            parse(["-ip=127.0.0.1", f"-configDir={tmp_path}"]), source, tool=HccnTool(recorded_tool(2)), collectors=own
        )
        running = asyncio.create_task(work.run())

        async def until(truth: Callable[[str], bool]) -> None:
            async with asyncio.timeout(60):
                while not truth(work.page.plain().decode()):
                    assert not running.done(), running.exception()
                    await asyncio.sleep(0.01)

        line = 'rack_power_watts{rack="7"} 21.5 1700000000000'
        await until(lambda text: line in text and "# HELP rack_power_watts Power of the rack" in text)
        file = tmp_path / groups.PLUGINS_FILE
        file.write_text(json.dumps([{"metricsGroup": "rackPower", "state": "OFF"}]))
        await until(lambda text: "rack_power_watts" not in text)
        file.write_text(json.dumps([{"metricsGroup": "rackPower", "state": "ON", "intervalSeconds": 1}]))
        await until(lambda text: line in text)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(go())
