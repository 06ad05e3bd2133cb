"""Actions as documents: the bytes of every kind stand in golden/actions.jsonl, as versions before wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from belay.engine.model.action_documents import action_of, document
from belay.engine.model.actions import (
    Action,
    AnyAction,
    BindPod,
    CreateObject,
    CreatePod,
    DeleteObject,
    EvictPod,
    Evidence,
    Generate,
    IsolateChip,
    IsolateNode,
    Owner,
    OwnerReference,
    PartitionChip,
    PatchObject,
    PatchType,
    Preconditions,
    RankStatus,
    ReleaseChip,
    ReleaseNode,
    ResetChips,
    ScaleJob,
    SignalJob,
    WriteRankTable,
    kind_of,
)
from belay.engine.model.cluster import InPlaceReset
from belay.engine.model.plan import Deferred, Plan

GOLDEN = Path(__file__).parent / "golden" / "actions.jsonl"

WHY: Any = {
    "reason": "Because",
    "message": "why it is",
    "evidence": Evidence(rule="r", file="f.yaml", line=3, revision="abc", codes=("80C98001",), reports=("a/b@7",)),
}
OBJECT: Any = {"api_version": "v1", "object_kind": "ConfigMap", "namespace": "a", "name": "b"}
OWNER = OwnerReference("batch.volcano.sh/v1alpha1", "Job", "j", "u-j")
ONLINE = InPlaceReset("a/p", "u-p", "reset", 15, 150)
ROWS = (RankStatus(3, 3, "unrecovered", "reset", "reset", [], "80C98001"),)
BIND: Any = {"namespace": "a", "pod": "p", "node": "n", "chips": ("Ascend910-0",), "annotations": {"k": "v"}}
EVICT: Any = {
    "namespace": "a",
    "pod": "p",
    "grace_period_seconds": 30,
    "force": False,
    "owner": Owner("Job", "j"),
    "budget_unit": "a/Job/j",
}
RESET: Any = {"node": "n", "chips": ("Ascend910-0", "Ascend910-1"), "epoch": 4, "out_of_band": False}
SIG: Any = {"namespace": "a", "name": "j", "signal": "fault", "ranks": (1, 2)}
PART: Any = {
    "node": "n",
    "chip": "Ascend910-0",
    "templates": ("vir04",),
    "create": ("vir04",),
    "destroy": ("7",),
    "epoch": 2,
}
ACTIONS: list[AnyAction] = [
    CreateObject(**WHY, **OBJECT, object={"data": {"b": "1", "a": "2"}}),
    CreateObject(**WHY, **OBJECT, object={"data": {}}, generate=Generate("ssh-keys", OWNER)),
    PatchObject(**WHY, **OBJECT, patch={"data": {}}, patch_type=PatchType.APPLY),
    PatchObject(**WHY, **OBJECT, patch={"data": {}}, preconditions=Preconditions(uid="u"), patch_type=PatchType.APPLY),
    PatchObject(**WHY, **OBJECT, patch={"status": {}}, patch_type=PatchType.MERGE),
    PatchObject(
        **WHY, **OBJECT, patch={"status": {}}, preconditions=Preconditions(uid="u"), patch_type=PatchType.MERGE
    ),
    PatchObject(
        **{**WHY, "reason": "RankAssigned"},
        **{**OBJECT, "object_kind": "Pod"},
        patch={"metadata": {}},
        preconditions=Preconditions(uid="u"),
        patch_type=PatchType.MERGE,
    ),
    PatchObject(
        **{**WHY, "reason": "ManifestChanged"},
        **{**OBJECT, "object_kind": "Pod"},
        patch={"metadata": {}},
        preconditions=Preconditions(uid="u"),
        patch_type=PatchType.APPLY,
    ),
    PatchObject(
        **{**WHY, "reason": "CardUnhealthy"},
        **{**OBJECT, "object_kind": "Pod"},
        patch={"metadata": {}},
        preconditions=Preconditions(uid="u"),
        patch_type=PatchType.MERGE,
    ),
    PatchObject(
        **{**WHY, "reason": "ReportClean"},
        **{**OBJECT, "object_kind": "Node", "namespace": ""},
        patch={"metadata": {}},
        preconditions=Preconditions(uid="u"),
        patch_type=PatchType.MERGE,
    ),
    DeleteObject(**WHY, **OBJECT),
    DeleteObject(**WHY, **OBJECT, preconditions=Preconditions(uid="u")),
    DeleteObject(**WHY, **OBJECT, preconditions=Preconditions(uid="u", after=(("v1", "ConfigMap", "a", "c"),))),
    DeleteObject(**WHY, **OBJECT, preconditions=Preconditions(after=(("v1", "ConfigMap", "a", "c"),))),
    CreatePod(**WHY, namespace="a", pod="p", owner=Owner("Job", "j"), object={"spec": {}}),
    CreatePod(
        **WHY,
        namespace="a",
        pod="p",
        owner=Owner("Job", "j"),
        object={"spec": {}},
        preconditions=Preconditions(owner_uid="u"),
    ),
    BindPod(**WHY, **BIND, preconditions=Preconditions(uid="u"), gang="a/Job/j"),
    BindPod(**WHY, **{**BIND, "template": "vir04"}, preconditions=Preconditions(uid=""), gang="a/Pod/p"),
    EvictPod(**WHY, **EVICT, preconditions=Preconditions(uid="u")),
    EvictPod(**WHY, **{**EVICT, "owner": None}, preconditions=Preconditions(uid="u", node="n")),
    IsolateChip(**WHY, node="n", chips=("Ascend910-0",), level="SeparateNPU"),
    ReleaseChip(**WHY, node="n", chips=("Ascend910-0",), level="SeparateNPU"),
    IsolateNode(**WHY, node="n", level="SeparateFault", preconditions=Preconditions(uid="u")),
    ReleaseNode(**WHY, node="n", level="SeparateFault", preconditions=Preconditions(uid="u")),
    ResetChips(**WHY, **RESET, preconditions=Preconditions(epoch_above=3, idle=True)),
    ResetChips(
        **WHY,
        **RESET,
        preconditions=Preconditions(epoch_above=3, idle=False),
        job="a/Job/j",
        not_before=1700000030000,
        online=ONLINE,
    ),
    PartitionChip(**WHY, **PART, preconditions=Preconditions(epoch=2, idle=True)),
    ScaleJob(**WHY, job_kind="Deployment", namespace="a", name="b", replicas=3),
    SignalJob(**WHY, **SIG),
    SignalJob(**WHY, **SIG, budget_unit="a/Job/j"),
    SignalJob(**WHY, **SIG, rank_list=ROWS),
    WriteRankTable(
        **WHY,
        namespace="a",
        name="j",
        table={"status": "completed"},
        preconditions=Preconditions(uid="u"),
        config_map="rings-config-j",
        version="3",
    ),
    WriteRankTable(
        **WHY,
        namespace="a",
        name="j",
        table={"status": "completed"},
        preconditions=Preconditions(job_uid="u"),
        config_map="belay-ranktable-a.j",
        config_map_namespace="belay-system",
        file="a.j/hccl.json",
        version="3",
    ),
]


def test_every_action_has_the_bytes_of_versions_before() -> None:
    lines = GOLDEN.read_bytes().splitlines()
    assert len(lines) == len(ACTIONS)
    for action, line in zip(ACTIONS, lines, strict=True):
        assert msgspec.json.encode(document(action)) == line


def test_documents_of_versions_before_are_read() -> None:
    for action, line in zip(ACTIONS, GOLDEN.read_bytes().splitlines(), strict=True):
        assert action_of(msgspec.json.decode(line)) == action


def test_every_kind_of_action_is_compared() -> None:
    assert {kind_of(action) for action in ACTIONS} == {kind.__name__ for kind in get_args(AnyAction)}


def test_no_parameter_is_left_beside_the_contracts_fields() -> None:
    contract = set(Action.__struct_fields__) | {
        "api_version", "object_kind", "namespace", "name", "object", "patch", "pod", "owner", "node", "chips",
        "template", "annotations", "grace_period_seconds", "force", "budget_unit", "level", "epoch", "out_of_band",
        "chip", "templates", "create", "destroy", "job_kind", "replicas", "signal", "ranks", "table",
    }  # fmt: skip
    camel = {name.split("_")[0] + "".join(part.title() for part in name.split("_")[1:]) for name in contract}
    for action in ACTIONS:
        assert set(document(action)) - {"kind"} <= camel, kind_of(action)


def test_the_digest_of_a_plan_is_that_of_versions_before() -> None:
    first, last = ACTIONS[0], ACTIONS[-1]
    deferred = (Deferred(first, "b", None), Deferred(last, "b", "2026-01-01T00:00:00Z", confirm="x"))
    made = Plan(revision="r", now=0.0, actions=tuple(ACTIONS), deferred=deferred)
    assert made.digest() == "96c01761ad81d401dd5d01014597858af9adb796630f753a99e8e5ed5f58b063"


@pytest.mark.parametrize(
    "text", ["{}", '{"kind": 1}', '{"kind": "BindPod"}', '{"kind": "BindPod", "preconditions": 3}']
)
def test_what_describes_no_action_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        action_of(msgspec.json.decode(text))


def test_a_deletion_that_counts_as_an_eviction_carries_its_unit() -> None:
    made = DeleteObject(**WHY, **OBJECT, preconditions=Preconditions(uid="u"), budget_unit="a/StatefulSet/b")
    plain = document(made)
    assert plain["preconditions"] == {"uid": "u", "budgetUnit": "a/StatefulSet/b"}
    assert action_of(plain) == made
