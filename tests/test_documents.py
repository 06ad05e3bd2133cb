"""Scalar values and kinds of documents."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from belay.engine.documents import (
    KINDS,
    BelayDocument,
    Declared,
    Desired,
    InitParams,
    Limit,
    Product,
    SafetyBudget,
    format_duration,
    parse_chips,
    parse_duration,
)
from belay.engine.model.diagnostics import Origin


def make(kind: str, spec: dict[str, Any], name: str = "x") -> Any:
    return KINDS[kind].model_validate(
        {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    )


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("6h", 21600), ("1h30m", 5400), ("250ms", 0.25), ("0s", 0), ("1.5m", 90)]
)
def test_durations_are_go_style(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "90", "s", "1 h", "-1s", "1d", 90, None, "1h1", "9" * 100 + "s"])
def test_other_durations_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("written", "total", "allowed"),
    [
        (3, 100, 3),
        ("10%", 100, 10),
        ("10%", 5, 1),
        ("10%", 19, 1),
        ("0%", 100, 0),
        (0, 100, 0),
        ([10, "20%"], 10, 10),
        ([10, "20%"], 100, 20),
        (["25%", 2], 12, 3),
        ("29%", 100, 29),
    ],
)
def test_a_limit_is_the_greater_of_count_and_percentage(written: object, total: int, allowed: int) -> None:
    budget = make("SafetyBudget", {"limits": [budget_row(max=written)]})
    assert budget.spec.limits[0].allowed(total) == allowed


def budget_row(**fields: object) -> dict[str, object]:
    return {"actions": ["EvictPod"], "per": "cluster", "max": 1, "window": "1h", **fields}


@pytest.mark.parametrize("written", ["10", -1, 1.5, True, [], [1, 2], ["1%", "2%"], "101%", None, {"count": "x"}])
def test_other_limits_are_refused(written: object) -> None:
    with pytest.raises(ValidationError):
        make("SafetyBudget", {"limits": [budget_row(max=written)]})


def test_actions_counted_in_different_things_share_only_a_count() -> None:
    both = ["EvictPod", "ResetChips"]
    with pytest.raises(ValidationError, match="share no percentage"):
        make("SafetyBudget", {"limits": [budget_row(actions=both, max="10%")]})
    budget: SafetyBudget = make("SafetyBudget", {"limits": [budget_row(actions=both, max=[3, "50%"])]})
    assert budget.spec.limits[0].allowed(1000) == 3
    assert Limit(count=3, percent=50).of(None) == 3


@pytest.mark.parametrize(
    ("written", "chips"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("0,2,4-6", (0, 2, 4, 5, 6)),
        ([1, 0], (0, 1)),
        (["Ascend910-4", "Ascend310P-1"], (1, 4)),
        (7, (7,)),
    ],
)
def test_chips_are_written_as_ranges_lists_or_names(written: object, chips: tuple[int, ...]) -> None:
    assert parse_chips(written) == chips


@pytest.mark.parametrize("written", ["", "a", "3-1", [0, 0], "0-64", [64], [-1], [True], [None], {}, "0--1", "1-9999"])
def test_other_chips_are_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"chip"):
        parse_chips(written)


MINIMAL: dict[str, dict[str, Any]] = {
    "NodePool": {"selector": {"matchLabels": {"a": "b"}}, "product": "p"},
    "VNPULayout": {"pool": "p", "mode": "static", "chips": [{"chips": "0-1", "templates": ["vir04"]}]},
    "FaultPolicy": {
        "levels": {"80E01801": "RestartNPU"},
        "frequency": [
            {"codes": ["80E01801"], "times": 2, "window": "24h", "level": "SeparateNPU", "releaseAfter": "48h"}
        ],
        "duration": [{"codes": ["81078603"], "timeout": "20s", "recover": "1m", "level": "PreSeparateNPU"}],
        "actions": {"RestartNPU": {"training": "reschedule", "idle": "reset"}},
        "attempts": {"reset": {"max": 3, "window": "6h"}},
    },
    "Isolation": {
        "nodes": ["n"], "chips": [{"node": "m", "chips": [1]}], "reason": "r", "until": "2026-09-01T08:00:00Z",
    },
    "SafetyBudget": {"limits": [budget_row(max=[10, "20%"])]},
    "SchedulingSettings": {"initParams": {"grace-over-time": 600}, "queues": [{"name": "q"}]},
    "Source": {"url": "https://example.org/r.git", "verify": {"mode": "ssh", "allowedSigners": "/etc/signers"}},
    "KVLink": {
        "prefill": {"selector": {"matchLabels": {"role": "prefill"}}},
        "decode": {"clusters": [{"id": 1, "addresses": ["10.0.0.1:26000"]}]},
        "timeout": "3000ms",
    },
    "NotificationPolicy": {
        "receivers": [
            {"name": "chat", "type": "Slack", "url": {"secret": "slack"}},
            {"name": "mail", "type": "Email", "email": {
                "host": "smtp.example.org", "from": "belay@example.org", "to": ["ann@example.org"],
                "username": "belay", "password": {"env": "BELAY_NOTIFY_PASSWORD"},
            }},
        ],
        "rules": [{
            "name": "r", "events": ["Fault", "Wait"], "receivers": ["chat"], "longerThan": "30m",
            "quietHours": [{"from": "22:00", "until": "07:00", "timeZone": "Asia/Shanghai"}],
        }],
    },
    "Product": {
        "title": "t", "resource": "huawei.com/Ascend910", "devicePrefix": "Ascend910-", "chipsPerNode": 8,
        "placement": {"handler": "base", "max": 8, "single": "1-8"}, "reset": {"groups": [[0, 1], "2-3"]},
    },
    "DiagnosisRules": {
        "rules": [{
            "code": "DiskFull", "role": "cause", "match": [["No space left"]], "title": {"en": "full", "zh": "已满"},
            "advice": {"en": "free space"},
        }],
    },
    "FaultTable": {
        "plane": "node", "severity": ["NotHandleFault"], "levels": {"NotHandleFault": ["0100000D"]},
        "unlisted": {"rule": "drop"},
    },
    "WorkloadKind": {
        "group": "example.org", "versions": ["v1"], "kind": "Trial", "plural": "trials",
        "roles": [{"path": "spec.roles.*", "replicas": [{"path": "replicas", "default": 0}], "template": "template"}],
    },
    "VNPUTemplates": {
        "family": "F", "resourcePrefix": "huawei.com/F-", "static": True, "dynamic": False,
        "chips": [{"aicore": 8, "aicpu": 7, "memoryMiB": 100}],
        "templates": [{"name": "vir01", "suffix": "1c", "aicore": 1, "aicpu": 1, "memoryMiB": 10}],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_survives_a_round_trip(kind: str) -> None:
    document: BelayDocument = make(kind, MINIMAL[kind])
    written = document.manifest()
    assert KINDS[kind].model_validate(written) == document
    assert KINDS[kind].model_validate(written).manifest() == written


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_refuses_unknown_fields_and_bad_names(kind: str) -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        make(kind, {**MINIMAL[kind], "surprise": 1})
    with pytest.raises(ValidationError, match="pattern"):
        make(kind, MINIMAL[kind], name="Bad_Name")
    with pytest.raises(ValidationError):
        make(kind, MINIMAL[kind], name="a" * 254)


def test_documents_are_immutable() -> None:
    pool = make("NodePool", MINIMAL["NodePool"])
    with pytest.raises(ValidationError, match="frozen"):
        pool.spec = None


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("NodePool", {"selector": {}}),
        ("NodePool", {"suspend": "yes"}),
        ("NodePool", {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
        ("VNPULayout", {"selector": {"matchLabels": {"a": "b"}}}),
        ("VNPULayout", {"mode": "dynamic"}),
        ("VNPULayout", {"chips": []}),
        ("VNPULayout", {"chips": [{"chips": [0]}, {"chips": "0-1"}]}),
        ("FaultPolicy", {"levels": {"80E01801": "Nonsense"}}),
        ("FaultPolicy", {"frequency": [{"codes": ["1"], "times": 2, "window": "24h", "level": "SeparateNPU"}]}),
        ("FaultPolicy", {"frequency": [{"codes": [80818200], "times": 1, "window": "1h", "level": "SeparateNPU"}]}),
        ("FaultPolicy", {"duration": [{"codes": ["1"], "timeout": "11m", "recover": "1s", "level": "SeparateNPU"}]}),
        ("FaultPolicy", {"tests": [{"timeline": [], "expect": []}]}),
        ("Isolation", {"until": "2026-09-01"}),
        ("Isolation", {"until": "2026-09-01T08:00:00"}),
        ("Isolation", {"nodes": [], "chips": []}),
        ("Isolation", {"reason": ""}),
        ("SafetyBudget", {"limits": [budget_row(window="0s")]}),
        ("SafetyBudget", {"limits": [budget_row(actions=["Anything"])]}),
        ("SchedulingSettings", {"initParams": {"grace-over-time": 1}}),
        ("SchedulingSettings", {"initParams": {"resource-level-config": "{"}}),
        ("SchedulingSettings", {"queues": [{"name": "q"}, {"name": "q"}]}),
        ("Source", {"verify": {"mode": "gpg"}}),
        ("NotificationPolicy", {"receivers": []}),
        ("NotificationPolicy", {"receivers": [{"name": "c", "type": "Slack"}]}),
        ("NotificationPolicy", {"receivers": [{"name": "c", "type": "Slack", "url": {"secret": "../webhook"}}]}),
        # no other variable of the server may be sent anywhere
        ("NotificationPolicy", {"receivers": [{"name": "c", "type": "Slack", "url": {"env": "BELAY_WEBHOOK_SECRET"}}]}),
        ("NotificationPolicy", {"receivers": [{"name": "c", "type": "Email", "url": {"secret": "s"}}]}),
        ("NotificationPolicy", {"receivers": [{"name": "c", "type": "WeCom", "address": "https://u:p@x.example.org/"}]}),
        ("NotificationPolicy", {"rules": [{"name": "r", "events": ["Wait"], "receivers": ["chat"]}]}),
        ("NotificationPolicy", {"rules": [{"name": "r", "events": ["Fault"], "receivers": ["chat"], "repeat": "1s"}]}),
        ("NotificationPolicy", {"rules": [{"name": "r", "events": ["Fault"], "receivers": ["chat"],
                                           "quietHours": [{"from": "22:00", "until": "7:00"}]}]}),
        ("NotificationPolicy", {"rules": [{"name": "r", "events": ["Fault"], "receivers": ["chat"],
                                           "quietHours": [{"from": "22:00", "until": "07:00", "timeZone": "A/X"}]}]}),
        ("KVLink", {"prefill": {}}),
        ("KVLink", {"timeout": "0s"}),
        ("Product", {"reset": {"groupSize": 8, "scope": "chip"}}),
        ("FaultTable", {"levels": {"SeparateFault": ["0100000D"]}}),
        ("FaultTable", {"unlisted": {"rule": "level", "otherwise": "NotHandleFault"}}),
        ("FaultTable", {"plane": "chip"}),
        ("FaultTable", {"plane": "chip", "unlisted": {"rule": "level"}}),
    ],
)  # fmt: skip
def test_closing_rules(kind: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make(kind, {**MINIMAL[kind], **change})


def test_selectors_follow_kubernetes() -> None:
    rows = [
        {"key": "a", "operator": "In", "values": ["1", "2"]},
        {"key": "b", "operator": "NotIn", "values": ["1"]},
        {"key": "c", "operator": "Exists"},
        {"key": "d", "operator": "DoesNotExist"},
    ]
    selector = make("NodePool", {"selector": {"matchLabels": {"z": "z"}, "matchExpressions": rows}}).spec.selector
    assert selector.matches({"z": "z", "a": "2", "c": ""})
    assert not selector.matches({"z": "z", "a": "3", "c": ""})
    assert not selector.matches({"z": "z", "a": "1", "b": "1", "c": ""})
    assert not selector.matches({"z": "z", "a": "1"})
    assert not selector.matches({"z": "z", "a": "1", "c": "", "d": ""})
    assert not selector.matches({"a": "1", "c": ""})


@pytest.mark.parametrize(
    ("arguments", "size", "reserve"),
    [
        ({}, 48, 2),
        ({"super-pod-size": "****"}, 48, 2),
        ({"super-pod-size": "-1"}, 48, 2),
        ({"super-pod-size": "0"}, 48, 2),
        ({"reserve-nodes": "-1"}, 48, 2),
        ({"super-pod-size": "8", "reserve-nodes": "10"}, 8, 2),
        ({"super-pod-size": "2", "reserve-nodes": "90"}, 2, 0),
        ({"super-pod-size": "40"}, 40, 2),
    ],
)
def test_volcano_arguments_are_read_as_its_code_does(arguments: dict[str, object], size: int, reserve: int) -> None:
    params = InitParams.from_arguments(arguments)
    assert (params.super_pod_nodes, params.reserved_nodes) == (size, reserve)


def test_a_present_boolean_other_than_true_is_false() -> None:
    assert InitParams.from_arguments({}).force_enqueue
    assert not InitParams.from_arguments({"forceEnqueue": "1"}).force_enqueue
    assert not InitParams.from_arguments({"forceEnqueue": ""}).force_enqueue
    assert InitParams.from_arguments({"prefer-previous-node": True}).prefer_previous_node
    base = InitParams.from_arguments({"grace-over-time": "60"})
    assert InitParams.from_arguments({"unknown": 1}, base).grace_over_time == 60
    assert InitParams.from_arguments({"grace-over-time": "9999"}, base).grace_over_time == 900


def test_reset_groups_come_from_groups_size_or_scope() -> None:
    def groups(**reset: Any) -> tuple[tuple[int, ...], ...]:
        product: Product = make("Product", {**MINIMAL["Product"], "chipsPerCard": 2, "reset": reset})
        return product.reset_groups

    assert groups(groups=["0-3", "4-7"]) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert groups(groupSize=8) == (tuple(range(8)),)
    assert groups(scope="card") == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert groups(scope="a3-module") == ((0, 1, 2, 3), (4, 5, 6, 7))
    product: Product = make("Product", {**MINIMAL["Product"], "reset": {"scope": "chip"}})
    assert product.reset_group(5) == (5,)


def test_the_largest_label_set_selects_the_product() -> None:
    def product(name: str, *labels: dict[str, str]) -> Declared[Product]:
        return Declared(make("Product", {**MINIMAL["Product"], "nodeLabels": list(labels)}, name), Origin("f"))

    plain, duo = product("plain", {"a": "1"}), product("duo", {"a": "1", "b": "2"})
    early, late = product("z-early", {"c": "1"}), product("late", {"x": "x"}, {"d": "1"})
    desired = Desired(products={"plain": plain, "duo": duo, "z-early": early, "late": late})
    assert desired.product_of({"a": "1"}) is plain.document
    assert desired.product_of({"a": "1", "b": "2"}) is duo.document
    assert desired.product_of({"c": "1", "d": "1"}) is early.document
    assert desired.product_of({}) is None
