"""What a stress test makes chips report is hidden on the nodes under test, and only there and then."""

from __future__ import annotations

from typing import Any

import pytest

from belay.engine.model.actions import EvictPod, IsolateChip
from belay.engine.model.recovery.conversation import Conversation, Operation
from belay.engine.model.recovery.progress import ABANDONED_MS
from belay.engine.model.recovery.protocol import State
from belay.engine.model.stress import without_test_faults
from belay.engine.observe.observed import Observer
from belay.engine.plan import plan
from belay.engine.wire import deviceinfo, recoveryrecord
from belay.engine.wire.gojson import go_json
from belay.engine.wire.recoveryrecord import Record
from tests.worlds import NOW, desired, fault, report

MS = int(NOW * 1000)


def device_info(*codes: tuple[str, str], update: float = NOW - 1) -> dict[str, Any]:
    """Node ``n0``'s report with these codes and levels on chip 2."""
    rows = {code: (MS - 500, level) for code, level in codes}
    element = deviceinfo.fault_element("CardUnhealthy", "Ascend910-2", rows, codes[0][1] if codes else "")
    lists = {
        "huawei.com/Ascend910": ",".join(f"Ascend910-{c}" for c in range(8) if c != 2),
        "huawei.com/Ascend910-Unhealthy": "Ascend910-2",
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Recovering": "",
        "huawei.com/Ascend910-Fault": go_json([element] if codes else []),
    }
    return deviceinfo.build("n0", device_list=lists, update_time=int(update))


def record(state: State = State.WAIT_STRESS_TEST, nodes: tuple[str, ...] = ("n0",), **change: Any) -> dict[str, Any]:
    operation = change.pop("operation", Operation("stress", "{}", tested=nodes))
    talk = Conversation(job="job-1", state=state, since=MS - 60_000, deadline=MS + 600_000, operation=operation)
    return recoveryrecord.build(Record(conversation=talk))


def seen(*bodies: dict[str, Any]) -> Observer:
    observer = Observer()
    for body in ({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "uid": "u"}, "spec": {}, "status": {}},
                 *bodies):  # fmt: skip
        observer.put(body)
    return observer


SEPARATE, SUB_HEALTH = ("80818C05", "SeparateNPU"), ("80818C06", "SubHealthFault")
OTHER = ("80C98001", "RestartNPU")


@pytest.mark.parametrize("code", [SEPARATE, SUB_HEALTH])
def test_codes_of_the_test_are_hidden_on_its_nodes(code: tuple[str, str]) -> None:
    found = seen(device_info(code), record()).observed().reports["n0"]
    assert found.faults == () and found.unhealthy == 0


def test_other_faults_of_the_chip_stay() -> None:
    found = seen(device_info(SEPARATE, OTHER), record()).observed().reports["n0"]
    assert [f.code for f in found.faults] == ["80C98001"] and found.unhealthy == 4


def test_the_plan_leaves_the_job_alone_while_it_is_tested() -> None:
    tested, plain = (
        plan(desired(), seen(device_info(SEPARATE), *more).observed(), NOW).actions for more in ((record(),), ())
    )
    assert not any(isinstance(a, IsolateChip | EvictPod) for a in tested)
    assert any(isinstance(a, IsolateChip) for a in plain)


@pytest.mark.parametrize("code", [SEPARATE, SUB_HEALTH])
def test_the_plan_shows_what_the_test_makes_a_chip_report(code: tuple[str, str]) -> None:
    made = plan(desired(), seen(device_info(code), record()).observed(), NOW)
    (row,) = made.chips
    assert (row.chip, row.state, row.level, row.codes) == ("Ascend910-2", "suspect", code[1], (code[0],))
    assert row.fault_type == ("CardUnhealthy",)
    assert made.actions == () and made.history.nodes == {}, "nothing follows, nothing counts"


def test_a_real_fault_beside_the_test_counts_and_is_shown_with_it() -> None:
    made = plan(desired(), seen(device_info(SEPARATE, OTHER), record()).observed(), NOW)
    (row,) = made.chips
    assert (row.state, row.level, row.codes) == ("isolated", "SeparateNPU", ("80818C05", "80C98001"))
    (isolated,) = [a for a in made.actions if isinstance(a, IsolateChip)]
    assert (isolated.level, isolated.evidence.codes) == ("RestartNPU", ("80818C05", "80C98001"))


@pytest.mark.parametrize(
    "other",
    [
        record(nodes=("n1",)),
        record(State.INIT),
        record(State.STOP_TRAIN),
        record(operation=Operation("nic", "{}", tested=("n0",))),
        record(operation=None),
    ],
    ids=["another node", "over", "recovery", "link switch", "none"],
)
def test_nothing_is_hidden_without_a_test_of_the_node(other: dict[str, Any]) -> None:
    assert seen(device_info(SEPARATE), other).observed().reports["n0"].unhealthy == 4


def test_the_end_of_the_test_shows_them_again() -> None:
    observer = seen(device_info(SEPARATE), record())
    assert observer.observed().reports["n0"].unhealthy == 0
    observer.put(record(State.INIT))
    assert observer.observed().reports["n0"].unhealthy == 4


def test_a_test_whose_server_died_hides_faults_for_a_limited_time() -> None:
    late = (MS + 600_000 + ABANDONED_MS) / 1000 + 1
    observer = seen(device_info(SEPARATE, update=late), record())
    assert observer.observed().reports["n0"].unhealthy == 4


def test_a_masked_report_stays_the_same_object() -> None:
    observer = seen(device_info(SEPARATE), record())
    first = observer.observed().reports["n0"]
    assert observer.observed().reports["n0"] is first
    clean = report("n0")
    assert without_test_faults(clean) is clean


def test_a_manually_isolated_chip_stays_isolated() -> None:
    body = report("n0", faults=[fault(2, "80818C05", "SeparateNPU")], manual=[2], unhealthy=[2])
    assert without_test_faults(body).unhealthy == 4 and without_test_faults(body).faults == ()
