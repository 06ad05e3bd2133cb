"""Each step of the demo as a convergence narrative: plan, apply, fake the rest, until quiet."""

from __future__ import annotations

import dataclasses
import json

import pytest

from belay.engine.model.actions import DeleteObject
from belay.engine.model.diagnostics import ObjectKey
from tests.golden.stories import compare, sample_files, sample_world
from tests.simworld import World

SEEDS = range(6)


def placement(world: World) -> dict[str, str]:
    return {name: pod["spec"].get("nodeName", "") for name, pod in world.pods().items() if name.startswith("pretrain")}


def master_node(world: World) -> str:
    return placement(world)["pretrain-master-0"]


def test_the_sample_starts(update_golden: bool) -> None:
    world = sample_world()
    world.until_quiet()
    compare("start", world.story, update_golden)
    assert set(placement(world)) == {"pretrain-master-0", "pretrain-worker-0"}
    assert all(pod["status"]["phase"] == "Running" for pod in world.pods().values())
    table = json.loads(
        world.objects[ObjectKey("v1", "ConfigMap", "default", "rings-config-pretrain")]["data"]["hccl.json"]
    )
    assert table["status"] == "completed"
    assert [len(server["device"]) for server in table["server_list"]] == [8, 8]


def test_a_chip_fault_moves_the_job_and_the_chip_comes_back(update_golden: bool) -> None:
    world = sample_world()
    world.until_quiet()
    broken = master_node(world)
    world.story.clear()
    world.fault(broken, 3)
    last = world.until_quiet()[-1]
    compare("chip-fault", world.story, update_golden)
    assert all(pod["status"]["phase"] == "Running" for pod in world.pods().values())
    assert [group for _, group in world.nodes[broken].reset_log] == [tuple(range(8))]
    assert [c for c in last.chips if c.state != "healthy"] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_in_any_order_the_fault_ends_well(seed: int) -> None:
    world = sample_world(seed)
    world.until_quiet(some=0.7)
    broken = master_node(world)
    world.fault(broken, seed % 8)
    last = world.until_quiet(some=0.7)[-1]
    assert all(pod["status"]["phase"] == "Running" for pod in world.pods().values())
    assert len(world.nodes[broken].reset_log) == 1
    assert [c for c in last.chips if c.state != "healthy"] == []


def test_a_chip_that_no_reset_heals_is_held_and_explained(update_golden: bool) -> None:
    world = sample_world()
    world.until_quiet()
    broken = master_node(world)
    world.story.clear()
    world.nodes[broken].reset_fails = 100
    world.fault(broken, 3)
    last = world.until_quiet(ceiling=60)[-1]
    compare("reset-fails", world.story, update_golden)
    assert len(world.nodes[broken].reset_log) == 0
    assert max(world.nodes[broken].done.values()) == 3, "three attempts and no more"
    held = [c for c in last.chips if c.chip == "Ascend910-3" and c.node == broken]
    assert held and held[0].state in ("isolated", "manually-isolated")
    assert broken not in placement(world).values()


def test_a_level_change_in_git_takes_effect(update_golden: bool) -> None:
    world = sample_world()
    world.until_quiet()
    used = master_node(world)
    world.fault(used, 2, code="80E18402", level="NotHandleFault")
    world.until_quiet()
    before = placement(world)
    world.story.clear()
    files = sample_files()
    files["desired/faults/strict.yaml"] = (
        b"apiVersion: belay.dev/v1alpha1\nkind: FaultPolicy\nmetadata: {name: strict}\n"
        b'spec: {scope: {}, mode: enforce, levels: {"80E18402": SeparateNPU}}\n'
    )
    world.push(files)
    world.until_quiet()
    compare("policy-change", world.story, update_golden)
    assert placement(world) != before
    assert used not in placement(world).values()


def test_a_layout_is_cut_and_made_whole_again(update_golden: bool) -> None:
    later = ("desired/layouts/inference.yaml", "desired/inference/chat.yaml")
    world = sample_world(files={path: data for path, data in sample_files().items() if path not in later})
    world.until_quiet()
    assert world.nodes["infer-1"].vnpus == []
    world.story.clear()
    world.push(sample_files())
    world.until_quiet()
    compare("layout-pushed", world.story, update_golden)
    assert sorted(v.template for v in world.nodes["infer-1"].vnpus) == ["vir02_1c", "vir02_1c", "vir04"]
    files = sample_files()
    del files["desired/layouts/inference.yaml"]
    world.story.clear()
    world.push(files)
    world.until_quiet()
    compare("layout-removed", world.story, update_golden)
    assert world.nodes["infer-1"].vnpus == []


def test_a_removed_job_is_pruned_and_frees_its_chips(update_golden: bool) -> None:
    job = sample_files()["desired/jobs/pretrain.yaml"]
    assert job.count(b"  name: pretrain\n") == 1
    marked = job.replace(b"  name: pretrain\n", b"  name: pretrain\n  annotations: {belay.dev/prune: confirmed}\n")
    world = sample_world(files=sample_files() | {"desired/jobs/pretrain.yaml": marked})
    world.until_quiet()
    files = sample_files()
    del files["desired/jobs/pretrain.yaml"]
    world.story.clear()
    world.push(files)
    world.until_quiet()
    compare("prune", world.story, update_golden)
    assert placement(world) == {}
    assert world.owners("node-1") == {}
    assert not any(key.name.startswith("belay-job-default.ascendjob") for key in world.objects)


def test_a_mass_deletion_is_refused_whole_until_a_person_agrees() -> None:
    files = sample_files()
    for index in range(40):
        document = (
            f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: many-{index:02d}, namespace: default}}\ndata: {{}}\n"
        )
        files[f"desired/many/{index}.yaml"] = document.encode()
    world = sample_world(files=files)
    world.until_quiet()
    world.push(sample_files())
    result = world.step()
    assert [a for a in result.actions if isinstance(a, DeleteObject)] == []
    assert len(result.deferred) == 40
    assert {d.until for d in result.deferred} == {None}
    assert sum(key.name.startswith("many-") for key in world.objects) == 40


def test_a_deletion_that_frees_too_many_chips_waits_for_its_confirmation(update_golden: bool) -> None:
    files = sample_files()
    world = sample_world(files=files)
    world.until_quiet()
    before = placement(world)
    del files["desired/jobs/pretrain.yaml"]
    world.story.clear()
    world.push(files)
    hold = world.until_quiet()[-1].held_prune
    assert hold is not None and placement(world) == before
    world.fault(master_node(world), 3)
    held = world.until_quiet()[-1]
    assert set(placement(world)) == set(before) and placement(world) != before, "a held job recovers like any other"
    assert held.held_prune == hold
    world.story += [str(finding) for finding in held.diagnostics if finding.object == "SafetyBudget"]
    world.desired = dataclasses.replace(world.desired, confirmed=(hold.digest,))
    world.until_quiet()
    compare("prune-held", world.story, update_golden)
    assert placement(world) == {} and world.owners("node-1") == {}


def test_a_document_that_breaks_does_not_take_its_object_away(update_golden: bool) -> None:
    world = sample_world()
    world.until_quiet()
    world.story.clear()
    files = sample_files()
    files["desired/jobs/pretrain.yaml"] = b"apiVersion: mindxdl.gitee.com/v1\nkind: AscendJob\nmetadata: {name: pre\n"
    files["desired/notice.yaml"] = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notice, namespace: default}\n"
    world.push(files, broken=True)
    result = world.until_quiet()[-1]
    compare("bad-document", world.story, update_golden)
    assert [d.action for d in result.deferred] == []
    assert set(placement(world)) == {"pretrain-master-0", "pretrain-worker-0"}
