"""What jobs say by labels and annotations is read once, and numbers that people write have one reader."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from belay.engine.model import job_options, labels, node_options, pod_options
from belay.engine.model.job_options import BlockSize, read_options, stated_chips
from belay.engine.model.quantities import signed_number, whole_number
from belay.engine.wire.ranktable import build
from tests import listing, placing, worlds
from tests.test_ranktable import member

ROOT = Path(__file__).resolve().parents[1]
ENDLESS = "9" * 5000  # Python refuses to convert so many digits


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("007", 7), ("999999999", 999_999_999), ("1234567890", None), ("", None), (" 1", None), ("1.5", None),
        ("-1", None), ("+1", None), ("1_0", None), ("²", None), ("٣", None), (ENDLESS, None),
    ],
)  # fmt: skip
def test_a_whole_number_is_some_ascii_digits(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(("text", "number"), [("-12", -12), ("12", 12), ("--5", None), ("-", None), (ENDLESS, None)])
def test_a_signed_number_has_one_sign(text: str, number: int | None) -> None:
    assert signed_number(text) == number


def test_the_limit_of_digits_is_the_readers() -> None:
    assert whole_number("12345", digits=5) == 12345 and whole_number("123456", digits=5) is None


LABELS = {
    "fault-scheduling": "grace",
    "fault-retry-times": "3",
    "subHealthyStrategy": "hotSwitch",
    "pod-rescheduling": "on",
    "process-recover-enable": "pause",
    "super-pod-affinity": "soft",
    "tor-affinity": "normal-schema",
    "distributed": "true",
    "scaleout-type": " roce ",
    "jobID": "7",
    "app": "mindie-ms-server",
}
NOTES = {
    "recover-strategy": "retry, recover",
    "wait-reschedule-timeout": " 60 ",
    "sp-block": " 16 ",
    "ra-block": "many",
    "huawei.com/recover_policy_path": "pod",
}


def test_options_are_typed() -> None:
    found = read_options(LABELS, NOTES)
    assert (found.fault_scheduling, found.fault_retry_times, found.sub_health) == ("grace", 3, "hotSwitch")
    assert (found.pod_rescheduling, found.process_recovery, found.recovers_processes) == (True, "pause", False)
    assert (found.recover_strategies, found.wait_reschedule) == (("retry", "recover"), 60)
    assert (found.sp_block, found.ra_block) == (BlockSize("16", 16), BlockSize("many", 0))
    assert (found.soft_affinity, found.switch_affinity, found.distributed) == (True, "normal-schema", True)
    assert (found.scaleout, found.is_mindie, found.recover_policy_path) == ("ROCE", True, "pod")


def test_a_job_that_says_nothing_has_the_defaults() -> None:
    found = read_options({}, {})
    assert (found.fault_scheduling, found.sub_health, found.process_recovery) == ("off", "ignore", "off")
    assert (found.fault_retry_times, found.recover_strategies, found.sp_block) == (0, (), None)
    assert (found.switch_affinity, found.npu_310_strategy, found.wait_reschedule) == ("null", "chip", None)


@pytest.mark.parametrize(
    ("label", "field", "value"),
    [
        ("fault-scheduling", "fault_scheduling", "off"),
        ("subHealthyStrategy", "sub_health", "ignore"),
        ("pod-rescheduling", "pod_rescheduling", False),
        ("distributed", "distributed", False),
        ("fault-retry-times", "fault_retry_times", 0),
    ],
)
def test_unknown_words_count_as_not_stated(label: str, field: str, value: object) -> None:
    assert getattr(read_options({label: "ON"}, {}), field) == value


@pytest.mark.parametrize(("text", "chips"), [(None, 64), ("", 64), ("  ", 64), ("8", 8), ("eight", 0), ("0", 0)])
def test_a_blank_block_is_not_stated(text: str | None, chips: int) -> None:
    notes = {} if text is None else {"sp-block": text}
    assert stated_chips(read_options({}, notes).sp_block, 64) == chips


def test_a_job_is_read_once() -> None:
    pods, group = placing.gang(1, 8, annotations={"sp-block": "16"})
    observed = worlds.observed(pods=pods, objects=[group])
    (gang,) = placing.scope_of(observed).gangs.values()
    assert gang.options is gang.options and gang.options.sp_block == BlockSize("16", 16)


# ---- what no number is, a pass survives


def test_resources_that_no_field_holds_do_not_stop_the_pass(tmp_path: Path) -> None:
    odd = listing.group("odd", 1, 0)
    odd["spec"]["minResources"] = {"huawei.com/Ascend910": ENDLESS}
    world = [listing.node("n1"), listing.report("n1"), odd, listing.pod("odd-0", group="odd")]
    found = listing.plan([*world, *listing.job("j", 1, 8, policy="chip8-node8")], tmp_path)
    assert "j-0" in found.nodes


def test_an_affinity_to_no_number_has_no_way_out_by_a_label(tmp_path: Path) -> None:
    expression = {"key": "size", "operator": "Gt", "values": ["--5"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    items = [listing.node("n1"), listing.report("n1"), *listing.job("j", 1, 8, policy="chip8-node8")]
    for item in items:
        if item["kind"] == "Pod":
            item["spec"]["affinity"] = affinity
    found = listing.plan(items, tmp_path)
    assert "required node affinity" in json.dumps(found.pending)


def test_logical_super_pods_that_no_field_holds_are_names() -> None:
    pods = [member(rank, "a", super_pod_rank=name) for rank, name in enumerate(("10", ENDLESS, "9"))]
    table = build("1.2", pods, soft=True)
    assert [row["super_pod_id"] for row in table["super_pod_list"]] == ["9", "10", ENDLESS]


# ---- house rules


def _modules(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    for room in rooms:
        for path in sorted((ROOT / "engine" / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "_pb2" not in name:
                yield name, ast.parse(path.read_text())


#: Places that look at digits without making a number of what others wrote.
LOOKS_ONLY = {
    "engine/gangs/forming.py": "parts of a name in their natural order",
    "engine/model/quantities.py": "the reader",
    "engine/plan/views.py": "whether a resource's name goes on with a number of cores",
    "engine/wire/committext.py": "bytes of a commit",
}


def test_digits_become_numbers_in_one_place() -> None:
    found = {
        name
        for name, tree in _modules("model", "gangs", "wire", "plan")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("isdecimal", "isdigit")
    }
    assert sorted(found) == sorted(LOOKS_ONLY), "use whole_number() of belay.engine.model.quantities"


#: What reads such a key of something else than a job, or copies it.
OF_OTHERS = {
    "engine/plan/grouping.py": "the shard of objects that are no jobs yet",
    "engine/plan/jobs/inference/rescheduling.py": "pods of an instance, each by its own labels",
    "engine/plan/jobs/inference/services.py": "what a service hands to the objects that it makes",
    "engine/plan/jobs/inference/workloads.py": "what a role hands to its workloads",
    "engine/plan/jobs/rank_tables.py": "whether a label is there that marks owners of tables",
    "engine/plan/health/tolerance.py": "pods, whose annotations win over their job's",
    "engine/plan/preempt/consolidation.py": "a pod's own word, before its job's",
    "engine/plan/preempt/rules.py": "priority classes",
    "engine/plan/queue/queues.py": "priority classes",
    "engine/plan/rules/fault_rules.py": "pods without a job",
}


#: What takes such a key of a pod as text, or asks whether it is there.
AS_TEXT = {
    "engine/plan/jobs/ascendjob.py": "pods of a replica type, by the label as the operator writes it",
    "engine/plan/jobs/rank_tables.py": "what goes into a table as it is written",
    "engine/plan/restart_scope.py": "pods with the same name of a super pod",
}


def _looked_up(tree: ast.Module) -> Iterator[str]:
    """Names of the constants that a module looks up, in whatever mapping."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield from (key.id for key in node.args[:1] if isinstance(key, ast.Name))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            yield from (key.id for key in [node.left] if isinstance(key, ast.Name))


def test_an_option_of_a_job_is_read_in_one_place() -> None:
    options = {name for name in vars(job_options) if name.isupper() and name in vars(labels)}
    found = {name for name, tree in _modules("plan") if options.intersection(_looked_up(tree))}
    assert sorted(found) == sorted(OF_OTHERS), (
        "ask the options of the gang, job or spec (belay.engine.model.job_options)"
    )


def test_a_pods_own_word_is_read_in_one_place() -> None:
    options = {name for name in vars(pod_options) if name.isupper() and name in vars(labels)}
    found = {name for name, tree in _modules("plan") if options.intersection(_looked_up(tree))}
    assert sorted(found) == sorted(AS_TEXT), "ask belay.engine.model.pod_options"


def test_what_a_node_says_is_read_in_one_place() -> None:
    options = {name for name in vars(node_options) if name.isupper() and name in vars(labels)}
    found = [name for name, tree in _modules("plan") if options.intersection(_looked_up(tree))]
    assert found == [], "ask belay.engine.model.node_options"
