"""Tests on real time come first and on their own workers; every test runs once, whatever the workers do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lanes import LANES, LONGEST, Lanes, group, group_of, is_lane, on_real_time

REAL = [f"tests/test_{name}.py::test_{number}@{name}" for name in ("redis", "kubelet", "tft") for number in range(3)]
PLAIN = [f"tests/test_plan.py::test_{number}" for number in range(40)]


class Worker:
    """What pytest-xdist knows of a worker; `sent` are the tests that it was given, in order."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent: list[str] = []

    def send_runtest_some(self, places: list[int]) -> None:
        self.sent += [COLLECTED[place] for place in places]

    def shutdown(self) -> None:
        self.shutting_down = True


COLLECTED = sorted(REAL + PLAIN)


def scheduled(workers: int) -> tuple[Lanes, list[Worker]]:
    option = SimpleNamespace(loadscopereorder=True, debug=False, verbose=0, quiet=0)
    values = {"tx": ["popen"] * workers}
    config: Any = SimpleNamespace(option=option, getvalue=values.get, getoption=values.get)
    made = [Worker(f"gw{number}") for number in range(workers)]
    lanes = Lanes(config)
    for one in made:
        worker: Any = one
        lanes.add_node(worker)
    for one in made:
        worker = one
        lanes.add_node_collection(worker, COLLECTED)
    lanes.schedule()
    return lanes, made


def played(workers: int, speeds: list[int]) -> tuple[list[Worker], list[tuple[int, str]]]:
    """The workers and what ran where, when worker n ends ``speeds[n]`` tests a turn."""
    lanes, made = scheduled(workers)
    ran: list[tuple[int, str]] = []
    ended = [0] * workers
    for _ in range(1000):
        for number, one in enumerate(made):
            for _ in range(speeds[number]):
                # a worker needs to know its next test to end one, or that there is none
                if ended[number] < len(one.sent) - (not one.shutting_down):
                    nodeid = one.sent[ended[number]]
                    ended[number] += 1
                    ran.append((number, nodeid))
                    worker: Any = one
                    lanes.mark_test_complete(worker, COLLECTED.index(nodeid))
    return made, ran


@pytest.mark.parametrize("speeds", [[1, 1, 1, 1], [9, 1, 1, 1], [1, 1, 30, 30], [1, 0, 2, 2]])
def test_every_test_runs_once_and_groups_stay_together_in_lanes(speeds: list[int]) -> None:
    made, ran = played(4, speeds)
    if all(speeds):
        assert sorted(nodeid for _, nodeid in ran) == COLLECTED and all(one.shutting_down for one in made)
    for name in ("redis", "kubelet", "tft"):
        assert len({worker.gateway.id for worker in made for one in worker.sent if group_of(one) == name}) == 1
    for worker in made[LANES:]:
        kinds = [bool(group_of(nodeid)) for nodeid in worker.sent]
        assert kinds == sorted(kinds), "they take a group only when nothing else is left"
    for worker in made[:LANES]:
        kinds = [bool(group_of(nodeid)) for nodeid in worker.sent]
        assert kinds == sorted(kinds, reverse=True), "they compute only when no group is left"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_fewer_workers_run_everything_too(workers: int) -> None:
    _, ran = played(workers, [1] * workers)
    assert sorted(nodeid for _, nodeid in ran) == COLLECTED


def test_what_a_worker_that_died_had_is_run_by_the_others() -> None:
    lanes, made = scheduled(3)
    first: Any = made[0]
    lost = list(made[0].sent)
    assert lanes.remove_node(first) == lost[0]
    given = {nodeid for worker in made[1:] for nodeid in worker.sent}
    waiting = {nodeid for tests in lanes.workqueue.values() for nodeid in tests}
    assert set(lost) <= given | waiting and len(given) + len(waiting) == len(COLLECTED)


def test_the_longest_group_comes_first() -> None:
    assert group_of(scheduled(4)[1][0].sent[0]) == "tft"


def test_long_groups_are_those_of_a_module_or_a_mark() -> None:
    tests = Path(__file__).parent
    sources = {file.stem: file.read_text() for file in [*tests.rglob("test_*.py"), *tests.glob("*.py")]}
    marked = "".join(text for name, text in sources.items() if name not in ("lanes", "test_lanes"))
    for name in LONGEST:
        assert name in sources or f'xdist_group("{name}")' in marked, name


def test_lanes_are_the_first_workers() -> None:
    assert [name for name in ("gw0", "gw1", "gw2", "gw10", "") if is_lane(name)] == ["gw0", "gw1"]


def test_ids_with_groups() -> None:
    assert group_of("t.py::test_a@node") == "node"
    assert group_of("t.py::test_a[x@y]") == "" and group_of("t.py::test_a[x@y]@node") == "node"


def test_tests_on_real_time_are_grouped_by_module(request: pytest.FixtureRequest) -> None:
    item = request.node
    assert not on_real_time(item)
    group([item])
    assert item.get_closest_marker("xdist_group") is None
    item.add_marker(pytest.mark.e2e)
    group([item])
    (found,) = item.iter_markers("xdist_group")
    assert found.args == ("test_lanes",)
    group([item])
    assert len(list(item.iter_markers("xdist_group"))) == 1
