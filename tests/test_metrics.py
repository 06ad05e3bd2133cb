"""Numbers for Prometheus: the last pass of each shard, and counters that survive workers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from engine.metrics import BelayCollector, PassSummary, counter_name
from engine.model.cluster import Observed
from engine.model.plan import ChipState, NodeState, Pending, Plan, ServerChips


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
        counter_name("pass_seconds", shard="main"): 1_500_000,
    }
    found = text({}, counters)
    assert 'belay_actions_total{kind="BindPod",result="done"} 3.0' in found
    assert 'belay_actions_total{kind="BindPod",result="refused"} 1.0' in found
    assert 'belay_pass_seconds_total{shard="main"} 1.5' in found


def test_an_empty_redis_renders_no_samples() -> None:
    assert [line for line in text({}, {}).splitlines() if not line.startswith("#")] == []
