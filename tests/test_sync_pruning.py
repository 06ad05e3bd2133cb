"""A big deletion waits for a person: what waits, what confirms it, and what does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from belay.engine.load.earlier_manifests import with_earlier
from belay.engine.model.actions import DeleteObject, PatchObject, ReleaseChip
from belay.engine.model.diagnostics import ObjectKey
from belay.engine.model.plan import Plan, PruneHold
from belay.engine.model.refusals import LONGEST_WAIT_MS, RefusalCause
from belay.engine.model.refused_actions import refusal_key, refused_again
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.plan.sync import pruning
from belay.engine.status.conditions import StatusCondition, conditions, standing
from tests.simworld import A2, Node, World

DIGITS = set("0123456789abcdef")


def job(name: str, workers: int = 1, chips: int = 8, **annotations: str) -> dict[str, Any]:
    """An AscendJob of one master and its workers."""
    amount = {"huawei.com/Ascend910": chips}
    container = {"name": "ascend", "image": "train:1", "resources": {"requests": amount, "limits": amount}}
    template = {"spec": {"containers": [container], "nodeSelector": {"accelerator-type": "module-910b-8"}}}
    specs = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}
    if workers:
        specs["Worker"] = {"replicas": workers, "restartPolicy": "Never", "template": template}
    labels = {"framework": "pytorch", "ring-controller.atlas": "ascend-910b", "fault-scheduling": "force"}
    marks = {f"belay.dev/{key}": value for key, value in annotations.items()}
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {"name": name, "namespace": "default", "labels": labels, "annotations": marks},
        "spec": {"schedulerName": "belay", "runPolicy": {}, "replicaSpecs": specs},
    }


def note(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {}}


def budget(name: str, *limits: dict[str, Any]) -> dict[str, Any]:
    metadata, spec = {"name": name}, {"limits": list(limits)}
    return {"apiVersion": "belay.dev/v1alpha1", "kind": "SafetyBudget", "metadata": metadata, "spec": spec}


def tree(*documents: dict[str, Any]) -> dict[str, bytes]:
    """A repository with a file for each document, and one that stays."""
    files = {f"desired/{d['kind']}-{d['metadata']['name']}.yaml": yaml.safe_dump(d).encode() for d in documents}
    return files | {"desired/stays.yaml": yaml.safe_dump(note("stays")).encode()}


JOBS = [job(f"j{i}") for i in range(5)]
"""80 chips on ten nodes: more jobs, and more chips, than one revision may end."""
WIDE = (
    {"actions": ["DeleteObject"], "unit": "chips", "per": "pool", "max": [64, "10%"], "window": "1h"},
    {"actions": ["DeleteObject"], "unit": "jobs", "per": "cluster", "max": 100, "window": "1h"},
    {"actions": ["DeleteObject"], "per": "cluster", "max": [10, "20%"], "window": "1h"},
)
"""Limits of an operator who lets more go than Belay does as shipped."""


def running(*documents: dict[str, Any], nodes: int = 12) -> World:
    """A world in which all of it runs."""
    world = World(tree(*documents), [Node(f"node-{i:02d}", labels=A2) for i in range(nodes)])
    world.until_quiet()
    return world


def confirm(world: World, digest: str) -> None:
    world.desired = dataclasses.replace(world.desired, confirmed=(digest,))


def jobs_of(world: World) -> set[str]:
    return {key.name for key in world.objects if key.kind == "AscendJob"}


def pods_of(world: World) -> set[str]:
    return {name for name, pod in world.pods().items() if pod["status"]["phase"] == "Running"}


def pods_that_stay(world: World) -> set[str]:
    """Running pods that are not being deleted: one that terminates was freed by the revision that deleted its job."""
    return {name for name in pods_of(world) if not world.pods()[name]["metadata"].get("deletionTimestamp")}


def of_git(world: World) -> int:
    return sum(key in world.objects for key in world.observer.observed().inventory or ())


def deletions(result: Plan) -> set[str]:
    return {a.name for a in result.actions if isinstance(a, DeleteObject) and a.reason == "Pruned"}


def held(result: Plan) -> PruneHold:
    assert result.held_prune is not None
    return result.held_prune


def freed_by(result: Plan) -> int:
    (row,) = result.history.prunes
    return sum(number for chips in row.chips.values() for number in chips.values())


def test_deletions_that_free_too_many_chips_wait_together_and_are_reported() -> None:
    world = running(*JOBS, note("small"))
    before = pods_of(world)
    assert len(before) == 10
    world.push(tree())
    result = world.step()
    hold = held(result)
    assert deletions(result) == set() and {d.action.name for d in result.deferred} == {*jobs_of(world), "small"}
    assert {(d.budget, d.until, d.confirm) for d in result.deferred} == {("default", None, hold.digest)}
    assert (hold.jobs, hold.freed, len(hold.objects)) == (5, 80, 6)
    assert hold.limits == ("80 chips in pool default, at most 9", "5 running jobs, at most 1")
    assert hold.objects[0].chips == 16 and hold.objects[-1].object == "ConfigMap/default/small"
    assert len(hold.digest) == 32 and set(hold.digest) <= DIGITS
    (said,) = [d for d in result.diagnostics if d.object == "SafetyBudget"]
    assert f"Belay-Confirm: {hold.digest}" in said.message and "80 chips" in said.message
    document = result.document()
    assert document["heldPrune"]["release"] == f"Belay-Confirm: {hold.digest}"
    assert {row["confirm"] for row in document["deferred"]} == {hold.digest}
    world.until_quiet()
    assert pods_of(world) == before and len(jobs_of(world)) == 5


def test_the_digest_stays_while_the_set_is_the_same_in_another_process_and_another_order() -> None:
    world = running(*JOBS)
    world.push(tree())
    first = held(world.step())
    world.pass_time(4000)
    assert held(world.step()) == first
    again = plan(world.desired, observe(list(reversed(world.objects.values()))), world.now)
    assert held(again) == first
    for key in [key for key in world.objects if key.name.startswith("belay-history")]:
        world.delete(key)  # whatever was remembered is lost
    assert held(world.step()).digest == first.digest


def test_a_confirmed_set_is_deleted_entirely_however_often_deletions_fail() -> None:
    world = running(*JOBS, note("small"))
    world.push(tree())
    confirm(world, held(world.step()).digest)
    world.until_quiet(some=0.4)
    assert jobs_of(world) == set() and pods_of(world) == set()
    assert ObjectKey("v1", "ConfigMap", "default", "small") not in world.objects
    assert ObjectKey("v1", "ConfigMap", "default", "stays") in world.objects
    assert world.plan().history.prunes == () and world.plan().held_prune is None


def test_a_confirmation_releases_no_other_set() -> None:
    more = job("later", workers=0)
    world = running(*JOBS, more)
    world.push(tree(more))
    seen = held(world.step()).digest
    world.push(tree())
    confirm(world, seen)
    result = world.step()
    assert deletions(result) == set() and held(result).digest != seen
    confirm(world, held(result).digest)
    world.until_quiet()
    assert jobs_of(world) == set()


def test_objects_undeclared_during_a_confirmed_deletion_need_their_own_confirmation() -> None:
    others = [job(f"other{i}") for i in range(5)]
    world = running(*JOBS, *others, nodes=20)
    world.push(tree(*others))
    seen = held(world.step()).digest
    confirm(world, seen)
    result = world.plan()
    assert len(deletions(result)) == 5
    world.remember(result)  # and nothing of it is done yet
    world.push(tree())
    confirm(world, seen)
    result = world.step()
    assert deletions(result) == {f"j{i}" for i in range(5)}
    assert {item.object for item in held(result).objects} == {f"AscendJob/default/other{i}" for i in range(5)}


def test_a_commit_that_restores_the_documents_ends_the_wait() -> None:
    world = running(*JOBS)
    before = pods_of(world)
    world.push(tree())
    assert world.step().deferred
    world.push(tree(*JOBS))
    result = world.until_quiet()[-1]
    assert result.deferred == () and result.held_prune is None and result.history.prunes == ()
    assert pods_of(world) == before


def test_the_rest_has_its_own_digest_after_a_partial_restore() -> None:
    six = [budget("default", *WIDE), *(job(f"j{i}") for i in range(6))]
    world = running(*six)
    world.push(tree())
    seen = held(world.step()).digest
    world.push(tree(*six[:2]))
    confirm(world, seen)
    result = world.step()
    assert deletions(result) == set() and held(result).digest != seen and held(result).freed == 80
    world.push(tree(*six[:4]))
    world.step()
    assert jobs_of(world) == {"j0", "j1", "j2"}, "the rest is within the limit"


def test_an_object_deleted_meanwhile_leaves_the_digest_unchanged() -> None:
    world = running(*(job(f"j{i}") for i in range(6)))
    world.push(tree())
    seen = held(world.step()).digest
    world.delete(ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "default", "j0"))
    assert held(world.step()).digest == seen
    confirm(world, seen)
    world.until_quiet()
    assert jobs_of(world) == set()


def test_a_re_created_object_is_another_one() -> None:
    world = running(*JOBS)
    world.push(tree())
    seen = held(world.step()).digest
    key = ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "default", "j0")
    body = dict(world.objects[key])
    world.delete(key)
    world.put({**body, "metadata": {**body["metadata"], "uid": "another"}})
    assert held(world.plan()).digest != seen


def test_documents_that_carried_the_annotation_are_deleted_at_once() -> None:
    marked = [job(f"j{i}", prune="confirmed") for i in range(5)]
    world = running(*marked)
    world.push(tree())
    result = world.step()
    assert deletions(result) == {f"j{i}" for i in range(5)} and result.deferred == ()
    assert not any(row for full, row in result.history.budgets.items() if "DeleteObject" in full or "#chips" in full)
    world.until_quiet()
    assert jobs_of(world) == set()


def test_the_annotation_applies_to_its_own_document_only() -> None:
    world = running(*JOBS, job("marked", prune="confirmed"))
    world.push(tree())
    result = world.step()
    assert deletions(result) == {"marked"} and len(held(result).objects) == 5


def test_a_set_does_not_shrink_below_the_limit_while_its_jobs_restart() -> None:
    world = running(*JOBS)
    world.push(tree())
    seen = held(world.step()).digest
    for key in [key for key in world.objects if key.kind == "Pod"]:
        world.delete(key)
    assert world.pods() == {}
    result = world.plan()
    assert deletions(result) == set() and held(result).digest == seen and held(result).freed == 80


def test_a_job_whose_pods_are_being_placed_again_counts_as_before() -> None:
    world = running(*JOBS)
    for key in [key for key in world.objects if key.kind == "Pod"]:
        world.delete(key)
    for _ in range(4):  # new pods are there, some without a node
        if world.pods():
            break
        world.step()
    assert world.pods()
    world.push(tree())
    result = world.plan()
    assert deletions(result) == set() and held(result).freed == 80


def test_a_job_that_has_waited_for_room_for_long_frees_nothing() -> None:
    world = running(*JOBS)
    for node in sorted(world.nodes.values(), key=lambda node: node.name)[1:]:
        world.remove(node)
    for key in [key for key in world.objects if key.kind == "Pod"]:
        world.delete(key)
    for _ in range(4):
        world.step()
        world.pass_time(5)
    assert len([pod for pod in world.pods().values() if not pod["spec"].get("nodeName")]) > 8
    world.push(tree())
    assert freed_by(world.plan()) == 80, "they have just lost their room"
    world.push(tree(*JOBS))
    for _ in range(4):
        world.step()
        world.pass_time(600)
    world.push(tree())
    result = world.plan()
    assert freed_by(result) == 0 and result.held_prune is None and len(deletions(result)) == 5


def test_pods_that_have_ended_free_nothing() -> None:
    world = running(*JOBS, budget("default", *WIDE))
    for key in [key for key in world.objects if key.kind == "Pod" and key.name.endswith("worker-0")]:
        world.objects[key]["status"]["phase"] = "Succeeded"
        world.put(world.objects[key])
    world.push(tree(budget("default", *WIDE)))
    result = world.plan()
    assert result.held_prune is None and len(deletions(result)) == 5, "40 chips are held"


def test_two_small_jobs_of_one_revision_wait_and_one_goes_at_once() -> None:
    small = [job(f"s{i}", workers=0, chips=1) for i in range(3)]
    world = running(*small)
    world.push(tree(*small[1:]))
    assert deletions(world.step()) == {"s0"}
    world.until_quiet()
    world.pass_time(601)
    world.push(tree())
    result = world.step()
    assert deletions(result) == set() and held(result).limits == ("2 running jobs, at most 1",)
    assert held(result).digest
    world.push(tree(small[1]))
    assert deletions(world.step()) == {"s2"}


def test_jobs_that_have_ended_or_never_ran_go_together() -> None:
    world = running(*(job(f"s{i}", workers=0, chips=1) for i in range(3)))
    for key in [key for key in world.objects if key.kind == "Pod"]:
        world.objects[key]["status"]["phase"] = "Succeeded"
        world.put(world.objects[key])
    world.push(tree())
    assert deletions(world.step()) == {"s0", "s1", "s2"}


def test_a_running_job_of_more_than_one_server_waits_in_a_small_pool() -> None:
    world = running(job("only"), nodes=4)
    world.push(tree())
    assert held(world.step()).limits == ("16 chips in pool default, at most 8",)


@pytest.mark.parametrize("left", [{}, {"policies/own.yaml": yaml.safe_dump(budget("own")).encode()}])
def test_a_layer_that_declares_nothing_any_more_is_held(left: dict[str, bytes]) -> None:
    world = running(job("small", workers=0, chips=1), nodes=20)
    world.push(left or {"desired/empty.yaml": b"# nothing"})
    result = world.step()
    assert deletions(result) == set() and pods_that_stay(world)
    if left:
        assert held(result).limits == ("layer desired/ declared 2 objects and declares none now",)
        confirm(world, held(result).digest)
        world.until_quiet()
        assert jobs_of(world) == set()


def test_a_job_of_another_name_is_called_renamed_and_one_of_another_file_is_not_touched() -> None:
    world = running(job("old", workers=0, chips=1))
    files = tree(job("old", workers=0, chips=1))
    world.push({path.replace("desired/", "desired/moved/"): text for path, text in files.items()})
    before = pods_of(world)
    assert deletions(world.step()) == set() and pods_of(world) == before
    world.push(tree(job("new", workers=0, chips=1)))
    result = world.step()
    (said,) = [d for d in result.diagnostics if d.field == "metadata.name"]
    assert said.object == "AscendJob/default/new" and "its name was changed from old" in said.message
    assert said.file == "desired/AscendJob-new.yaml" and said.severity == "warning"
    world.push(tree(job("new", workers=0, chips=1), job("different", workers=1)))
    assert [d for d in world.step().diagnostics if d.field == "metadata.name"] == []


def test_what_is_held_back_is_not_in_force_and_the_status_says_until_when() -> None:
    world = running(*JOBS)
    world.push(tree())
    result = world.step()
    everything = StatusCondition("Applied", "True", "Everything", "all of it is in force")
    stands = standing(result, world.observer.observed(), ())
    said = {
        one.type: one
        for one in conditions([StatusCondition("Ready", "True", "Reconciled")], everything, result, stands)
    }
    assert len(stands.held) == len(result.deferred) > 0
    for kind in ("Applied", "Ready"):
        assert (said[kind].status, said[kind].reason) == ("False", "HeldBack")
        assert f"{len(stands.held)} held back" in said[kind].message and "until" in said[kind].message
    assert said["PruneHeld"].message.endswith("lets it be done") and "Belay-Confirm: " in said["PruneHeld"].message


def test_an_isolation_is_in_force_once_its_order_has_been_carried_out() -> None:
    world = running(job("small", workers=0, chips=1))
    (node, *_) = sorted(world.nodes)
    by_hand = {
        "apiVersion": "belay.dev/v1alpha1", "kind": "Isolation", "metadata": {"name": "fan"},
        "spec": {"nodes": [node], "reason": "fan"},
    }  # fmt: skip
    world.push(tree(job("small", workers=0, chips=1), by_hand))
    everything = StatusCondition("Applied", "True", "Everything", "all of it is in force")

    def applied() -> StatusCondition:
        seen = world.observer.observed()
        result = world.step()
        return conditions([], everything, result, standing(result, seen, ()))[-1]

    first = applied()
    assert (first.status, first.reason) == ("False", "Applying") and node in first.message
    world.until_quiet()
    assert applied() == everything


def test_a_removed_isolation_is_in_force_once_its_chips_are_released() -> None:
    small, other = job("small", workers=0, chips=1), "node-11"
    by_hand = {
        "apiVersion": "belay.dev/v1alpha1", "kind": "Isolation", "metadata": {"name": "hbm"},
        "spec": {"chips": [{"node": other, "chips": [3]}], "reason": "hbm"},
    }  # fmt: skip
    world = running(small, by_hand)
    world.push(tree(small))
    seen = world.observer.observed()
    releasing = world.step()
    assert any(isinstance(action, ReleaseChip) for action in releasing.actions)
    assert standing(releasing, seen, ()).waiting == (ObjectKey("v1", "Node", "", other),)
    world.until_quiet()
    seen = world.observer.observed()
    assert standing(world.step(), seen, ()).waiting == ()


def test_a_larger_budget_releases_the_set() -> None:
    world = running(*JOBS)
    world.push(tree())
    assert world.step().deferred
    wide = {"actions": ["DeleteObject"], "unit": "chips", "per": "pool", "max": 80, "window": "1h"}
    world.push(tree(budget("default", wide, *WIDE[1:])))
    result = world.step()
    assert deletions(result) == {f"j{i}" for i in range(5)} and result.held_prune is None


def test_a_budget_that_is_silent_about_chips_still_limits_them() -> None:
    documents = [*JOBS, budget("default")]
    world = running(*documents)
    world.push(tree(budget("default")))
    assert held(world.step()).limits == ("80 chips in pool default, at most 9", "5 running jobs, at most 1")


def test_small_deletions_continue_within_their_window() -> None:
    wide = budget("default", *WIDE)
    world = running(*JOBS, wide)
    world.push(tree(*JOBS[3:], wide))
    assert deletions(world.step()) == {"j0", "j1", "j2"}
    world.pass_time(60)
    world.push(tree(wide))
    result = world.step()
    assert deletions(result) == {"j3"}, "48 and 16 chips within an hour are 64"
    (waits,) = result.deferred
    assert waits.until is not None and waits.confirm and result.held_prune is None
    (said,) = [d for d in result.diagnostics if d.object == "SafetyBudget"]
    assert "AscendJob/default/j4" in said.message and f"until {waits.until}" in said.message
    assert f"Belay-Confirm: {waits.confirm}" in said.message and "without confirmation" in said.message
    confirm(world, waits.confirm)
    world.until_quiet()
    assert jobs_of(world) == set(), "a person may also confirm what only waits for its window"


def test_a_large_pool_may_lose_a_tenth() -> None:
    world = running(job("large", workers=9), job("larger", workers=10), nodes=100)
    world.push(tree(job("larger", workers=10)))
    assert deletions(world.step()) == {"large"}, "80 chips of 800"
    world.until_quiet()
    world.pass_time(4000)
    world.push(tree())
    assert held(world.step()).limits == ("88 chips in pool default, at most 80",)


def test_a_job_that_waits_for_room_frees_nothing() -> None:
    world = running(*JOBS, job("waits", workers=30))
    world.push(tree(*JOBS))
    assert deletions(world.step()) == {"waits"}


def test_chips_of_deployments_count_through_their_replica_sets() -> None:
    amount = {"huawei.com/Ascend910": 8}
    container = {"name": "main", "image": "serve:1", "resources": {"requests": amount, "limits": amount}}
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": {"schedulerName": "belay", "containers": [container]}}
    spec = {"replicas": 9, "selector": {"matchLabels": {"app": "serve"}}, "template": template}
    metadata = {"name": "serve", "namespace": "default"}
    world = running({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    assert len(pods_of(world)) == 9
    world.push(tree())
    result = world.step()
    assert held(result).freed == 72 and held(result).jobs == 1


def test_a_broken_budget_and_a_closed_window_hold_confirmed_deletions_too() -> None:
    world = running(*JOBS)
    world.push(tree())
    digest = held(world.step()).digest
    confirm(world, digest)
    world.desired = dataclasses.replace(world.desired, budget_broken=True)
    assert {d.budget for d in world.step().deferred} == {"unreadable"}


def test_a_wait_is_not_forgotten_while_git_cannot_be_read() -> None:
    world = running(*JOBS)
    world.push(tree())
    result = world.step()
    whole, world.desired = world.desired, dataclasses.replace(world.desired, has_git=False)
    world.pass_time(61)
    assert world.plan().history.prunes == result.history.prunes
    world.desired = whole
    assert held(world.plan()) == held(result)


def test_waiting_objects_stay_as_last_declared() -> None:
    world = running(*JOBS, note("small"))
    before = world.desired
    world.push(tree())
    world.desired = with_earlier(world.desired, before.manifests)
    world.step()
    assert patched(world.plan()) == {}
    job_key = ObjectKey("mindxdl.gitee.com/v1", "AscendJob", "default", "j0")
    live = world.objects[job_key]
    live = {**live, "spec": {**live["spec"], "schedulerName": "other"}}
    world.put(live)
    assert patched(world.plan()) == {"j0": "Drifted"}
    world.step()
    assert world.objects[job_key]["spec"]["schedulerName"] == "belay"
    newer = {**live, "metadata": {**live["metadata"], "annotations": {"belay.dev/applied-digest": "of a later text"}}}
    world.put(newer)
    assert patched(world.plan()) == {}, "an older text is never put back"


def patched(result: Plan) -> dict[str, str]:
    return {a.name: a.reason for a in result.actions if isinstance(a, PatchObject) and a.evidence.rule == "sync"}


def test_sets_too_large_to_list_wait_and_are_deleted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "MAX_MEMBERS", 3)
    world = running(*JOBS)
    world.push(tree())
    first = world.step()
    (row,) = first.history.prunes
    assert row.members == () and len(row.chips) == 3
    world.pass_time(61)
    again = world.step()
    assert again.history.prunes == first.history.prunes and held(again) == held(first)
    confirm(world, row.digest)
    world.until_quiet()
    assert jobs_of(world) == set() and world.plan().history.prunes == ()


def test_the_revision_before_the_deletion_is_remembered() -> None:
    world = running(*JOBS)
    before = world.revision
    world.push(tree())
    first = world.step().history.prunes
    assert [row.base for row in first] == [before]
    world.pass_time(61)
    assert world.step().history.prunes == first


@pytest.mark.parametrize("kind", ["NodePool", "FaultPolicy"])
def test_removed_pools_and_policies_delete_nothing(kind: str) -> None:
    selector = {"matchLabels": {"servertype": A2["servertype"]}}
    specs = {"NodePool": {"selector": selector}, "FaultPolicy": {"scope": {}, "levels": {"80E18402": "SubHealthFault"}}}
    document = {"apiVersion": "belay.dev/v1alpha1", "kind": kind, "metadata": {"name": "own"}, "spec": specs[kind]}
    world = running(*JOBS, document)
    before = pods_of(world)
    world.push(tree(*JOBS))
    plans = world.until_quiet()
    assert pods_of(world) == before and all(not deletions(result) and not result.deferred for result in plans)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_revision_frees_more_than_the_budget_without_a_confirmation(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=7), label="workers of each job")
    notes = data.draw(st.integers(0, 14), label="notes")
    everything = [*(job(f"j{i}", workers=n) for i, n in enumerate(sizes)), *(note(f"n{i}") for i in range(notes))]
    world = running(*everything, nodes=sum(sizes) + len(sizes) + 1)
    kept = everything
    for _ in range(data.draw(st.integers(1, 3), label="revisions")):
        kept = [d for d in kept if data.draw(st.booleans(), label=d["metadata"]["name"])]
        world.push(tree(*kept))
        held_now = len(pods_that_stay(world)) * 8
        inventory = len(world.observer.observed().inventory or ())
        there, jobs_before = of_git(world), jobs_of(world)
        result = world.step(some=data.draw(st.sampled_from([1.0, 0.5]), label="some"))
        world.step()
        freed = held_now - len(pods_that_stay(world)) * 8
        assert freed <= max(8, (len(world.nodes) * 8) // 10)
        assert len(jobs_before - jobs_of(world)) <= 1 or not held_now
        assert there - of_git(world) <= max(10, inventory // 5)
        if result.held_prune is not None:
            assert freed == 0 and there == of_git(world), "the whole set waits"
        world.pass_time(4000)


def test_a_refused_deletion_that_the_budget_holds_back_is_held_and_not_refused() -> None:
    world = World(
        tree(note("a"), budget("shut", {"actions": ["DeleteObject"], "per": "cluster", "max": 5, "window": "1h"})), []
    )
    world.until_quiet()
    world.push(tree(budget("shut", {"actions": ["DeleteObject"], "per": "cluster", "max": 0, "window": "1h"})))
    observed = world.observer.observed()
    action = next(row.action for row in plan(world.desired, observed, world.now).deferred)
    assert isinstance(action, DeleteObject) and action.name == "a"
    key = refusal_key(action)
    assert key is not None
    refused = refused_again(action, key, RefusalCause.NOT_ALLOWED, "is forbidden", None, round(world.now * 1000))

    def later(seconds: float) -> Plan:
        known = msgspec.structs.replace(observed, refusals={key: refused})
        return plan(world.desired, known, world.now + seconds)

    assert [row.key.name for row in later(1.0).refusals] == ["a"], "it is tried again soon, so it is refused"
    over = later(LONGEST_WAIT_MS / 1000)
    assert over.refusals == () and all("refuses it" not in finding.message for finding in over.diagnostics)
    assert [row.budget for row in over.deferred] == ["shut"]
