"""Where the rules of preemption meet: all victims that are needed are evicted, if allowed, and none beyond."""

from __future__ import annotations

from typing import Any

import pytest

from tests import placing, worlds
from tests.placing import edited, with_settings
from tests.steps import Steps
from tests.test_preempt import CLASSES, evicted, planned, priority, queue, running, wanting

EIGHT = range(8)
LOW = {"priorityClassName": "low"}
HIGH = {"priorityClassName": "high"}


def low(name: str, *places: tuple[str, range], **fields: Any) -> Any:
    return running(name, list(places), **{**LOW, **fields})


def conf(actions: str, plugins: str = "") -> dict[str, Any]:
    text = f'actions: "{actions}"\ntiers:\n- plugins:\n  - name: priority\n  - name: gang\n{plugins}'
    return {
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "volcano-system", "name": "volcano-scheduler-configmap"},
        "data": {"volcano-scheduler.conf": text},
    }  # fmt: skip


def tidal(*gangs: Any, nodes: int = 1, objects: Any = (), **fields: Any) -> Steps:
    """Inference may evict training by the classes alone (``PreemptLowerPriority`` over ``Never``)."""
    classes = [priority("high", 1000, "PreemptLowerPriority"), priority("low", 100, "Never")]
    return planned(*gangs, nodes=nodes, objects=[*classes, *objects], desired=with_settings(queues=[]), **fields)


def budget(name: str, left: int | None, labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "train", "name": name},
        "spec": {"selector": {"matchLabels": labels or {}}},
        "status": {} if left is None else {"disruptionsAllowed": left}, **fields,
    }  # fmt: skip


def labelled(found: Any, **labels: str) -> Any:
    pods, group = found
    return [edited(pod, labels={**pod.labels, **labels}) for pod in pods], group


def test_a_configuration_without_preemption_keeps_the_classes_from_it() -> None:
    world = (low("a", ("n0", EIGHT)), wanting())
    assert evicted(tidal(*world)) == ["a-0"]
    assert evicted(tidal(*world, objects=[conf("enqueue, allocate, backfill")])) == []


@pytest.mark.parametrize(
    ("least", "plugins", "goes"),
    [(2, "", []), (1, "", ["a-1"]), (2, "    enablePreemptable: false\n", ["a-0", "a-1"])],
)
def test_the_gang_plugin_protects_gangs_unless_disabled(least: int, plugins: str, goes: list[str]) -> None:
    classes = [priority("high", 1000), priority("low", 100)]
    found = planned(
        low("a", ("n0", EIGHT), ("n1", EIGHT), least=least), wanting(), nodes=2,
        objects=[*classes, conf("allocate, preempt, backfill", plugins)], desired=with_settings(queues=[]),
    )  # fmt: skip
    assert evicted(found) == goes


def test_evictions_make_room_for_the_minimum_only() -> None:
    """Pods beyond a job's minimum evict no others before the job has started."""
    found = tidal(
        low("a", ("n0", EIGHT)),
        low("b", ("n1", EIGHT)),
        wanting(count=2, minMember=1, minResources={"huawei.com/Ascend910": "8"}),
        nodes=2,
    )
    assert evicted(found) == ["a-0"]


def test_three_of_twelve_candidates_are_evicted() -> None:
    others = [low(f"a{i:02}", (f"n{i}", EIGHT), since=100 + i) for i in range(12)]
    assert evicted(tidal(*others, wanting(count=3), nodes=12)) == ["a00-0", "a01-0", "a02-0"]


def test_chips_freed_for_one_job_do_not_count_for_another() -> None:
    """Two chips are free. With those of the first victim they belong to the first job: the second would still lack two
    if the other victim went for it.
    """
    world = (low("a", ("n0", range(2, 6))), low("b", ("n0", range(6, 8))))
    assert evicted(tidal(*world, wanting("first", each=6), wanting("second", each=4))) == ["a-0"]
    assert evicted(tidal(*world, wanting("second", each=4))) == ["b-0"]


def test_terminating_pods_are_not_evicted_again() -> None:
    pods, group = low("a", ("n0", EIGHT))
    leaving = [edited(pod, deleting=worlds.NOW - 5) for pod in pods]
    found = tidal((leaving, group), wanting())
    assert not found.actions and found.pending[0].reason == "NPUResourceShortage"


@pytest.mark.parametrize("scheduler", ["volcano", "default-scheduler"])
def test_pods_of_other_schedulers_are_not_evicted(scheduler: str) -> None:
    pods, group = low("a", ("n0", EIGHT))
    found = tidal(([edited(pod, scheduler=scheduler) for pod in pods], group), wanting())
    assert evicted(found) == (["a-0"] if scheduler == "volcano" else [])


def test_the_minimum_of_a_task_is_not_spare() -> None:
    """Two of four may go, but not the two of highest rank: their task needs both."""
    pods, group = low("a", *((f"n{i}", EIGHT) for i in range(4)), least=2, minTaskMember={"b": 2})
    tasks = ["a", "a", "b", "b"]
    labelled = [
        edited(pod, annotations={**pod.annotations, "volcano.sh/task-spec": task})
        for pod, task in zip(pods, tasks, strict=True)
    ]
    assert evicted(tidal((labelled, group), wanting(count=2), nodes=4)) == ["a-0", "a-1"]
    assert evicted(tidal((labelled, group), wanting(count=3), nodes=4)) == ["a-0", "a-1", "a-2", "a-3"]


@pytest.mark.parametrize(("action", "goes"), [("RestartJob", ["a-0", "a-1"]), ("RestartTask", ["a-1"])])
def test_a_job_that_restarts_with_an_evicted_pod_spares_none(action: str, goes: list[str]) -> None:
    api = "batch.volcano.sh/v1alpha1"
    pods, group = low("a", ("n0", EIGHT), ("n1", EIGHT), least=1)
    job = {
        "apiVersion": api, "kind": "Job", "metadata": {"namespace": "train", "name": "a", "uid": "u-a"},
        "spec": {"minAvailable": 1, "policies": [{"event": "PodEvicted", "action": action}],
                 "tasks": [{"name": "worker", "replicas": 2}], "priorityClassName": "low"},
        "status": {"state": {"phase": "Running"}},
    }  # fmt: skip
    owned = [edited(pod, owner_kind="Job", owner_name="a", owner_uid="u-a", owner_api=api) for pod in pods]
    assert evicted(tidal((owned, group), wanting(), nodes=2, objects=[job])) == goes


def shared(*gangs: Any, queues: Any, nodes: int = 4) -> Steps:
    return planned(*gangs, nodes=nodes, objects=[*CLASSES, *queues], desired=with_settings(queues=[]))


def of(queue: str, name: str, *nodes: str) -> Any:
    return running(name, [(node, EIGHT) for node in nodes], queue=queue)


def test_a_queue_that_would_exceed_its_share_reclaims_nothing() -> None:
    """Each deserves two of four nodes: b has one and asks for two more, a has three."""
    queues = [queue("a", reclaimable=True), queue("b")]
    world = (of("a", "big", "n0", "n1"), of("a", "one", "n2"), of("b", "own", "n3"))
    assert evicted(shared(*world, wanting(count=2, queue="b", priorityClassName=""), queues=queues)) == []
    assert evicted(shared(*world, wanting(count=1, queue="b", priorityClassName=""), queues=queues)) == ["one-0"]


def test_a_queue_within_its_share_keeps_it() -> None:
    """The queue above its share is not reclaimable; the reclaimable one has exactly its share."""
    queues = [queue("a", weight=2, reclaimable=True), queue("b"), queue("c")]
    world = (of("a", "a1", "n0"), of("a", "a2", "n1"), of("c", "c1", "n2"), of("c", "c2", "n3"))
    assert evicted(shared(*world, wanting(queue="b", priorityClassName=""), queues=queues)) == []


def test_reclaim_stops_at_the_share() -> None:
    """Two of a's four nodes exceed its stated share: two may go, not three."""
    queues = [queue("a", reclaimable=True, deserved={"huawei.com/Ascend910": "16"}),
              queue("b", deserved={"huawei.com/Ascend910": "24"})]  # fmt: skip
    world = [of("a", f"a{i}", f"n{i}") for i in range(4)]
    assert evicted(shared(*world, wanting(count=3, queue="b", priorityClassName=""), queues=queues)) == []
    assert len(evicted(shared(*world, wanting(count=2, queue="b", priorityClassName=""), queues=queues))) == 2


@pytest.mark.parametrize(
    ("capability", "guarantee", "name", "placed"),
    [("8", "8", "a", 1), ("", "16", "a", 2), ("", "16", "b", 4), ("24", "16", "a", 2)],
)
def test_capability_and_guarantees_of_others_bound_a_queue(
    capability: str, guarantee: str, name: str, placed: int
) -> None:
    npu = "huawei.com/Ascend910"
    first = queue("a", **({"capability": {npu: capability}} if capability else {}))
    queues = [first, queue("b", guarantee={"resource": {npu: guarantee}})]
    found = shared(*(wanting(f"w{i}", queue=name, priorityClassName="") for i in range(4)), queues=queues)
    assert len(placing.nodes_of(found)) == placed


def test_preemption_in_the_own_queue_comes_before_reclaim() -> None:
    queues = [queue("a", reclaimable=True), queue("b")]
    mine = running(
        "mine", [("n2", EIGHT)], queue="b", priorityClassName="low", annotations={"volcano.sh/preemptable": "true"}
    )
    world = (of("a", "a1", "n0"), of("a", "a2", "n1"), of("a", "a3", "n3"), mine)
    assert evicted(shared(*world, wanting(queue="b"), queues=queues)) == ["mine-0"]


RING = {"accelerator-type": "module"}


def test_the_way_out_states_why_no_eviction_happens() -> None:
    """The reason is the cluster's rules, the kind of job, or a budget."""
    held, want = labelled(low("a", ("n0", EIGHT)), app="a"), wanting()
    shielded = tidal(held, want, objects=[budget("p", 0, {"app": "a"})]).pending[0]
    assert "lost) would free enough; a PodDisruptionBudget does not allow it now" in (shielded.unblock or "")
    forbidden = planned(held, want, objects=[priority("high", 1000), priority("low", 100)],
                        desired=with_settings(queues=[])).pending[0]  # fmt: skip
    assert "would free enough; no queue or priority class allows it" in (forbidden.unblock or "")
    soft = {"huawei.com/schedule_policy": "chip2-node16-sp", "sp-block": "16"}
    pods, group = placing.gang(1, 16, name="want", annotations=soft)
    group["spec"]["priorityClassName"] = "high"
    sixteen: Any = {"chips": 16}
    world = worlds.observed(
        [worlds.node("n0", **sixteen)], [worlds.report("n0", super_pod_id=0, **sixteen)],
        [*low("a", ("n0", range(16)))[0], *pods],
        objects=[low("a")[1], group, priority("high", 1000, "PreemptLowerPriority"), priority("low", 100, "Never")],
    )  # fmt: skip
    kind = placing.scope_of(world, desired=with_settings(queues=[])).pending[0]
    assert "would free enough; jobs of this kind evict no others" in (kind.unblock or "")


def test_free_chips_in_the_wrong_rings_cause_no_eviction() -> None:
    """MindCluster evicts only for missing chips; the refusal of a ring server does not count as such."""
    first, second = running("a", [("n0", range(2))], **LOW), running("b", [("n0", range(4, 6))], **LOW)
    for _, group in (first, second):
        group["metadata"]["annotations"] = {}
    pods, group = placing.gang(1, 4, name="want", annotations={})
    group["spec"]["priorityClassName"] = "high"
    world = worlds.observed(
        [worlds.node("n0", labels=RING)], [worlds.report("n0")], [*first[0], *second[0], *pods],
        objects=[first[1], second[1], group, priority("high", 1000, "PreemptLowerPriority"),
                 priority("low", 100, "Never")],
    )  # fmt: skip
    scope = placing.scope_of(world, desired=with_settings(queues=[]))
    assert not evicted(scope) and scope.pending[0].reason == "TopologyNotMet"
    assert "would free enough; Belay evicts no pods only to bring free chips together" in (
        scope.pending[0].unblock or ""
    )


class TestBudgetsOfPods:
    """PodDisruptionBudgets: evictions that the API server would refuse are not tried."""

    def test_another_victim_replaces_the_protected_one(self) -> None:
        cheap, dear = low("a", ("n0", EIGHT), since=60), low("b", ("n1", EIGHT), since=6000)
        world = (labelled(cheap, app="a"), labelled(dear, app="b"), wanting())
        assert evicted(tidal(*world, nodes=2)) == ["a-0"]
        assert evicted(tidal(*world, nodes=2, objects=[budget("p", 1, {"app": "a"})])) == ["a-0"]
        assert evicted(tidal(*world, nodes=2, objects=[budget("p", 0, {"app": "a"})])) == ["b-0"]
        assert evicted(tidal(*world, nodes=2, objects=[budget("p", None, {"app": "a"})])) == ["b-0"], "not counted yet"
        assert evicted(tidal(*world, nodes=2, objects=[budget("p", 0, {"app": "c"})])) == ["a-0"]

    def test_a_gang_of_which_one_may_not_go_stays_whole(self) -> None:
        gang = labelled(low("a", ("n0", EIGHT), ("n1", EIGHT)), app="a")
        for left, goes in ((2, ["a-0", "a-1"]), (1, []), (0, [])):
            assert evicted(tidal(gang, wanting(), nodes=2, objects=[budget("p", left, {"app": "a"})])) == goes

    def test_so_many_as_are_left_go_together_and_one_after_the_other(self) -> None:
        three = [labelled(low(f"a{i}", (f"n{i}", EIGHT)), app="a") for i in range(3)]
        limit = budget("p", 1, {"app": "a"})
        assert evicted(tidal(*three, wanting(count=2), nodes=3, objects=[limit])) == []
        found = tidal(*three, wanting("w1"), wanting("w2"), nodes=3, objects=[limit])
        assert evicted(found) == ["a0-0"], "the first has used it up"

    def test_pods_that_two_budgets_select_are_not_evicted(self) -> None:
        one = labelled(low("a", ("n0", EIGHT)), app="a", team="t")
        both = [budget("p", 5, {"app": "a"}), budget("q", 5, {"team": "t"})]
        assert evicted(tidal(one, wanting(), objects=both)) == []
        assert evicted(tidal(one, wanting(), objects=both[:1])) == ["a-0"]

    def test_the_beta_of_the_same_budget_counts_once_and_its_empty_selector_selects_no_pod(self) -> None:
        one = labelled(low("a", ("n0", EIGHT)), app="a")
        beta = budget("p", 1, {"app": "a"}, apiVersion="policy/v1beta1")
        assert evicted(tidal(one, wanting(), objects=[budget("p", 1, {"app": "a"}), beta])) == ["a-0"]
        assert evicted(tidal(one, wanting(), objects=[budget("p", 0)])) == []
        assert evicted(tidal(one, wanting(), objects=[budget("p", 0, apiVersion="policy/v1beta1")])) == ["a-0"]

    @pytest.mark.parametrize("spec", [{}, {"selector": "x"}, {"selector": {"matchLabels": [], "matchExpressions": 7}}])
    def test_other_shapes_stop_nothing(self, spec: Any) -> None:
        odd = budget("p", 3) | {"spec": spec, "status": {"disruptionsAllowed": True}}
        found = tidal(labelled(low("a", ("n0", EIGHT)), app="a"), wanting(), objects=[odd])
        assert evicted(found) == (["a-0"] if "selector" not in spec or spec["selector"] == "x" else [])


def test_one_larger_job_is_evicted_instead_of_many_small_ones() -> None:
    """With too many candidates for all combinations, still the fewest go."""
    small = [low(f"s{node}{chip}", (f"n{node}", range(chip, chip + 1))) for node in (0, 1) for chip in range(4)]
    pair = [low(f"p{node}", (f"n{node}", range(4, 6))) for node in (0, 1)]
    large = low("z", ("n1", range(6, 8)))
    rest = low("y", ("n0", range(6, 8)))
    rows = [*small, *pair, large, rest]
    assert evicted(planned(*rows, wanting(each=2), objects=CLASSES, nodes=2)) == ["p0-0"]
    assert evicted(planned(*rows, wanting(each=4), objects=CLASSES, nodes=2)) == ["p0-0", "y-0"]
