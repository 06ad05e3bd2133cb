"""A training process on the bus: link switch, stress test, profiling and its files, groups."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from belay.agents.training.compat.bus import codes
from belay.agents.training.compat.bus.member import Member
from belay.agents.training.compat.bus.message import Body
from belay.agents.training.compat.bus.position import MANAGER, PROXY, WORKER, Position
from belay.agents.training.compat.taskd import bus_worker, device_functions, group_info
from belay.agents.training.compat.taskd.bus_worker import BusWorker
from belay.agents.training.compat.taskd.profiling import Profiler
from belay.agents.training.compat.taskd.profiling_files import Records
from tests.training.taskd_world import free_port

pytestmark = pytest.mark.real_time


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No log files in the repository, no state of an earlier test."""
    monkeypatch.setenv("TASKD_LOG_PATH", str(tmp_path / "taskd_log"))
    monkeypatch.setattr(bus_worker, "_worker", None)
    for name in (
        "PROCESS_RECOVER",
        "TASKD_PROCESS_ENABLE",
        "RANK",
        "MINDX_TASK_ID",
        "MASTER_ADDR",
        "LOCAL_PROXY_ENABLE",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "rank"),
    [(("0",), "0"), ((-1,), "0"), ((True,), "0"), ((0, -5), "0"), ((0, "x"), "0"), ((0, 5000, "tf"), "0"), ((0,), ""),
     ((0,), "x")],
)  # fmt: skip
def test_a_worker_with_wrong_values_is_refused(arguments: Any, rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", rank)
    assert bus_worker.init_taskd_worker(*arguments) is False
    assert bus_worker.start_taskd_worker() is False
    assert bus_worker.destroy_taskd_worker() is False


def test_a_worker_without_a_bus_does_not_affect_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("TASKD_PROXY_PORT", str(free_port()))
    assert bus_worker.init_taskd_worker(9, 100)
    assert bus_worker.start_taskd_worker() and bus_worker.start_taskd_worker()
    assert bus_worker.destroy_taskd_worker()


class Pod:
    """A manager's member, a proxy and one worker with callbacks of the test."""

    def __init__(self, folder: Path, switch: Any, test: Any) -> None:
        self.manager = Member(Position(MANAGER, "0"), listen="127.0.0.1:0")
        self.manager.start()
        self.proxy = Member(Position(PROXY, "0"), listen="127.0.0.1:0", upstream=f"127.0.0.1:{self.manager.port}")
        self.proxy.start()
        self.profiler = Profiler(Records(folder / "profiling/job/3", 1))
        self.worker = BusWorker(
            3, 0, self.profiler, upstream=f"127.0.0.1:{self.proxy.port}", switch=switch, test=test,
            switch_file=folder / "profilingSwitch",
        )  # fmt: skip
        self.worker.start()
        assert self.answer().code == codes.WORKER_REGISTERED

    def answer(self) -> Body:
        while True:
            found = self.manager.receive(60.0)
            assert found is not None and found.src == Position(WORKER, "0", "3")
            if found.body.kind != codes.KEEP_ALIVE:
                return found.body

    def ask(self, code: int, **extension: str) -> Body:
        body = Body(codes.ACTION, code, "", extension)
        assert self.manager.send(Position(WORKER, "0", "3"), body, sync=True) == 0
        return self.answer()

    def close(self) -> None:
        for member in (self.worker, self.proxy, self.manager):
            getattr(member, "stop", getattr(member, "close", None))()


@pytest.fixture
def asked() -> list[Any]:
    return []


@pytest.fixture
def pod(tmp_path: Path, asked: list[Any]) -> Iterator[Pod]:
    def switch(ranks: list[int], ops: list[bool]) -> bool:
        asked.append((ranks, ops))
        if ranks == [9]:
            raise RuntimeError("a user's callback")
        return ranks == [0, 3]

    def test(op: int) -> str:
        asked.append(op)
        return "0-ok" if op == 0 else "2-hot, very"

    found = Pod(tmp_path, switch, test)
    yield found
    found.close()


def test_workers_switch_links_and_answer(pod: Pod, asked: list[Any]) -> None:
    def switch(ranks: list[str], ops: list[bool]) -> str:
        found = pod.ask(204, switchNicUUID="u", globalRankIDs=json.dumps(ranks), globalOps=json.dumps(ops))
        assert found.extension == {"switchNicUUID": "u"}
        return found.message

    assert switch(["0", "3"], [True, False]) == "switchOK"
    assert asked == [([0, 3], [True, False])]
    assert switch(["1"], [True]) == "switchFail"
    assert switch(["9"], [True]) == "switchFail"
    # an unreadable order is ignored, the next one is carried out
    bad = Body(codes.ACTION, 204, "", {"switchNicUUID": "u", "globalRankIDs": "[1]", "globalOps": "[]"})
    assert pod.manager.send(Position(WORKER, "0", "3"), bad, sync=True) == 0
    assert switch(["0", "3"], [True, True]) == "switchOK"


def test_workers_run_stress_tests_in_order_and_answer(pod: Pod, asked: list[Any]) -> None:
    found = pod.ask(205, stressTestUUID="u", StressTestRankOPStr=json.dumps({"3": {"ops": [1, 0]}}))
    assert asked == [0, 1]
    assert json.loads(found.message) == {
        "rankResult": {"0": {"code": "0", "result": "ok"}, "1": {"code": "2", "result": "hot, very"}}
    }


def chips(monkeypatch: pytest.MonkeyPatch, framework: str, **functions: Any) -> None:
    """A framework whose functions on chips are those given."""
    if framework == "pt":
        monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(npu=SimpleNamespace(**functions)))
        return
    monkeypatch.setitem(sys.modules, "mindspore", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mindspore.communication", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "mindspore.communication.management", SimpleNamespace(**functions))
    monkeypatch.setitem(sys.modules, "mindspore.utils", SimpleNamespace(**functions))


@pytest.mark.parametrize("framework", ["pt", "ms"])
def test_each_framework_tests_and_switches_its_own_chips(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    chips(
        monkeypatch, framework, set_device=lambda device: done.append(("device", device)),
        stress_detect=lambda kind: done.append(kind) or 2, _comm_switch_nic=lambda ranks, ops: ranks == [3],
    )  # fmt: skip
    assert device_functions.stress(framework, 1, {"LOCAL_RANK": "5"}) == "2-find fault rank"
    assert done == ([("device", 5), "hccs"] if framework == "pt" else ["hccs"])
    assert device_functions.switch_links(framework, [3], [True]) is True
    assert device_functions.switch_links(framework, [4], [True]) is False


def test_a_stress_test_that_raises_left_the_voltage_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(kind: str) -> int:
        raise OSError("voltage, still low")

    chips(monkeypatch, "pt", set_device=lambda device: None, stress_detect=raises)
    assert device_functions.stress("pt", 0, {"LOCAL_RANK": "0"}) == "4-voltage recovery failed: voltage; still low"
    assert device_functions.stress("pt", 0, {}).startswith("1-exec failed")
    chips(monkeypatch, "pt", set_device=lambda device: None, stress_detect=lambda kind: 99)
    assert device_functions.stress("pt", 0, {"LOCAL_RANK": "0"}) == "1-exec failed"
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert device_functions.stress("pt", 0, {"LOCAL_RANK": "0"}).startswith("1-exec failed: import of torch_npu")
    assert device_functions.switch_links("pt", [0], [True]) is False


def test_profiling_follows_commands_and_the_switch_file(pod: Pod, tmp_path: Path) -> None:
    pod.profiler._installed = True
    assert pod.ask(711).code == 1411
    pod.profiler.mark("step 1", "default", 5, 9)
    assert pod.ask(700).code == 1400
    (file,) = (tmp_path / "profiling/job/3").iterdir()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["Flag"], one["Timestamp"], one["Name"], one["Domain"]) for one in records] == [
        (2, 5, "step 1", "default"), (4, 9, "step 1", "default"),
    ]  # fmt: skip
    assert records[0]["MsptiObjectId"]["Pt"]["ProcessId"] == os.getpid()
    (tmp_path / "profilingSwitch").write_text('{"Step": "on", "CommunicationOperator": "off"}')
    assert pod.answer().code == 1410
    (tmp_path / "profilingSwitch").write_text('{"Step": ')
    (tmp_path / "profilingSwitch").write_text('{"Step": "off"}')
    assert pod.answer().code == 1400


def test_the_quota_removes_the_oldest_fifth_and_keeps_three(tmp_path: Path) -> None:
    where = tmp_path / "job/0"
    where.mkdir(parents=True)
    for name in range(1000, 1010):
        (where / str(name)).write_bytes(b"x" * (200 << 10))
    records = Records(where, 1)
    records.put({"Kind": 1})
    records.flush()
    assert len(list(where.iterdir())) == 9
    assert not (where / "1000").exists() and not (where / "1001").exists()
    for _ in range(20):
        records._keep_quota()
    assert len(list(where.iterdir())) >= 3


def test_a_failing_disk_is_a_state_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("a file where the folder should be")
    records = Records(tmp_path / "job/0", 1)
    records.put({"Kind": 1})
    records.flush()
    assert records.trouble
    profiler = Profiler(records)
    profiler._installed = True
    assert profiler.command(710) == 1420
    records.stop()
    with pytest.raises(ValueError, match="715 is not a command"):
        profiler.command(715)


def groups(tmp_path: Path, backend: str = "hccl") -> Any:
    whole, part = SimpleNamespace(group_name="w"), SimpleNamespace(group_name="p")
    table = {0: whole, 1: part}
    ranks = {0: {0: 0, 1: 1, 2: 2}, 1: {1: 0, 2: 1}}

    class Keyed(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(id(key))

        def __contains__(self, key: object) -> bool:
            return super().__contains__(id(key))

    class Groups:
        def items(self) -> Any:
            return [(table[n], ranks[n]) for n in table]

    names = Keyed({id(part): "tp"})
    names.get = lambda key, default: "tp" if key is part else default  # type: ignore[method-assign]
    return SimpleNamespace(
        _world=SimpleNamespace(
            pg_group_ranks=Groups(),
            pg_map=Keyed({id(whole): (backend, None), id(part): (backend, None)}),
            pg_names=names,
        ),
        get_rank=lambda group: 1 if group is whole else 0,
        GroupMember=SimpleNamespace(WORLD=whole),
    )


def test_groups_are_written_for_slow_node_detection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = group_info.gather(groups(tmp_path))
    assert found == {
        "w": {"group_name": "default_group", "group_rank": 1, "global_ranks": [0, 1, 2]},
        "p": {"group_name": "tp", "group_rank": 0, "global_ranks": [1, 2]},
    }
    assert group_info.gather(groups(tmp_path, "gloo")) == {}
    target = group_info.place({"MINDX_TASK_ID": "job", "RANK": "1", "GROUP_BASE_DIR": str(tmp_path)})
    group_info.write(target, found)
    assert target == tmp_path / "job/1/parallel_group.json"
    assert json.loads(target.read_text()) == found
    assert '\n    "w"' in target.read_text()


def test_groups_without_a_job_or_behind_a_link_are_not_written(tmp_path: Path) -> None:
    base = {"RANK": "1", "GROUP_BASE_DIR": str(tmp_path)}
    for environ in (base, {**base, "MINDX_TASK_ID": "../x"}, {**base, "MINDX_TASK_ID": "job", "RANK": ""}):
        with pytest.raises(ValueError):
            group_info.place(environ)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="symbolic link"):
        group_info.place({**base, "MINDX_TASK_ID": "job"})
    group_info.dump_group_info()  # no job here: an error in the log, never an exception
