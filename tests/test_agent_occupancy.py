"""Who is on which chip, as an agent judges it before anything destructive."""

from __future__ import annotations

from belay.agents.node.occupancy import users
from belay.engine.wire.podannotations import physical_names
from tests import worlds

#: An Ascend950 server whose driver numbers the chips the other way round.
BASE = {f"npu-{physical}": {"DeviceID": 7 - physical} for physical in range(8)}


def test_on_ascend950_a_pod_is_found_on_the_chip_that_its_logic_id_means() -> None:
    pod = worlds.pod("p", node="n0", chips=[1], prefix="npu-", resource="huawei.com/npu")
    found = users([pod], range(8), (), "npu-", physical_names(BASE))
    assert found.chips == {6: ("train/p",)}
    assert found.of([1]) == (), "chip 1 is idle, and may be reset"


def test_where_ids_agree_names_mean_what_they_say() -> None:
    same = {f"npu-{i}": {"DeviceID": i} for i in range(8)}
    assert physical_names(same) == {}
    pod = worlds.pod("p", node="n0", chips=[1], prefix="npu-", resource="huawei.com/npu")
    assert users([pod], range(8), (), "npu-", physical_names(same)).chips == {1: ("train/p",)}
    assert physical_names({"Ascend910-0": {"DeviceID": 5}}) == {}, "only Ascend950 maps"
