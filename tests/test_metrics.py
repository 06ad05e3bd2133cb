"""Numbers for Prometheus: the last pass of each shard, and counters that survive workers."""

from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from belay.engine.metrics import PassSummary, counter_name, recovery_counts, timed, wait_counts
from belay.engine.metrics.collector import BelayCollector
from belay.engine.model.actions import BindPod
from belay.engine.model.cluster import Observed
from belay.engine.model.costs import cost
from belay.engine.model.history import History, JobMemory, Recovery
from belay.engine.model.plan import BudgetUse, ChipState, NodeState, Pending, Plan, ServerChips
from tests.metric_pages import PAGE
from tests.metric_pages import text as page_text
from tests.worlds import pod


def text(summaries: dict[str, PassSummary], counters: dict[str, int]) -> str:
    registry = CollectorRegistry()
    registry.register(BelayCollector(lambda: (summaries, counters)))
    return generate_latest(registry).decode()


def test_the_last_pass_is_rendered_by_shard() -> None:
    nodes = tuple(NodeState(f"n{i}", "default", "healthy" if i else "isolated", "NormalNPU", ()) for i in range(3))
    chip = ChipState("n0", "Ascend910-1", "isolated", "SeparateNPU", (), (), None)
    pending = Pending("Pod", "d", "p", ("p",), "NPUResourceShortage", "", {}, None)
    used = ChipState("n1", "Ascend910-0", "healthy", "NormalNPU", (), (), "d/q")
    idle = ChipState("n0", "Ascend910-3", "healthy", "NormalNPU", (), (), "d/r")
    servers = {f"n{i}": ServerChips("Ascend910-", 0xFF, i < 2) for i in range(3)}
    servers["n0"] = ServerChips("Ascend910-", 0x7F, True)
    plan = Plan("c1", 1000.0, nodes=nodes, chips=(chip, idle, used), pending=(pending,), servers=servers)
    found = text({"main": PassSummary.of(plan, Observed(), 0.25)}, {})
    assert 'belay_nodes{shard="main",state="healthy"} 2.0' in found
    assert 'belay_chips{shard="main",state="isolated"} 1.0' in found
    assert 'belay_chips{shard="main",state="healthy"} 14.0' in found, "free chips count as well as those in use"
    assert 'belay_chips{shard="main",state="unknown"} 8.0' in found, "no report covers the third server's"
    assert 'belay_pending{reason="NPUResourceShortage",shard="main"} 1.0' in found
    assert 'belay_last_pass_seconds{shard="main"} 0.25' in found
    assert 'belay_last_pass_time{shard="main"} 1000.0' in found


def test_counters_keep_their_labels_and_seconds_are_seconds() -> None:
    counters = {
        counter_name("actions", kind="BindPod", result="done"): 3,
        counter_name("actions", kind="BindPod", result="refused"): 1,
        **timed("pass_duration_seconds", 1.5, shard="main"),
    }
    found = text({}, counters)
    assert 'belay_actions_total{kind="BindPod",result="done"} 3.0' in found
    assert 'belay_actions_total{kind="BindPod",result="refused"} 1.0' in found
    assert 'belay_pass_duration_seconds_sum{shard="main"} 1.5' in found
    assert 'belay_pass_duration_seconds_bucket{le="1.0",shard="main"} 0.0' in found
    assert 'belay_pass_duration_seconds_bucket{le="2.5",shard="main"} 1.0' in found
    assert 'belay_pass_duration_seconds_count{shard="main"} 1.0' in found


def test_an_empty_redis_renders_no_samples() -> None:
    assert [line for line in text({}, {}).splitlines() if not line.startswith("#")] == []


def test_a_recovery_counts_once_when_it_ends() -> None:
    began = Recovery(at=1_000_000, level="job", reason="FaultyChip", chips=16, hit=8, redone=60)
    ended = msgspec.structs.replace(began, back=1_090_000, placed=1_030_000)
    before = Observed(history=History(jobs={"d/j": JobMemory(recoveries=(began,))}))
    plan = Plan("c1", 1090.0, history=History(jobs={"d/j": JobMemory(recoveries=(ended,))}))
    counts = recovery_counts(plan, before)
    found = text({}, counts)
    assert 'belay_recovery_seconds_sum{cause="FaultyChip",stage="resumed"} 90.0' in found
    assert 'belay_recovery_seconds_sum{cause="FaultyChip",stage="scheduled"} 30.0' in found
    assert 'belay_recovery_seconds_bucket{cause="FaultyChip",le="60.0",stage="resumed"} 0.0' in found
    assert 'belay_recovery_seconds_bucket{cause="FaultyChip",le="120.0",stage="resumed"} 1.0' in found
    assert f'belay_lost_chip_seconds_total{{cause="FaultyChip"}} {float(cost(ended))}' in found
    after = Observed(history=plan.history)
    assert not recovery_counts(msgspec.structs.replace(plan, history=History(jobs=dict(plan.history.jobs))), after)


def test_what_a_pass_binds_counts_with_the_time_that_it_waited() -> None:
    waiting = pod("p", namespace="d", created=940.0, count=8)
    bind = BindPod(
        reason="Placed", message="", namespace="d", pod="p", node="n0", chips=("Ascend910-0",), annotations={}
    )
    counts = wait_counts(Plan("c1", 1000.0, actions=(bind,)), Observed(pods={"d/p": waiting}))
    found = text({}, counts)
    assert 'belay_queue_wait_seconds_sum{resource="huawei.com/Ascend910"} 60.0' in found
    assert 'belay_queue_wait_seconds_bucket{le="60.0",resource="huawei.com/Ascend910"} 1.0' in found
    assert 'belay_queue_wait_seconds_bucket{le="15.0",resource="huawei.com/Ascend910"} 0.0' in found


def test_a_budget_keeps_its_last_allowance_while_nothing_is_counted() -> None:
    row = BudgetUse("quiet#0", "pool/default", "EvictPod", 2, 5)
    first = PassSummary.of(Plan("c1", 1000.0, budgets=(row,)), Observed(), 0.1)
    found = text({"main": first}, {})
    labels = 'actions="EvictPod",budget="quiet#0",scope="pool/default",shard="main"'
    assert f"belay_budget_spent{{{labels}}} 2.0" in found and f"belay_budget_left{{{labels}}} 3.0" in found
    later = msgspec.structs.replace(row, spent=4, allowed=None)
    second = PassSummary.of(Plan("c1", 1001.0, budgets=(later,)), Observed(), 0.1, first)
    assert f"belay_budget_left{{{labels}}} 1.0" in text({"main": second}, {})
    unknown = PassSummary.of(Plan("c1", 1001.0, budgets=(later,)), Observed(), 0.1)
    assert f"belay_budget_left{{{labels}}}" not in text({"main": unknown}, {})


def test_hostile_counters_in_redis_break_nothing() -> None:
    odd = {"pass_seconds|shard=main": 3, "": 1, "passes": 2, "recovery_seconds_bucket|le=x": 5, "passes|shard=a|b=c": 1}
    found = text({}, odd)
    assert 'belay_passes_total{shard=""} 2.0' in found and 'belay_passes_total{shard="a"} 1.0' in found
    assert 'le="x"' not in found and "belay_pass_seconds" not in found


def test_the_page_of_metrics_is_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), "the tables have changed: make reference"
