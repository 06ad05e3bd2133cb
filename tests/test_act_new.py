"""`belay new` and `belay init`: a few words become documents that hold, and that the cluster can carry out."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.load import load, load_directory
from tests.golden.stories import sample_world

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
    """A clone of the sample repository; its remote does not matter."""
    made = tmp_path / "clone"
    made.mkdir()
    subprocess.run(["cp", "-r", str(ROOT / "desired"), str(made)], check=True)
    for words in ("init -q --initial-branch=main", "config user.name Ada", "config user.email ada@example.com",
                  "add --all", "commit -qm Begin"):  # fmt: skip
        subprocess.run(["git", *words.split()], cwd=made, check=True)
    return made


def new(clone: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["new", *words, "--repo", str(clone), "--no-push"])


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("pool", "spare", "--label", "rack=7"), "desired/pools/spare.yaml"),
        (("queue", "research", "--weight", "3", "--capability", "huawei.com/Ascend910=64"),
         "desired/queues/research.yaml"),
        (("layout", "small", "--pool", "inference", "--cut", "0-1=vir02,vir02"), "desired/layouts/small.yaml"),
        (("layout", "soft", "--pool", "training", "--mode", "soft"), "desired/layouts/soft.yaml"),
        (("policy", "tolerant", "--level", "81078603=NotHandleFault", "--pool", "training"),
         "desired/faults/tolerant.yaml"),
        (("job", "one", "--chips", "8", "--product", "atlas-800t-a2", "--kind", "Job"), "desired/jobs/one.yaml"),
    ],
)  # fmt: skip
def test_the_document_is_found_right_and_committed_with_its_way_back(
    clone: Path, words: tuple[str, ...], file: str
) -> None:
    before = {(one.object, one.message) for one in load(load_directory(clone)).diagnostics}
    done = new(clone, *words, "--cluster", "none")
    assert done.exit_code == 0, done.output
    assert (clone / file).exists() and "revert --no-edit " in done.output
    after = {(one.object, one.message) for one in load(load_directory(clone)).diagnostics}
    assert after <= before, "nothing new is found"
    subject = subprocess.run(["git", "log", "-1", "--format=%s"], cwd=clone, capture_output=True, text=True, check=True)
    assert re.match(r"Add \w+ \w+\n", subject.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("job", "train", "--chips", "8", "--pods", "3", "--product", "atlas-800t-a2"),
        ("job", "serve", "--chips", "2", "--pods", "2", "--product", "atlas-300i-pro", "--kind", "Deployment"),
        ("job", "batch", "--chips", "4", "--pods", "2", "--product", "atlas-800t-a2", "--kind", "Job"),
    ],
)
def test_a_new_job_is_placed(clone: Path, cluster: str, words: tuple[str, ...]) -> None:
    done = new(clone, *words, "--cluster", cluster)
    assert done.exit_code == 0, done.output
    assert "plan: 1 job placed" in done.output, done.output
    assert f"default/{words[1]}: placed on " in done.output


def test_a_new_job_on_parts_of_chips_asks_for_the_size_by_its_resource(clone: Path) -> None:
    words = ("job", "small", "--template", "vir04_3c", "--pods", "2", "--product", "atlas-300i-pro")
    done = new(clone, *words, "--kind", "Deployment", "--cluster", "none")
    assert done.exit_code == 0, done.output
    (body,) = yaml.safe_load_all((clone / "desired/inference/small.yaml").read_text())
    pod = body["spec"]["template"]
    part = {"huawei.com/Ascend310P-4c.3cpu": 1}
    assert pod["spec"]["containers"][0]["resources"] == {"requests": part, "limits": part}
    assert pod["metadata"]["labels"]["ring-controller.atlas"] == "ascend-310P" and body["spec"]["replicas"] == 2


def test_new_services_and_jobs_ask_to_be_moved_off_faulty_hardware(clone: Path) -> None:
    for kind, folder in (("Deployment", "inference"), ("Job", "jobs")):
        words = ("job", f"new-{kind.lower()}", "--chips", "1", "--product", "atlas-300i-pro", "--kind", kind)
        assert new(clone, *words, "--cluster", "none").exit_code == 0
        (body,) = yaml.safe_load_all((clone / f"desired/{folder}/new-{kind.lower()}.yaml").read_text())
        # Belay and MindCluster read it of the pods
        assert body["spec"]["template"]["metadata"]["labels"]["fault-scheduling"] == "grace"


def test_a_new_training_job_asks_to_be_moved_off_faulty_hardware(clone: Path) -> None:
    assert new(clone, "job", "train", "--chips", "8", "--product", "atlas-800t-a2", "--cluster", "none").exit_code == 0
    job = list(yaml.safe_load_all((clone / "desired/jobs/train.yaml").read_text()))[-1]
    assert job["kind"] == "AscendJob" and job["metadata"]["labels"]["fault-scheduling"] == "grace"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("job", "a", "--chips", "9", "--product", "atlas-800t-a2"), "a server of atlas-800t-a2 has 8"),
        (("job", "a", "--chips", "8", "--product", "800t-a2"), "Did you mean atlas-800t-a2?"),
        (("job", "a", "--chips", "8"), "Name one: atlas-300i-pro, atlas-800t-a2"),
        (("job", "a", "--product", "atlas-300i-pro"), "Give --chips or --template"),
        (("job", "a", "--chips", "1", "--template", "vir02"), "Give --chips or --template"),
        (("job", "a", "--template", "vir02", "--product", "atlas-300i-pro"), "Add --kind Deployment"),
        (("job", "a", "--template", "vir3", "--product", "atlas-300i-pro", "--kind", "Job"), "Its own: vir01, vir02"),
        (("job", "a", "--template", "vir02", "--product", "atlas-300i", "--kind", "Job"), "no sizes of vNPUs follow"),
        (("job", "pretrain", "--chips", "8", "--product", "atlas-800t-a2"), "declares it already"),
        (("policy", "../../p", "--level", "81078603=NotHandleFault"), "not an RFC 1123 name"),
        (("queue", "../../../tmp/q"), "not an RFC 1123 name"),
        (("job", "../a", "--chips", "8", "--product", "atlas-800t-a2"), "not an RFC 1123 name"),
        (("pool", "a"), "Give --label KEY=VALUE, or --product"),
        (("pool", "a", "--label", "rack"), "--label rack: a name, = and a value are wanted"),
        (("layout", "a", "--pool", "inference", "--cut", "0=vir04,vir04"), "in place of vir04 fits"),
        (("layout", "a", "--pool", "inferense", "--cut", "0=vir02"), "inferense"),
        (("policy", "a", "--level", "81078603=Restart"), "Restart"),
    ],
)  # fmt: skip
def test_words_that_do_not_fit_are_refused_and_nothing_is_written(
    clone: Path, words: tuple[str, ...], says: str
) -> None:
    done = new(clone, *words, "--cluster", "none")
    assert done.exit_code == 2 and says in " ".join(done.output.split()), done.output
    left = subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True)
    assert left.stdout == ""


def begin(folder: Path, *words: str) -> Result:
    names = {f"GIT_{who}_{what}": "ada@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return CliRunner(env=names).invoke(main, ["init", str(folder), *words])


def test_without_a_name_for_commits_no_repository_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[user]\n\tuseConfigOnly = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    for there in (False, True):
        folder = tmp_path / f"state-{there}"
        if there:
            folder.mkdir()
        done = CliRunner().invoke(main, ["init", str(folder), "--nodes", "2x800t-a2"])
        assert done.exit_code == 2 and 'git config --global user.name "NAME"' in " ".join(done.output.split())
        assert folder.exists() == there and not list(folder.glob("*"))
    assert begin(tmp_path / "state-True", "--nodes", "2x800t-a2").exit_code == 0


def test_a_repository_begins_with_the_pools_of_the_clusters_nodes(tmp_path: Path, cluster: str) -> None:
    done = begin(tmp_path / "state", "--cluster", cluster)
    assert done.exit_code == 0, done.output
    assert "pool 800t-a2: 8 nodes of atlas-800t-a2" in done.output
    loaded = load(load_directory(tmp_path / "state"))
    assert loaded.diagnostics == ()
    pools: dict[str, Any] = {one.document.metadata.name: one.document.spec for one in loaded.desired.pools}
    assert {name: spec.product for name, spec in pools.items()} == {
        "800t-a2": "atlas-800t-a2", "300i-pro": "atlas-300i-pro"}  # fmt: skip
    planned = CliRunner().invoke(main, ["get", "pools", "--desired", str(tmp_path / "state"), "--cluster", cluster])
    assert planned.exit_code == 0 and re.search(r"800t-a2 +\S* *8\b|800t-a2.* 8 ", planned.output), planned.output


def test_a_repository_begins_with_servers_that_are_named(tmp_path: Path) -> None:
    assert begin(tmp_path / "state", "--nodes", "4x800t-a2,2x300i-duo,800t-a2").exit_code == 0
    assert {one.document.spec.product for one in load(load_directory(tmp_path / "state")).desired.pools} == {
        "atlas-800t-a2", "atlas-300i-duo"}  # fmt: skip
    again = begin(tmp_path / "state", "--nodes", "4x800t-a2")
    assert again.exit_code == 2 and "not an empty directory" in again.output
    wrong = begin(tmp_path / "other", "--nodes", "4x800")
    assert wrong.exit_code == 2 and "known: " in wrong.output and not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nodes", "4x800t-a2", "--cluster", "nodes.yaml"), "--cluster: --nodes names servers without a cluster"),
        (("--nodes", "4x800t-a2", "--kubeconfig", "admin"), "--kubeconfig: --nodes names servers without a cluster"),
        (("--nodes", "0x800t-a2"), "--nodes 0x800t-a2: 0 servers make no pool"),
    ],
)
def test_words_of_a_beginning_that_do_not_fit_are_refused(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    done = begin(tmp_path / "state", *words)
    assert done.exit_code == 2 and says in done.output, done.output
    assert not (tmp_path / "state").exists()


def test_a_person_that_git_does_not_know_begins_nothing(tmp_path: Path) -> None:
    """What a refused beginning left behind was in the way of the next."""
    (tmp_path / "config").write_text("[user]\nuseConfigOnly = true\n")
    stranger = {"GIT_CONFIG_GLOBAL": str(tmp_path / "config"), "GIT_CONFIG_NOSYSTEM": "1"}
    words = ["init", str(tmp_path / "teams/state"), "--nodes", "4x800t-a2"]
    done = CliRunner(env=stranger).invoke(main, words)
    assert done.exit_code == 2 and "Git does not know your name and address" in done.output, done.output
    assert not (tmp_path / "teams").exists()
    assert begin(tmp_path / "teams/state", "--nodes", "4x800t-a2").exit_code == 0
