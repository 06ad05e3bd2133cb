"""The source against real Git: revisions in force, refusals, and conditions."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belay.engine.errors import InputError, SourceError
from belay.engine.source import FetchResult, GitSource, Limits, SourceConfig
from tests.gitrepo import Repo, git

pytestmark = pytest.mark.real_time


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def source(repo: Repo, tmp_path: Path, **options: object) -> GitSource:
    limits = options.pop("limits", None)
    config = SourceConfig(url=str(options.pop("url", repo.bare)), **options)  # type: ignore[arg-type]
    return GitSource(config, tmp_path / "mirrors", limits=limits, chance=random.Random(7))  # type: ignore[arg-type]


def reason(result: FetchResult, kind: str = "Ready") -> str:
    condition = result.condition(kind)
    assert condition is not None, result.conditions
    return condition.reason


def test_a_commit_becomes_a_revision_with_documents_only(repo: Repo, tmp_path: Path) -> None:
    sha = repo.commit(
        {
            "desired/job.yaml": "a: 1\n",
            "desired/deep/er/x.yml": "b: 1\n",
            "policies/p.json": "{}",
            "desired/README.md": "no",
            "other/x.yaml": "no",
            "root.yaml": "no",
        },
        message="first: add the job",
    )
    s = source(repo, tmp_path)
    result = s.fetch()
    revision = result.revision
    assert revision is not None and revision.sha == sha == result.attempted
    assert set(revision.files) == {"desired/job.yaml", "desired/deep/er/x.yml", "policies/p.json"}
    assert revision.changed == ("desired/deep/er/x.yml", "desired/job.yaml", "policies/p.json")
    assert revision.author == "Ada <ada@example.org>" and revision.subject == "first: add the job"
    assert abs(revision.committed - time.time()) < 3600 and revision.signer is None
    assert result.changed_ref and reason(result) == "Succeeded"
    contents = s.read(revision.files.values())
    assert contents[revision.files["desired/job.yaml"]] == b"a: 1\n"
    assert contents[revision.files["policies/p.json"]] == b"{}"


def test_the_next_commit_lists_changed_added_and_removed_paths(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "2", "desired/c.yaml": "3"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    (repo.work / "desired/b.yaml").unlink()
    repo.commit({"desired/a.yaml": "changed", "policies/new.yaml": "4", "README": "x"})
    result = s.fetch(first)
    assert result.revision is not None
    assert result.revision.changed == ("desired/a.yaml", "desired/b.yaml", "policies/new.yaml")
    assert set(result.revision.files) == {"desired/a.yaml", "desired/c.yaml", "policies/new.yaml"}
    # a full listing in another process agrees with the incremental one
    fresh = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "elsewhere").fetch().revision
    assert fresh is not None and fresh.files == result.revision.files


def test_nothing_new_returns_the_same_revision(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    again = s.fetch(first)
    assert again.revision is first and not again.changed_ref and reason(again) == "Succeeded"


def test_a_subfolder_is_the_root_of_paths(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"clusters/a/desired/x.yaml": "1", "desired/y.yaml": "2"})
    s = source(repo, tmp_path, path="clusters/a/")
    first = s.fetch().revision
    assert first is not None and set(first.files) == {"desired/x.yaml"}
    repo.commit({"clusters/a/desired/x.yaml": "3", "desired/y.yaml": "4"})
    second = s.fetch(first).revision
    assert second is not None and second.changed == ("desired/x.yaml",)


def test_a_force_push_is_used_and_reported_until_the_next_ordinary_push(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    old = repo.commit({"desired/a.yaml": "2"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    git(repo.work, "reset", "-q", "--hard", "HEAD~1")
    new = repo.commit({"desired/a.yaml": "3"}, push=False)
    repo.push("--force")
    result = s.fetch(first)
    assert result.revision is not None and result.revision.sha == new
    condition = result.condition("ForcePushed")
    assert condition is not None and old[:12] in condition.message and new[:12] in condition.message
    assert s.fetch(result.revision).condition("ForcePushed") is not None
    repo.commit({"desired/a.yaml": "4"})
    assert s.fetch(result.revision).condition("ForcePushed") is None


def test_a_force_push_is_noticed_after_a_restart(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    source(repo, tmp_path).fetch()
    git(repo.work, "commit", "-q", "--amend", "-m", "rewritten")
    repo.push("--force")
    assert source(repo, tmp_path).fetch().condition("ForcePushed") is not None


def test_a_vanished_branch_keeps_the_last_revision_in_force(repo: Repo, tmp_path: Path) -> None:
    sha = repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    git(repo.bare, "update-ref", "-d", "refs/heads/main")
    result = s.fetch(first)
    assert result.revision is first and reason(result) == reason(result, "Fetched") == "BranchNotFound"
    assert s.read(first.files.values()) if first else False
    # also after a restart: the mirror remembers
    restarted = source(repo, tmp_path).fetch()
    assert restarted.revision is not None and restarted.revision.sha == sha and reason(restarted) == "BranchNotFound"


def test_a_branch_with_the_same_ending_is_not_confused(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    git(repo.bare, "update-ref", "refs/heads/refs/heads/prod", repo.head())
    assert reason(source(repo, tmp_path, branch="prod").fetch()) == "BranchNotFound"


@pytest.mark.parametrize("left", ["policies/schemas/belay.json", "desired/.old.yaml", "policies/.github/x.yml"])
def test_a_tree_that_keeps_no_more_than_schemas_is_empty(repo: Repo, tmp_path: Path, left: str) -> None:
    repo.commit({"desired/a.yaml": "1", left: "{}"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    git(repo.work, "rm", "-q", "desired/a.yaml")
    repo.commit({"README": "all gone"})
    result = s.fetch(first)
    assert result.revision is first and reason(result, "Accepted") == "EmptyTree"


def test_an_empty_tree_is_refused_and_the_last_revision_stays(repo: Repo, tmp_path: Path) -> None:
    first_sha = repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    git(repo.work, "rm", "-rq", "desired")
    emptied = repo.commit({"README": "all gone"})
    result = s.fetch(first)
    assert result.revision is first and reason(result, "Accepted") == "EmptyTree"
    assert result.attempted == emptied and first_sha[:12] in (result.condition("Ready") or result.conditions[0]).message


NOTE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"
BUDGET = "apiVersion: belay.dev/v1alpha1\nkind: SafetyBudget\nmetadata: {name: own}\nspec: {limits: []}\n"


def emptied(repo: Repo, tmp_path: Path, *gone: str) -> FetchResult:
    """What becomes of a revision without these paths after one with two objects in desired/ and one in policies/."""
    repo.commit({"desired/a.yaml": NOTE % "a", "desired/b.yaml": NOTE % "b", "policies/own.yaml": BUDGET})
    first = source(repo, tmp_path).fetch().revision
    for path in gone:
        git(repo.work, "rm", "-rq", path)
    repo.commit({"README": "moved"})
    # a new process knows the revision in force by its mirror only
    result = source(repo, tmp_path).fetch()
    assert result.revision is not None and first is not None
    assert (result.revision.sha == first.sha) == (reason(result, "Accepted") != "Succeeded")
    return result


@pytest.mark.parametrize(("layer", "objects"), [("desired", "2 objects"), ("policies", "1 object")])
def test_a_layer_that_declares_nothing_any_more_is_refused(
    repo: Repo, tmp_path: Path, layer: str, objects: str
) -> None:
    result = emptied(repo, tmp_path, layer)
    condition = result.condition("Accepted")
    assert condition is not None and condition.reason == "EmptyLayer"
    assert f"layer {layer}/ declared {objects} and declares none now" in condition.message


def test_a_renamed_folder_of_a_layer_deletes_nothing(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": NOTE % "a", "policies/own.yaml": BUDGET})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    git(repo.work, "mv", "desired", "Desired")
    repo.commit({"README": "capitals"})
    result = s.fetch(first)
    assert result.revision is first and reason(result, "Accepted") == "EmptyLayer"


def test_a_layer_of_comments_declares_nothing_and_one_that_cannot_be_read_may(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": NOTE % "a", "policies/own.yaml": BUDGET})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    repo.commit({"desired/a.yaml": "# " + (NOTE % "a").replace("\n", "\n# ")})
    assert reason(s.fetch(first), "Accepted") == "EmptyLayer"
    repo.commit({"desired/a.yaml": "{"})
    assert reason(s.fetch(first), "Accepted") == "Succeeded"


def test_a_commit_confirms_that_a_layer_shall_be_empty(repo: Repo, tmp_path: Path) -> None:
    condition = emptied(repo, tmp_path, "desired").condition("Accepted")
    assert condition is not None
    (digest,) = re.findall(r"Belay-Confirm: ([0-9a-f]{32})", condition.message)
    wrong = repo.commit({"README": "no"}, message=f"no\n\nBelay-Confirm: {digest[::-1]}")
    assert source(repo, tmp_path).fetch().revision.sha != wrong  # type: ignore[union-attr]
    meant = repo.commit({"README": "yes"}, message=f"yes\n\nBelay-Confirm: {digest}")
    revision = source(repo, tmp_path).fetch().revision
    assert revision is not None and revision.sha == meant and set(revision.files) == {"policies/own.yaml"}


def test_an_empty_repository_has_nothing_in_force(repo: Repo, tmp_path: Path) -> None:
    result = source(repo, tmp_path).fetch()
    assert result.revision is None and reason(result) == "BranchNotFound" and not result.changed_ref


def test_an_unreachable_remote_keeps_the_last_revision_and_backs_off(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path, interval=10.0)
    first = s.fetch().revision
    assert 9 <= s.next_delay() <= 11
    moved = repo.bare.rename(repo.bare.with_name("moved.git"))
    delays = []
    for _ in range(14):
        result = s.fetch(first)
        assert result.revision is first and reason(result) == "Unreachable"
        delays.append(max(s.next_delay() for _ in range(40)))
    assert delays[0] < 3 and delays[3] > delays[0] and 250 < delays[-1] <= 301
    assert min(s.next_delay() for _ in range(100)) < 60  # full jitter
    moved.rename(repo.bare)
    assert reason(s.fetch(first)) == "Succeeded" and s.next_delay() <= 11


def test_credentials_never_reach_a_condition(repo: Repo, tmp_path: Path) -> None:
    s = source(repo, tmp_path, url="https://bob:hunter2@127.0.0.1:1/x.git", limits=Limits(remote_timeout=10))
    result = s.fetch()
    assert reason(result) == "Unreachable"
    text = " ".join(c.message for c in result.conditions)
    assert "hunter2" not in text and "127.0.0.1" in text
    assert all(len(c.message) <= 300 for c in result.conditions)


def test_a_fetch_from_a_hanging_remote_times_out(repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_SSH_COMMAND", "sleep 60 #")
    s = source(repo, tmp_path, url="ssh://git@example.invalid/x.git", limits=Limits(remote_timeout=0.3))
    started = time.monotonic()
    assert reason(s.fetch()) == "Unreachable"
    assert time.monotonic() - started < 40


def test_a_huge_file_is_refused_and_its_last_good_version_stays(repo: Repo, tmp_path: Path) -> None:
    good = repo.commit({"desired/a.yaml": "1", "desired/big.yaml": "small"})
    s = source(repo, tmp_path, limits=Limits(blob=1000))
    first = s.fetch().revision
    assert first is not None
    repo.commit({"desired/big.yaml": "x" * 1001, "desired/also.yaml": "y" * 5000})
    result = s.fetch(first)
    revision = result.revision
    assert revision is not None and revision.sha == repo.head()
    assert revision.files["desired/big.yaml"] == first.files["desired/big.yaml"]
    assert "desired/also.yaml" not in revision.files and revision.changed == ()
    by_path = {p.path: p for p in revision.problems}
    assert by_path["desired/big.yaml"].reason == "FileTooLarge" and by_path["desired/big.yaml"].held == good
    assert by_path["desired/also.yaml"].held == ""
    assert reason(result, "FilesRefused") == "FileTooLarge"
    # the same without memory: what is in force is a function of the commit
    restarted = source(repo, tmp_path, limits=Limits(blob=1000)).fetch().revision
    assert restarted is not None and restarted.files == revision.files


@pytest.mark.parametrize(
    ("limits", "expected"), [(Limits(total=100), "TreeTooLarge"), (Limits(files=3), "TooManyFiles")]
)
def test_a_tree_beyond_the_limits_is_refused_whole(repo: Repo, tmp_path: Path, limits: Limits, expected: str) -> None:
    repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path, limits=limits)
    first = s.fetch().revision
    repo.commit({f"desired/f{i}.yaml": "x" * 40 for i in range(4)})
    result = s.fetch(first)
    assert first is not None and result.revision is first and reason(result, "Accepted") == expected


def test_symlinks_are_followed_only_to_regular_files_inside(repo: Repo, tmp_path: Path) -> None:
    repo.write({"desired/real.yaml": "real", "shared/common.txt": "common"})
    links = {
        "inside.yaml": "real.yaml",
        "up.yaml": "../shared/common.txt",
        "outside.yaml": "../../../etc/passwd",
        "absolute.yaml": "/etc/passwd",
        "chain.yaml": "inside.yaml",
        "folder.yaml": "../shared",
        "dangling.yaml": "nowhere.yaml",
        "gitdir.yaml": "../.git/config",
        "folder": "../shared",
    }
    for name, target in links.items():
        (repo.work / "desired" / name).symlink_to(target)
    repo.commit()
    s = source(repo, tmp_path)
    revision = s.fetch().revision
    assert revision is not None
    contents = s.read(revision.files.values())
    assert {p: contents[b] for p, b in revision.files.items()} == {
        "desired/real.yaml": b"real",
        "desired/inside.yaml": b"real",
        "desired/up.yaml": b"common",
    }
    assert {p.path for p in revision.problems} == {
        f"desired/{n}"
        for n in (
            "outside.yaml",
            "absolute.yaml",
            "chain.yaml",
            "folder.yaml",
            "dangling.yaml",
            "gitdir.yaml",
            "folder",
        )
    }
    assert {p.reason for p in revision.problems} == {"LinkRefused"}
    # the target changes, the link does not: the linked document changes
    repo.commit({"shared/common.txt": "new"})
    second = s.fetch(revision).revision
    assert second is not None and second.changed == ("desired/up.yaml",)


def test_submodules_are_refused_and_reported(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    git(repo.work, "update-index", "--add", "--cacheinfo", f"160000,{repo.head()},desired/sub")
    git(repo.work, "commit", "-q", "-m", "submodule")
    repo.push()
    revision = source(repo, tmp_path).fetch().revision
    assert revision is not None and set(revision.files) == {"desired/a.yaml"}
    assert [(p.path, p.reason) for p in revision.problems] == [("desired/sub", "SubmoduleRefused")]


def test_odd_file_names_neither_break_nor_hide_the_others(repo: Repo, tmp_path: Path) -> None:
    os.makedirs(repo.work / "desired")
    for name in (b"new\nline.yaml", b"bad\xff\xfe.yaml", b"tab\t.yaml", b"bad\xff.txt"):
        (Path(os.fsdecode(os.fsencode(repo.work / "desired") + b"/" + name))).write_bytes(b"x: 1")
    repo.commit(
        {"desired/with space.yaml": "1", "desired/-dash.yaml": "2", "desired/中文.yaml": "3", 'desired/"q".yaml': "4"}
    )
    s = source(repo, tmp_path)
    revision = s.fetch().revision
    assert revision is not None
    assert set(revision.files) == {
        "desired/with space.yaml",
        "desired/-dash.yaml",
        "desired/中文.yaml",
        'desired/"q".yaml',
    }
    assert len(revision.problems) == 3 and {p.reason for p in revision.problems} == {"NameRefused"}
    assert all(p.path.isprintable() for p in revision.problems)
    assert s.history("desired/-dash.yaml") == [(revision.sha, revision.files["desired/-dash.yaml"])]


def test_history_finds_earlier_versions_of_a_file(repo: Repo, tmp_path: Path) -> None:
    shas = [repo.commit({"desired/a.yaml": f"v{i}", "desired/b.yaml": "same"}) for i in range(3)]
    repo.commit({"desired/a.yaml": "z" * 2000})
    s = source(repo, tmp_path, limits=Limits(blob=1000))
    s.fetch()
    versions = s.history("desired/a.yaml", 10)
    assert [sha for sha, _ in versions] == shas[::-1]
    assert [s.read([blob])[blob] for _, blob in versions] == [b"v2", b"v1", b"v0"]
    assert len(s.history("desired/a.yaml", 2)) <= 2 and s.history("desired/none.yaml") == [] and s.history("../x") == []


def test_a_suspended_source_does_not_fetch_and_resumes(repo: Repo, tmp_path: Path) -> None:
    sha = repo.commit({"desired/a.yaml": "1"})
    first = source(repo, tmp_path).fetch().revision
    newer = repo.commit({"desired/a.yaml": "2"})
    suspended = source(repo, tmp_path, suspend=True)
    result = suspended.fetch()
    assert result.revision is not None and result.revision.sha == sha and reason(result, "Suspended") == "Suspended"
    assert suspended.fetch(first).revision is first
    resumed = source(repo, tmp_path).fetch(first)
    assert resumed.revision is not None and resumed.revision.sha == newer


@pytest.mark.parametrize("damage", ["head", "pack", "refs", "config", "everything"])
def test_a_damaged_mirror_is_cloned_again(repo: Repo, tmp_path: Path, damage: str) -> None:
    repo.commit({f"desired/f{i}.yaml": str(i) for i in range(30)})
    git(repo.bare, "gc", "-q")
    first = source(repo, tmp_path).fetch().revision
    (mirror,) = (tmp_path / "mirrors").glob("*.git")
    match damage:
        case "head":
            (mirror / "HEAD").write_bytes(b"\0garbage")
        case "pack":
            for pack in mirror.glob("objects/pack/*.pack"):
                pack.chmod(0o600)
                pack.write_bytes(b"garbage")
        case "refs":
            shutil.rmtree(mirror / "refs")
        case "config":
            (mirror / "config").write_text("[core\nbroken")
        case _:
            shutil.rmtree(mirror / "objects")
    sha = repo.commit({"desired/f1.yaml": "new"})
    s = source(repo, tmp_path)
    result = s.fetch(first)
    assert result.revision is not None and result.revision.sha == sha, result.conditions
    assert len(s.read(result.revision.files.values())) == 30


def test_a_blob_missing_from_the_mirror_is_an_error_and_the_next_fetch_repairs_it(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "content"})
    s = source(repo, tmp_path)
    first = s.fetch().revision
    assert first is not None
    (mirror,) = (tmp_path / "mirrors").glob("*.git")
    shutil.rmtree(mirror / "objects")
    (mirror / "objects").mkdir()
    with pytest.raises(SourceError):
        s.read(first.files.values())
    assert reason(s.fetch(first)) == "Succeeded"
    assert list(s.read(first.files.values()).values()) == [b"content"]


@pytest.mark.parametrize("blob", ["--help", "HEAD", "x\n" + "a" * 40, "a" * 39])
def test_only_blob_ids_can_be_read(repo: Repo, tmp_path: Path, blob: str) -> None:
    repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path)
    s.fetch()
    with pytest.raises(SourceError, match="not a blob id"):
        s.read([blob])


def test_leftovers_of_a_killed_process_are_removed(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1"})
    first = source(repo, tmp_path).fetch().revision
    (mirror,) = (tmp_path / "mirrors").glob("*.git")
    left = [
        mirror / "refs/belay/candidate.lock",
        mirror / "refs/belay/in-force.lock",
        mirror / "objects/pack/tmp_pack_x",
        mirror / "HEAD.lock",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    half = mirror.with_name(mirror.stem + ".new-1")
    half.mkdir()
    sha = repo.commit({"desired/a.yaml": "2"})
    result = source(repo, tmp_path).fetch(first)
    assert result.revision is not None and result.revision.sha == sha
    assert not half.exists() and not any(path.exists() for path in left)


_FETCHER = """
import sys
from pathlib import Path
from belay.engine.source import GitSource, SourceConfig
s = GitSource(SourceConfig(url=sys.argv[1]), Path(sys.argv[2]))
revision = None
for _ in range(int(sys.argv[3])):
    result = s.fetch(revision)
    assert result.revision is not None, result.conditions
    assert result.conditions[-1].status == "True", result.conditions
    revision = result.revision
    assert len(s.read(revision.files.values())) == len(set(revision.files.values()))
print(revision.sha)
"""


def test_processes_share_one_mirror(repo: Repo, tmp_path: Path) -> None:
    repo.commit({f"desired/f{i}.yaml": str(i) for i in range(20)})
    command = [sys.executable, "-c", _FETCHER, str(repo.bare), str(tmp_path / "mirrors"), "6"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    for number in range(4):
        repo.commit({"desired/f1.yaml": f"n{number}"})
    for child in children:
        _, err = child.communicate(timeout=60)
        assert child.returncode == 0, err.decode()
    assert len(list((tmp_path / "mirrors").glob("*.git"))) == 1


def test_a_process_killed_while_fetching_leaves_a_usable_mirror(repo: Repo, tmp_path: Path) -> None:
    repo.commit({f"desired/f{i}.yaml": os.urandom(20_000).hex() for i in range(60)})
    command = [sys.executable, "-c", _FETCHER, str(repo.bare), str(tmp_path / "mirrors"), "200"]
    for delay in (0.25, 0.3, 0.35, 0.45):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            child.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        repo.commit({"desired/f1.yaml": str(delay)})
    result = source(repo, tmp_path).fetch()
    assert result.revision is not None and result.revision.sha == repo.head()
    assert [p.suffix for p in (tmp_path / "mirrors").iterdir() if ".new-" in p.name] == []


def test_hooks_and_configuration_of_a_repository_never_run(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.commit({"desired/a.yaml": "1"})
    trap = tmp_path / "trap.sh"
    fired = tmp_path / "fired"
    trap.write_text(f"#!/bin/sh\ntouch {fired}\n")
    trap.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f"[core]\nfsmonitor={trap}\nhooksPath={tmp_path}\nsshCommand={trap}\n[gpg]\nprogram={trap}\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(trap))
    for name in ("reference-transaction", "post-checkout", "post-update"):
        shutil.copy(trap, tmp_path / name)
    git(repo.work, "config", "core.fsmonitor", str(trap))
    git(repo.work, "config", "gpg.program", str(trap))
    assert reason(source(repo, tmp_path).fetch()) == "Succeeded"
    assert reason(source(repo, tmp_path, url=repo.work).fetch()) == "Succeeded"
    assert not fired.exists()


@pytest.mark.parametrize(
    "url", ["ext::sh -c id", "http://host/x.git", "git://host/x", "", "-u", "ftp://x", "a\nb", "fd::17"]
)
def test_other_protocols_and_malformed_addresses_are_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"spec\.url"):
        SourceConfig(url=url)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("branch", {"branch": "../x"}),
        ("branch", {"branch": "-x"}),
        ("branch", {"branch": "a b"}),
        ("branch", {"branch": "refs/heads/x.lock"}),
        ("path", {"path": "../up"}),
        ("path", {"path": "/abs"}),
        ("interval", {"interval": 0.0}),
        ("interval", {"interval": float("nan")}),
        ("verify", {"verify_mode": "ssh"}),
        ("verify", {"verify_mode": "x509"}),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_field(field: str, options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=rf"spec\.{field}"):
        SourceConfig(url="https://host/x.git", **options)  # type: ignore[arg-type]


def test_signers_inside_the_repository_are_refused(repo: Repo) -> None:
    with pytest.raises(InputError, match="inside the repository"):
        SourceConfig(url=str(repo.work), verify_mode="ssh", allowed_signers=repo.work / "desired" / "signers")


def test_a_one_file_commit_in_ten_thousand_names_that_file_alone(repo: Repo, tmp_path: Path) -> None:
    repo.commit({f"desired/d{i % 50}/f{i}.yaml": f"n: {i}\n" for i in range(10_000)})
    s = source(repo, tmp_path)
    before = s.fetch().revision
    assert before is not None
    repo.commit({"desired/d1/f1.yaml": "changed: 1\n"})
    after = s.fetch(before).revision
    assert after is not None and after.changed == ("desired/d1/f1.yaml",) and len(after.files) == 10_000
    same = [path for path, blob in after.files.items() if before.files.get(path) == blob]
    assert len(same) == 9_999 and "desired/d1/f1.yaml" not in same


# who changed a file last


def ask_git(repo: Repo, path: str) -> tuple[str, str]:
    """The commit that git itself names for a file, and its author."""
    commit, _, author = git(repo.work, "log", "-1", "--format=%H %an <%ae>", "--", path).partition(" ")
    return commit, author


def as_said(result: FetchResult) -> dict[str, tuple[str, str]]:
    assert result.revision is not None
    return {path: (one.commit, one.author) for path, one in result.revision.last_changes.items()}


def test_each_file_has_the_commit_that_last_changed_it_and_its_author(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "1", "policies/c.yaml": "1", "desired/deep/d.yml": "1"})
    s = source(repo, tmp_path)
    first = s.fetch()
    assert set(as_said(first)) == {"desired/a.yaml", "desired/b.yaml", "policies/c.yaml", "desired/deep/d.yml"}

    # changed and changed back, within one fetch; a branch that a merge brings; a merge that itself resolves a conflict
    repo.commit({"desired/a.yaml": "2"}, message="away", push=False)
    repo.commit({"desired/a.yaml": "1"}, message="back", push=False)
    git(repo.work, "checkout", "-q", "-b", "side")
    repo.commit({"desired/b.yaml": "side", "policies/c.yaml": "side"}, message="side", push=False)
    git(repo.work, "checkout", "-q", "main")
    repo.commit({"policies/c.yaml": "main"}, message="main", push=False)
    conflict = subprocess.run(["git", "merge", "-q", "side"], cwd=repo.work, capture_output=True, check=False)
    assert conflict.returncode
    repo.commit({"policies/c.yaml": "both"}, message="merge")

    later = s.fetch(first.revision)
    wanted = {path: ask_git(repo, path) for path in as_said(first)}
    assert as_said(later) == wanted
    assert wanted["policies/c.yaml"][0] == repo.head() != wanted["desired/b.yaml"][0]
    # from scratch and step by step give the same
    fresh = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "elsewhere").fetch()
    assert as_said(fresh) == wanted


def test_a_change_has_the_reason_that_its_commit_gives(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "1"}, message="Begin")
    s = source(repo, tmp_path)
    first = s.fetch()
    words = "Scale x\n\nSigned-off-by: Ada <ada@example.org>\n\nThe paper\nis due.\x07\n\nMore of it."
    repo.commit({"desired/a.yaml": "2"}, message=words)
    repo.commit({"desired/c.yaml": "3"}, message=f"Long\n\n{'x' * 1000}")
    later = s.fetch(first.revision)
    assert later.revision is not None
    whys = {path: one.why for path, one in later.revision.last_changes.items()}
    assert (whys["desired/a.yaml"], whys["desired/b.yaml"]) == ("The paper is due. ", "")
    assert len(whys["desired/c.yaml"]) == 200
    fresh = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "elsewhere").fetch()
    assert fresh.revision is not None and fresh.revision.last_changes == later.revision.last_changes


def test_a_file_that_is_gone_has_the_commit_that_removed_it(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "1", "desired/c.yaml": "1"})
    s = source(repo, tmp_path)
    first = s.fetch()
    git(repo.work, "rm", "-q", "desired/b.yaml")
    git(repo.work, "mv", "desired/c.yaml", "desired/d.yaml")
    removed = repo.commit({}, message="gone")
    later = s.fetch(first.revision)
    author = "Ada <ada@example.org>"
    assert {path for path, (commit, _) in as_said(later).items() if commit == removed} == {
        "desired/b.yaml", "desired/c.yaml", "desired/d.yaml",
    }  # fmt: skip
    assert as_said(later)["desired/b.yaml"] == (removed, author)

    back = repo.commit({"desired/b.yaml": "2"})
    last = s.fetch(later.revision)
    assert as_said(last)["desired/b.yaml"] == (back, author) and as_said(last)["desired/c.yaml"] == (removed, author)
    fresh = GitSource(SourceConfig(url=str(repo.bare)), tmp_path / "elsewhere").fetch()
    assert as_said(fresh) == as_said(last)


def test_a_rewritten_branch_names_its_own_commits(repo: Repo, tmp_path: Path) -> None:
    first = repo.commit({"desired/a.yaml": "1"})
    s = source(repo, tmp_path)
    before = s.fetch()
    git(repo.work, "commit", "-q", "--amend", "--author", "Grace <grace@example.org>", "-m", "again")
    repo.push("--force")
    after = s.fetch(before.revision)
    assert as_said(before)["desired/a.yaml"] == (first, "Ada <ada@example.org>")
    assert as_said(after)["desired/a.yaml"] == (repo.head(), "Grace <grace@example.org>")


def test_uncommitted_files_have_no_last_change(repo: Repo, tmp_path: Path) -> None:
    repo.commit({"desired/a.yaml": "1", "desired/b.yaml": "1"})
    repo.write({"desired/b.yaml": "2", "desired/new.yaml": "1"})
    result = source(repo, tmp_path, url=repo.work).fetch()
    assert result.revision is not None and result.revision.sha.startswith("worktree-")
    assert set(as_said(result)) == {"desired/a.yaml"}
