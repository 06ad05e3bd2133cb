"""Device reports and pods are taken literally: lists of chips, their lengths, task numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from belay.engine.gangs.forming import declared_rank
from belay.engine.plan import plan
from belay.engine.wire import objects
from tests import placing, worlds
from tests.placing import POLICY, bindings, busy, gang, scope_of, with_settings

A2 = {POLICY: "chip8-node8"}
KIND = "huawei.com/Ascend910"


def test_a_chip_that_only_belay_keeps_out_does_not_lower_its_nodes_score() -> None:
    """Base scores count the entries of the report's list; a used chip with a waiting fault is not in it."""
    pods, group = gang(1, 1, annotations=A2)
    waits = worlds.fault(7, level="PreSeparateNPU")
    world = worlds.observed(
        [worlds.node("a"), worlds.node("b")],
        [worlds.report("a", faults=[waits], unhealthy=()), worlds.report("b")],
        [*pods, busy("a", [5, 6, 7]), busy("b", [6, 7])],
        objects=[group],
    )
    found = plan(placing.shipped(), world, worlds.NOW)
    assert found.scores["train/case-0"] == {"a": 795, "b": 794}


@pytest.mark.parametrize(("entries", "fits"), [(range(3, 7), True), (range(3, 8), False)])
def test_more_broken_ports_than_a_node_has_chips_make_it_unusable_for_distributed_jobs(
    entries: range, fits: bool
) -> None:
    """Handler ``half`` has four chips: five entries show that the report and the labels describe different nodes."""
    notes = {POLICY: "chip4-node4"}
    pods, group = gang(2, 1, annotations=notes)
    node, report, others = worlds.node("a"), worlds.report("a", network=entries), busy("a", range(2, 6))
    scope = scope_of(worlds.observed([node], [report], [*pods, others], objects=[group]))
    assert bool(bindings(scope)) is fits
    if not fits:
        (entry,) = scope.pending
        assert "node npu networkUnhealthy top<[3 4 5 6 7]> is invalid" in entry.message
    single, alone = gang(1, 1, annotations=notes)
    scope = scope_of(worlds.observed([node], [report], [*single, others], objects=[alone]))
    assert bindings(scope), "a single pod does not ask for the network"


@pytest.mark.parametrize("maintain", [True, False])
def test_without_own_bookkeeping_the_reported_list_counts(maintain: bool) -> None:
    """``self-maintain-available-card`` false: listed chips count although ``baseDeviceInfos`` does not name them."""
    pods, group = gang(1, 8, annotations=A2)
    node = worlds.node("n0")
    devices = {name: row for name, row in node.base_devices.items() if not name.endswith("-7")}
    node = msgspec.structs.replace(node, base_devices=devices, base_chips=0x7F)
    world = worlds.observed([node], [worlds.report("n0")], pods, objects=[group])
    params = {"self-maintain-available-card": str(maintain).lower()}
    scope = scope_of(world, desired=with_settings(initParams=params))
    if maintain:
        assert not bindings(scope) and "idle<7>" in scope.pending[0].message
    else:
        (bound,) = bindings(scope).values()
        assert len(bound.chips) == 8 and "huawei.com/AscendReal" not in bound.annotations


def pod_of(name: str, env: object, owner: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"namespace": "train", "name": name, "uid": name, "annotations": annotations}
    if owner:
        meta["ownerReferences"] = [{"controller": True, "name": "j", "uid": "u", **owner}]
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "env": env}]}}


VCJOB = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}


@pytest.mark.parametrize(
    ("name", "env", "owner", "notes", "rank"),
    [
        ("g-worker-0", [{"name": "VC_TASK_INDEX", "value": "5"}], VCJOB, {}, 5),
        ("g-worker-0", [{"name": "OTHER", "value": "5"}], VCJOB, {}, 0),
        ("g-worker-1", [{"name": "VC_TASK_INDEX", "value": "-5"}], VCJOB, {}, 1),
        ("g-worker-1", [{"name": "VC_TASK_INDEX", "valueFrom": {}}], VCJOB, {}, 1),
        ("g-worker-1", None, VCJOB, {}, 1),
        ("g", [{"name": "VC_TASK_INDEX", "value": "4"}], None, {"scheduling.k8s.io/group-name": "g"}, 4),
        ("g", [{"name": "VC_TASK_INDEX", "value": "4"}], VCJOB, {"hccl/rankIndex": "2"}, 2),
        ("g-3", [{"name": "VC_TASK_INDEX", "value": "4"}], {"apiVersion": "apps/v1", "kind": "StatefulSet"},
         {"scheduling.k8s.io/group-name": "g"}, 3),
        ("g", [{"name": "VC_TASK_INDEX", "value": "4"}], None, {}, None),
    ],
)  # fmt: skip
def test_a_pod_of_a_volcano_job_has_its_number_in_its_environment(
    name: str, env: object, owner: dict[str, str] | None, notes: dict[str, str], rank: int | None
) -> None:
    assert declared_rank(objects.pod(pod_of(name, env, owner, **notes))) == rank
