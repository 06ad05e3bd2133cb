"""Parts of the manager for hosts without Kubernetes: codes, chips of containers, faults, states, status table."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from belay.agents.containers import status
from belay.agents.containers.codes import Codes, custom, shipped
from belay.agents.containers.containerd import chips_of_spec
from belay.agents.containers.faults import PER_CHIP, PER_MINUTE, Faults
from belay.agents.containers.runtime import Container
from belay.agents.containers.states import States
from belay.agents.containers.usage import (
    UsageError,
    chips_of_environment,
    chips_of_paths,
    chips_of_rules,
    majors,
)
from belay.agents.drivers.base import Code, Event

FREE, REQUEST, BUSINESS, RESTART, SEPARATE, IGNORED = (
    "80C98001", "80E21008", "80E01801", "80A38008", "80DE1801", "4C1F8608",
)  # fmt: skip


@pytest.fixture(scope="module")
def codes() -> Codes:
    return shipped()


# -- codes


def test_the_shipped_table_has_every_code_once_at_its_highest_level(codes: Codes) -> None:
    assert len(codes) == 350
    assert codes.level("4c1f8608") == codes.level("0x4C1F8608") == "NotHandleFault"
    assert codes.level("FFFFFFFF") == "Unknown"
    # listed twice
    assert codes.level("A2301001") == "SeparateNPU"
    assert codes.worst([]) == "NormalNPU"
    assert codes.worst(["FFFFFFFF"]) == "Unknown"


def test_a_file_of_ones_own_replaces_the_table(tmp_path: Path) -> None:
    file = tmp_path / "codes.json"
    file.write_text(json.dumps({"RestartNPUCodes": ["0x1", "A"], "SeparateNPUCodes": ["a"], "Other": 5}))
    file.chmod(0o640)
    own = custom(file)
    assert [own.level(code) for code in ("1", "00A", "80E01801")] == ["RestartNPU", "SeparateNPU", "Unknown"]
    assert own.worst(["1", "A", "B"]) == "SeparateNPU"


def test_keys_match_as_in_go_and_misspelt_ones_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "codes.json"
    file.write_text(json.dumps({"restartnpucodes": ["1"], "SeparateNpuCode": ["2"]}))
    file.chmod(0o600)
    own = custom(file)
    assert (own.level("1"), own.level("2")) == ("RestartNPU", "Unknown")
    assert [row.getMessage() for row in caplog.records] == ["key of no level is ignored"]


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("{", 0o600, "is not JSON"),
        ("[]", 0o600, "must be a JSON object"),
        ('{"RestartNPUCodes": "1"}', 0o600, "RestartNPUCodes must be a list"),
        ('{"RestartNPUCodes": ["xyz"]}', 0o600, "'xyz' is not a hexadecimal code"),
        ('{"RestartNPUCodes": [17]}', 0o600, "a list of codes in quotes"),
        ("{}", 0o644, "mode 0644; it must be this user's, 0640 or less"),
        ("{}", 0o660, "0640 or less"),
    ],
)
def test_a_file_that_is_malformed_or_open_to_others_is_refused(
    tmp_path: Path, content: str, mode: int, said: str
) -> None:
    file = tmp_path / "codes.json"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ValueError, match=said):
        custom(file)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(ValueError, match="links are not followed"):
        custom(tmp_path / "link")
    with pytest.raises(ValueError, match="cannot be read"):
        custom(tmp_path / "none")


# -- chips


@pytest.mark.parametrize(
    ("value", "chips"),
    [
        ("0", (0,)), ("0,1,2,3", (0, 1, 2, 3)), ("7,1", (1, 7)), ("0-3", (0, 1, 2, 3)), ("0-2,4", (0, 1, 2, 4)),
        ("4,6-7", (4, 6, 7)), ("Ascend910-0,Ascend910-1", (0, 1)), ("Ascend310P-5", (5,)), ("1,1", (1,)), ("3-3", (3,)),
        ("Ascend-2", (2,)),
    ],
)  # fmt: skip
def test_chips_of_the_variable(value: str, chips: tuple[int, ...]) -> None:
    assert chips_of_environment(["PATH=/bin", f"ASCEND_VISIBLE_DEVICES={value}", "X=1"]) == chips


@pytest.mark.parametrize(
    "value",
    [
        "", "a", "0,", "3-1", "1-2-3", "0-32768", "-1", "npu-1", "Ascend910-0,1", "Ascend910", "Ascend910-a",
        "Ascend910-1-2", "0=1", "void", "1" * 1025, "0,Ascend910-1", " 1", "99999",
    ],
)  # fmt: skip
def test_a_bad_item_fails_the_container(value: str) -> None:
    with pytest.raises(UsageError):
        chips_of_environment([f"ASCEND_VISIBLE_DEVICES={value}"])


def test_the_last_entry_that_mentions_the_variable_counts() -> None:
    name = "ASCEND_VISIBLE_DEVICES"
    assert chips_of_environment([f"{name}=0", f"{name}=1"]) == (1,)
    with pytest.raises(UsageError):
        chips_of_environment([f"{name}=0", f"MY_{name}=1"])
    assert chips_of_environment(["A=1"]) is None
    with pytest.raises(UsageError, match="at most 10000"):
        chips_of_environment(["A=1"] * 10_001)


def test_chips_of_mapped_devices() -> None:
    paths = ["/dev/davinci0", "/dev/davinci12", "/dev/davinci_manager", "/dev/hisi_hdc", "/dev/fuse"]
    assert chips_of_paths(paths) == (0, 12)
    with pytest.raises(UsageError):
        chips_of_paths(["/dev/davinciX"])


def test_chips_of_device_rules_go_by_the_drivers_major_numbers() -> None:
    text = "Character devices:\n  1 mem\n236 devdrv-cdev\n237 vdevdrv-cdev\n238 xdevdrv-cdev\n\nBlock devices:\n"
    found = majors(text)
    assert found == {236, 237}
    rules: list[dict[str, Any]] = [
        {"type": "c", "major": 236, "minor": 3}, {"type": "b", "major": 236, "minor": 4}, {"type": "c", "major": 236},
        {"type": "c", "major": 237, "minor": 100}, {"type": "c", "major": 1, "minor": 3}, {"allow": False},
    ]  # fmt: skip
    assert chips_of_rules(rules, found) == (3, 100)
    assert majors("x\n" * 512 + "236 devdrv-cdev\n") == frozenset()
    with pytest.raises(UsageError, match="too large"):
        chips_of_rules([{"type": "c", "major": 236, "minor": 1 << 31}], found)


@pytest.mark.parametrize("spec", [b"", b"[]", b"{", b'{"process": 5}', b'{"linux": []  , "process": "x"}'])
def test_odd_specifications_are_refused(spec: bytes) -> None:
    with pytest.raises(UsageError):
        chips_of_spec(spec, frozenset())


# -- faults


def event(chip: int, code: str, assertion: Any = "occur", module: tuple[int, ...] = (1, 2, 3, 4)) -> Event:
    return Event(chip, code, assertion, 0, "chip", None, module)


def test_faults_begin_end_and_keep_their_first_time(codes: Codes) -> None:
    faults = Faults(codes)
    assert faults.receive([event(1, BUSINESS)], 1000)
    assert not faults.receive([event(1, BUSINESS)], 2000)
    assert faults.since(1) == {BUSINESS: 1000}
    faults.receive([event(1, BUSINESS, module=(9, 9, 9, 9))], 3000)
    faults.receive([event(1, BUSINESS, "recover")], 4000)
    assert faults.since(1) == {BUSINESS: 3000}
    faults.receive([event(1, BUSINESS, "recover", (9, 9, 9, 9))], 5000)
    assert faults.chips() == []


def test_unknown_codes_passing_ones_and_zero_are_nothing(codes: Codes) -> None:
    faults = Faults(codes)
    assert not faults.receive([event(1, "FFFFFFFF"), event(1, BUSINESS, "once"), event(1, "0")], 0)
    assert faults.chips() == []
    assert faults.level(1) == "NormalNPU"


def test_what_was_read_joins_what_is_heard(codes: Codes) -> None:
    faults = Faults(codes)
    assert faults.read({0: [Code(BUSINESS, 0)], 1: [Code("FFFFFFFF", 0)]}, 1000)
    assert faults.stale(1001)
    faults.receive([event(0, BUSINESS)], 9000)
    assert faults.since(0) == {BUSINESS: 1000}
    assert not faults.stale(9001) and faults.stale(301_001)
    assert not faults.read({0: [Code(BUSINESS, 0)]}, 9500)
    faults.settle({1: []})
    assert faults.chips() == [0]
    faults.settle({0: [Code(FREE, 0)]})
    assert faults.chips() == []


def test_floods_are_bounded(codes: Codes) -> None:
    faults = Faults(codes)
    faults.receive([event(1, BUSINESS, module=(0, 0, 0, n)) for n in range(PER_MINUTE + 5)], 0)
    assert faults.dropped == 5
    assert sum(1 for _ in faults._known[1][BUSINESS]) == PER_CHIP
    assert not faults.receive([event(2, BUSINESS)], 59_999)
    assert faults.receive([event(2, BUSINESS)], 60_000)


# -- states


def on(*chips: int, name: str = "", running: bool = True) -> Container:
    return Container(name or f"c{chips[0]}", "default", chips, running)


def ids(found: Any) -> list[str]:
    return [one.id for one in found]


def test_strategies_choose_who_is_stopped_and_started() -> None:
    ring = lambda chip: range(chip // 4 * 4, chip // 4 * 4 + 4)  # noqa: E731
    everyone = [on(0, 1), on(2), on(3, 4, name="bridge"), on(7)]
    for strategy, stopped in (
        ("never", []), ("singleRecover", ["c2"]), ("ringRecover", ["bridge", "c0", "c2"]),
    ):  # fmt: skip
        states = States(strategy, ring)  # type: ignore[arg-type]
        states.see(everyone, 10)
        assert ids(states.to_pause({2})) == stopped
    # together with its neighbours, and only when all their rings are well
    for one in states.to_pause({2}):
        states.move(one, "paused", 20)
    assert ids(states.to_resume({6})) == []
    assert ids(states.to_resume(set())) == ["bridge", "c0", "c2"]
    assert states.held([0, 1, 2, 3]) == [] and states.held([7]) == ["c7"]


def test_what_fails_is_tried_again_and_what_others_do_is_seen() -> None:
    states = States("singleRecover", lambda chip: (chip,))
    states.see([on(0)], 10)
    (one,) = states.to_pause({0})
    states.move(one, "pausing", 11)
    assert ids(states.to_pause({0})) == ["c0"]
    assert states.held([0]) == ["c0"]
    # it was stopped by hand meanwhile
    states.see([on(0, running=False)], 12)
    assert states.listed() == [("c0", "paused", 12)]
    states.move(one, "resuming", 13)
    assert ids(states.to_resume(set())) == ["c0"]
    assert ids(states.to_resume({0})) == []
    states.see([on(0)], 14)
    assert states.listed() == [("c0", "running", 14)]
    # ended without a stop: uses nothing; started again: another one
    states.see([on(0, running=False)], 15)
    assert states.listed() == []
    states.see([on(0)], 16)
    assert states.listed() == [("c0", "running", 16)]
    states.see([], 17)
    assert states.listed() == []


def test_only_what_this_manager_stopped_is_started_also_after_a_restart() -> None:
    states = States("singleRecover", lambda chip: (chip,))
    states.remember({"c0": ("paused", 5), "c1": ("running", 5), "c3": ("pausing", 5)})
    states.see([on(0, running=False), on(1, running=False), on(2, running=False), on(3)], 10)
    assert states.listed() == [("c0", "paused", 5), ("c3", "running", 10)]
    assert ids(states.to_resume(set())) == ["c0"]


# -- status


def test_the_state_file_is_replaced_whole_and_private_enough(tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    file.symlink_to(victim)
    status.write(file, [("c0", "paused", 5)])
    assert victim.read_text() == "precious" and not file.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o640
    assert json.loads(file.read_text()) == [
        {"CtrId": "c0", "Status": "paused", "StatusStartTime": 5, "Description": ""}
    ]
    assert status.earlier(file) == {"c0": ("paused", 5)}
    file.chmod(0o666)
    assert status.earlier(file) == {}
    assert sorted(os.listdir(tmp_path)) == ["status.json", "victim"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("{}", "a list of records"),
        ("[5]", "a list of records"),
        ('[{"CtrId": "a"}]', "lacks"),
        ('[{"CtrId": "a", "StatusStartTime": 1000000000000000000000}]', "is not a time in Unix seconds"),
        ('[{"CtrId": "a", "StatusStartTime": -1}]', "-1 is not a time in Unix seconds"),
    ],
)
def test_a_bad_state_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "status.json"
    with pytest.raises(status.StatusError, match="is not there"):
        status.read(file)
    file.write_text(content)
    with pytest.raises(status.StatusError, match=said):
        status.read(file)


@pytest.mark.parametrize(
    ("state", "after", "text"),
    [
        ("running", 10_000, "normal"), ("pausing", 30, "normal"),
        ("pausing", 31, "Container pause may fail. Please manually delete the container"), ("paused", 400, "normal"),
        ("paused", 401, "Device hot reset may fail. Please check of device status and recovery are required"),
        ("resuming", 30, "normal"),
        ("resuming", 31, "The device has been recovered, but the container failed to be resumed. "
         "Please manually pull up the container"), ("asleep", 0, "unknown"),
    ],
)  # fmt: skip
def test_descriptions(state: str, after: int, text: str) -> None:
    assert status.description(state, 1000, 1000 + after) == text


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    rows = [{"CtrId": "a" * 64, "Status": "resuming", "StatusStartTime": 0, "Description": ""}]
    lines = status.table(rows, 100).splitlines()
    assert lines[0] == lines[-1] == "+" + "=" * 98 + "+"
    assert lines[1] == "| Container ID               : " + "a" * 64 + "    |"
    assert lines[2] == f"| {'Container Status':<27}: {'resuming':<67} |"
    assert lines[3] == f"| Container Status Start Time: {'1970-01-01 00:00:00':<67} |"
    assert (
        lines[4]
        == f"| {'Container Description':<27}: {'The device has been recovered, but the container failed to be':<67} |"
    )
    assert lines[5] == f"| {'':>27}  {'resumed. Please manually pull up the container':<67} |"
    assert all(len(line) == 100 for line in lines)
    assert status.table([], 0) == lines[0] + "\n"
