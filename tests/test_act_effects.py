"""What an act says of its effect before it commits: the plan of the changed repository beside that of the present."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from belay.engine.cli import main
from belay.engine.cli.acts import isolations, jobs
from belay.engine.cli.acts.deadline import finish
from belay.engine.cli.acts.effects import effect
from belay.engine.cli.acts.targets import target
from belay.engine.cli.acts.verbs import OF_NOTHING
from belay.engine.errors import InputError
from belay.engine.load import load_directory
from belay.engine.model.times import rfc3339
from tests.golden.stories import sample_world

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The sample cluster, its jobs running for an hour."""
    world = sample_world()
    world.until_quiet()
    for item in world.objects.values():
        if item["kind"] == "Pod":
            item["status"]["startTime"] = rfc3339(world.now - 3600)
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(world.objects.values())}))
    return str(file)


def test_the_jobs_that_move_or_wait_are_named_with_what_is_lost(cluster: str) -> None:
    files = load_directory(ROOT / "desired")
    files = {f"desired/{path}": data for path, data in files.items()}
    edit = isolations.isolate(files, [target("node-1")], "fan", None)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    first, *rest = effect(files, after, cluster, None)
    assert first.startswith("plan: ") and "running pod" in first and "chip-hours lost" in first
    assert any("AscendJob default/pretrain" in line for line in rest)
    assert any("leaves node-1 2026-" in line and "Isolation" in line for line in rest)
    # when each thing happens: the job runs again, the chips are free, and from when that is counted
    (placed,) = [line for line in rest if "AscendJob default/pretrain" in line]
    assert re.search(r"moved on node-2 8 chips, node-3 8 chips, bound 2026-\S+Z \(in \d+s\)", placed)
    assert any(re.match(r"  node-1: 8 chips empty by 2026-\S+Z \(in \d+s\), grace", line) for line in rest)
    assert rest[-1] == "  times are the simulation's, counted from when the commit is in force"
    assert re.match(r"node-1 is empty by 2026-\S+Z \(in \d+s, ", finish(after, ["node-1"], cluster, None))


def test_a_job_that_would_wait_is_named_with_its_way_out(cluster: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = jobs.scale(files, "pretrain", 9)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    first, job = effect(files, after, cluster, None)
    assert first == "plan: 1 job left waiting"
    assert "pretrain: waiting: " in job and "needs " in job, job
    assert job.endswith("; when it starts is not known")
    stays = finish(after, ["node-1"], cluster, None)
    assert stays.startswith("when node-1 will be empty is not known: default/pretrain-master-0 stays on node-1: ")


def test_a_change_without_effect_says_so(cluster: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    assert effect(files, files, cluster, None) == ["plan: no job, node or chip changes"]


def test_chips_that_a_change_isolates_or_cuts_are_counted(cluster: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = isolations.isolate(files, [target("node-2/6"), target("node-2/7")], "fan", None)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    assert ", 2 chips isolated, " in effect(files, after, cluster, None)[0]
    assert effect(after, files, cluster, None)[0] == "plan: no job, node or chip changes", "nothing was isolated yet"


def test_what_a_budget_holds_back_is_named_with_it(cluster: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = isolations.isolate(files, [target(f"node-{number}") for number in (3, 4, 5)], "fan", None)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    first, *rest = effect(files, after, cluster, None)
    assert first == "plan: 3 nodes isolated (1 held back)"
    assert re.fullmatch(r"  node-5 is isolated later: held back by default until 2026-\S+Z", rest[0])


def test_a_node_that_the_cluster_has_not_is_said(cluster: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = isolations.isolate(files, [target("node-99")], "fan", None)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    said, plan = effect(files, after, cluster, None)
    assert (
        "warning: the cluster has no node node-99: did you mean node-" in said
        and plan == "plan: no job, node or chip changes"
    )


@pytest.mark.parametrize(
    ("named", "says"),
    [("node-99", "the cluster has no node node-99: did you mean node-"), ("node-1/40", "node node-1 has no chip 40")],
)
def test_a_node_or_chip_that_the_cluster_has_not_is_not_isolated(cluster: str, named: str, says: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = isolations.isolate(files, [target(named)], "fan", None)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    with pytest.raises(InputError, match=says) as caught:
        effect(files, after, cluster, None, OF_NOTHING)
    assert caught.value.code == "NoSuchObject" and "--cluster none" in str(caught.value)
    assert effect(files, after, "none", None, OF_NOTHING) == []


def test_the_verbs_refuse_nodes_that_the_cluster_has_not(cluster: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "desired", tmp_path / "desired")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", str(tmp_path)]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "Begin"]):
        subprocess.run([*git, *words], check=True)
    more = ["--repo", str(tmp_path), "--cluster", cluster, "--dry-run"]
    for words in (["isolate", "node-99", "--reason", "fan"], ["drain", "node-99"]):
        done = CliRunner().invoke(main, [*words, *more])
        assert done.exit_code == 2 and "the cluster has no node node-99" in done.output, done.output


def test_without_a_cluster_the_act_says_that_it_was_not_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert effect({}, {}, None, None) == ["not planned: no cluster is configured (--cluster FILE|live)"]
    assert effect({}, {}, "none", None) == []
    (line,) = effect({}, {}, None, str(tmp_path / "no-such-kubeconfig"))
    assert line.startswith("not planned: ") and "--cluster FILE|live|none" in line


def test_a_cluster_that_is_named_and_cannot_be_read_ends_the_act(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["drain", "node-1", "--repo", str(ROOT), "--cluster", str(tmp_path / "none.json"),
                                     "--dry-run"])  # fmt: skip
    assert done.exit_code == 2 and "none.json" in done.output


def test_chips_that_are_isolated_by_hand_are_named_with_the_document_and_its_reason(cluster: str) -> None:
    files = {f"desired/{path}": data for path, data in load_directory(ROOT / "desired").items()}
    edit = isolations.isolate(files, [target("node-1/3")], "ECC, ticket 4711", None)
    after = {**files, **{path: data for path, data in edit.files.items() if data is not None}}
    lines = effect(files, after, cluster, None)
    assert any("leaves node-1" in line and "(Isolation/node-1-3: ECC, ticket 4711)" in line for line in lines), lines
