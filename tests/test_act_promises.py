"""Acts that answer for the cluster: a drain by a time, a policy changed by flags, a confirmation, a suspended job."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.acts import splices
from belay.engine.cli.acts.deadline import DrainedPod, sentence
from belay.engine.cli.acts.moments import moment_to_come
from belay.engine.cli.acts.priorities import check_priority_class
from belay.engine.errors import InputError
from belay.engine.kube.resources import resource_for
from belay.engine.load import load, load_directory
from belay.engine.model.times import rfc3339
from tests.golden.stories import sample_world
from tests.loop_world import Cluster

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sample cluster with its jobs."""
    world = sample_world()
    world.until_quiet()
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(world.objects.values())}))
    return str(file)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    made = tmp_path / "clone"
    made.mkdir()
    subprocess.run(["cp", "-r", str(ROOT / "desired"), str(made)], check=True)
    for words in ("init -q --initial-branch=main", "config user.name Ada", "config user.email ada@example.com",
                  "add --all", "commit -qm Begin"):  # fmt: skip
        subprocess.run(["git", *words.split()], cwd=made, check=True)
    return made


def belay(clone: Path, *words: str, cluster: str = "none") -> Result:
    return CliRunner().invoke(main, [*words, "--repo", str(clone), "--no-push", "--cluster", cluster])


def commits(clone: Path) -> list[str]:
    done = subprocess.run(["git", "log", "--format=%s"], cwd=clone, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_drain_by_a_time_says_when_the_last_pod_has_ended(clone: Path, cluster: str) -> None:
    done = belay(clone, "drain", "node-1", "--by", "4h", cluster=cluster)
    # the sample cluster stands in another year than the clock: times to come are far after its own
    assert done.exit_code == 0, done.output
    assert "1 pod with 8 chips leaves node-1, the last at" in done.output
    assert "take it back: belay release node-1" in done.output
    (isolation,) = [one for one in load(load_directory(clone)).desired.isolations if one.document.name == "node-1"]
    assert isolation.document.spec.reason.startswith("maintenance, empty by 2")
    refused = belay(clone, "drain", "node-2", "--by", "4h", "--until", "1h", cluster=cluster)
    assert refused.exit_code == 2 and "the work would end before it begins" in refused.output
    blind = belay(clone, "drain", "node-2", "--by", "4h")
    assert blind.exit_code == 2 and "foretold from a cluster" in blind.output


def test_a_drain_that_comes_too_late_is_refused_with_its_numbers() -> None:
    rows = [
        DrainedPod("train/a-0", "n1", 8, 1_000.0, ""),
        DrainedPod("train/b-0", "n1", 4, 1_900.0, "SafetyBudget/site holds it back until 1970-01-01T00:31:00Z"),
        DrainedPod("train/c-0", "n1", 1, None, ""),
    ]
    with pytest.raises(InputError) as refused:
        sentence(rows, ["n1"], 1_300.0, 0.0)
    assert "2 pods with 5 chips cannot have left by 1970-01-01T00:21:40Z: train/b-0 ends 10 min later" in str(
        refused.value
    )
    assert "train/c-0 does not move from n1" in str(refused.value)
    with pytest.raises(InputError, match="Give --by 1970-01-01T00:32:40Z or later"):
        sentence(rows[:2], ["n1"], 1_300.0, 0.0)
    assert "2 pods with 12 chips leave n1" in sentence(rows[:2], ["n1"], 2_000.0, 0.0)
    assert "n1 is empty already" in sentence([], ["n1"], 2_000.0, 0.0)


def test_a_drain_of_a_job_without_the_label_says_what_to_add(clone: Path, cluster: str, tmp_path: Path) -> None:
    file = clone / "desired" / "jobs" / "pretrain.yaml"
    file.write_text(file.read_text().replace("    fault-scheduling: force\n", ""))
    subprocess.run(["git", "commit", "-qam", "Without the label"], cwd=clone, check=True)
    bare = tmp_path / "cluster.json"
    bare.write_text(Path(cluster).read_text().replace('"fault-scheduling": "force"', '"note": "none"'))
    done = belay(clone, "drain", "node-1", "--by", "4h", cluster=str(bare))
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "(its job has no label fault-scheduling)" in said, done.output
    assert "To have it moved, add fault-scheduling: grace to the labels of the job" in said and "begin now" not in said


def test_times_to_come_are_written_as_people_write_them() -> None:
    now = time.mktime((2026, 11, 25, 12, 0, 0, 0, 0, -1))  # a Wednesday
    friday = time.mktime((2026, 11, 27, 0, 0, 0, 0, 0, -1))
    assert moment_to_come("friday", now, "--until") == moment_to_come("2026-11-27", now, "--until") == friday
    assert moment_to_come("Wednesday", now, "--until") - now > 6 * 86_400
    assert moment_to_come("22:00", now, "--by") == now + 10 * 3600
    assert moment_to_come("tonight", now, "--by") == now + 10 * 3600
    assert moment_to_come("tomorrow", now, "--until") == now + 12 * 3600
    assert moment_to_come("11:00", now, "--by") == now + 23 * 3600
    assert moment_to_come("90m", now, "--by") == now + 5400 == moment_to_come(rfc3339(now + 5400), now, "--by")
    for wrong, says in (("soon", "not a duration"), ("2020-01-01", "gone by"), ("25:00", "not a duration")):
        with pytest.raises(InputError, match=says):
            moment_to_come(wrong, now, "--by")


def test_a_policy_is_added_and_changed_by_flags_and_its_comments_stay(clone: Path) -> None:
    done = belay(
        clone, "policy", "add", "strikes", "--frequency", "80C98001:3/1h=ManuallySeparateNPU", "--mode", "shadow"
    )
    assert done.exit_code == 0, done.output
    (before,) = [path for path in (clone / "desired" / "faults").glob("*.yaml") if "name: training" in path.read_text()]
    text = before.read_text()
    words = ("--level", "80C98001=SeparateNPU", "--duration", "81078603:40s/60s=PreSeparateNPU", "--mode", "shadow")
    done = belay(clone, "policy", "edit", "training", *words)
    assert done.exit_code == 0, done.output
    edited = before.read_text()
    gone = [line for line in text.splitlines() if line not in edited.splitlines()]
    come = [line for line in edited.splitlines() if line not in text.splitlines()]
    assert gone == ["  mode: enforce"]
    assert come == [
        "  mode: shadow",
        '    - {codes: ["81078603"], timeout: 40s, recover: 60s, level: PreSeparateNPU}',
        "  levels:",
        "    80C98001: SeparateNPU",
    ]
    assert belay(clone, "policy", "edit", "training", "--drop", "80C98001").exit_code == 0
    assert "80C98001" not in before.read_text()
    assert commits(clone)[:3] == [
        "Change FaultPolicy training",
        "Change FaultPolicy training",
        "Add FaultPolicy strikes",
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("edit", "trainin", "--mode", "shadow"), "Did you mean training?"),
        (("edit", "training", "--drop", "80C98001"), "there is no spec.levels.80C98001"),
        (("edit", "training"), "nothing would change"),
        (("add", "x"), "it would decide nothing"),
        (("add", "x", "--frequency", "often"), "Write it like 80C98001:3/1h=ManuallySeparateNPU"),
        (("add", "x", "--frequency", "80C98001:3/1h=SeparateNPU"), "releaseAfter is required"),
        (("add", "x", "--level", "80C98001=Bad"), "desired/faults/x.yaml"),
    ],
)
def test_a_wrong_policy_is_refused_and_nothing_is_written(clone: Path, words: tuple[str, ...], says: str) -> None:
    done = belay(clone, "policy", *words)
    assert done.exit_code == 2 and says in done.output, done.output
    assert commits(clone) == ["Begin"]


def held(*digests: str, deferred: str = "", objects: int = 0) -> dict[str, Any]:
    rows = [{"object": f"AscendJob/train/llm-{number}", "chips": 8 * (number == 0)} for number in range(objects)]
    held = {"objects": objects, "jobs": objects, "chips": {"training": 8}, "list": rows}
    data = {"heldPrune.json": json.dumps({"digest": digests[0], **held})} if digests else {}
    if deferred:
        row = {"action": "DeleteObject", "confirm": deferred, "what": "Service/train/door is no longer declared"}
        data["deferred.json"] = json.dumps([row])
    metadata = {"name": "belay-sync", "namespace": "belay-system", "labels": {"belay.dev/about": "sync"}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_a_digest_that_no_deletion_has_is_not_confirmed(clone: Path, tmp_path: Path) -> None:
    digest, other = "0123456789abcdef" * 2, "f" * 32
    file = tmp_path / "cluster.json"
    file.write_text(
        json.dumps({"kind": "List", "apiVersion": "v1", "items": [held(digest, deferred="e" * 32, objects=30)]})
    )
    wrong = belay(clone, "confirm", other, cluster=str(file))
    assert wrong.exit_code == 2 and f"what waits is {digest}" in wrong.output
    assert commits(clone) == ["Begin"]
    shown = belay(clone, "confirm", "012345", "--dry-run", cluster=str(file)).output.splitlines()
    assert shown[:3] == [
        "this deletes 30 objects (30 jobs on 8 chips):", "  AscendJob/train/llm-0, whose pods hold 8 chips",
        "  AscendJob/train/llm-1",
    ]  # fmt: skip
    assert shown[21] == "  and 10 more: belay status" and commits(clone) == ["Begin"]
    window = belay(clone, "confirm", "e" * 32, "--dry-run", cluster=str(file)).output
    assert window.startswith("this deletes 1 object now:\n  Service/train/door is no longer declared\n")
    for given, whole in (("012345", digest), ("e" * 32, "e" * 32)):
        done = belay(clone, "confirm", given, cluster=str(file))
        assert done.exit_code == 0, done.output
        last = subprocess.run(
            ["git", "log", "-1", "--format=%B"], cwd=clone, capture_output=True, text=True, check=True
        )
        assert f"Belay-Confirm: {whole}" in last.stdout
        assert "take it back: restore the documents, as they were before they went, and push  # while" in done.output
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [held()]}))
    nothing = belay(clone, "confirm", digest, cluster=str(file))
    assert nothing.exit_code == 2 and "no deletion waits for a person" in nothing.output
    unchecked = belay(clone, "confirm", digest)
    assert unchecked.exit_code == 0 and "not checked whether it waits" in unchecked.output
    assert "the whole digest is needed" in belay(clone, "confirm", "012345").output


def priority_class(name: str) -> dict[str, Any]:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 100}


def test_a_priority_class_that_exists_nowhere_is_refused_with_those_that_do(clone: Path, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [priority_class("high")]}))
    for words in (("priority", "pretrain", "hihg"),
                  ("new", "job", "other", "--chips", "8", "--product", "800t-a2", "--priority", "hihg")):  # fmt: skip
        wrong = belay(clone, *words, cluster=str(file))
        said = " ".join(wrong.output.split())
        assert wrong.exit_code == 2 and "PriorityClass 'hihg': did you mean high?" in said, wrong.output
        assert "There are high; declare it in desired/ first" in said and "[NoSuchObject]" in said
    assert commits(clone) == ["Begin"]

    (clone / "desired" / "priorities.yaml").write_text(json.dumps(priority_class("low")))
    subprocess.run(["git", "add", "--all"], cwd=clone, check=True)
    subprocess.run(["git", "commit", "-qm", "Add low"], cwd=clone, check=True)
    for name in ("high", "low", "system-node-critical"):
        assert belay(clone, "priority", "pretrain", name, cluster=str(file)).exit_code == 0
    assert belay(clone, "priority", "pretrain", "hihg", cluster="none").exit_code == 0


def test_a_live_cluster_without_any_priority_class_has_none(tmp_path: Path) -> None:
    live = Cluster(tmp_path)
    try:
        with pytest.raises(InputError, match="neither this repository nor the cluster has") as refused:
            check_priority_class("high", {}, "live", str(live.kubeconfig))
        assert "There is none yet" in str(refused.value)
        live.ensure(resource_for("scheduling.k8s.io/v1", "PriorityClass"), priority_class("high"))
        check_priority_class("high", {}, "live", str(live.kubeconfig))
    finally:
        live.close()


def test_a_training_job_is_suspended_and_resumed(clone: Path, cluster: str) -> None:
    done = belay(clone, "suspend", "pretrain", cluster=cluster)
    assert done.exit_code == 0, done.output
    assert "+    suspend: true" in done.output and "take it back: belay resume default/pretrain" in done.output
    again = belay(clone, "suspend", "pretrain")
    assert again.exit_code == 2 and "it is suspended already" in again.output
    assert belay(clone, "resume", "pretrain").exit_code == 0
    assert not [one for one in load(load_directory(clone)).diagnostics if "suspend" in one.message]


def test_an_item_goes_to_the_end_of_its_list_and_nowhere_else() -> None:
    block = "a:\n  l:\n  - x  # one\n\nb: 1\n"
    assert splices.with_item(block, 0, ("a", "l"), "{y: 2}") == "a:\n  l:\n  - x  # one\n  - {y: 2}\n\nb: 1\n"
    assert splices.with_item("a: {l: [x]}\n", 0, ("a", "l"), "y") == "a: {l: [x, y]}\n"
    assert splices.with_item("a:\n  k: 1\n", 0, ("a", "l"), "y") == "a:\n  k: 1\n  l: [y]\n"
    with pytest.raises(InputError, match="is no list"):
        splices.with_item("a:\n  l: 1\n", 0, ("a", "l"), "y")
