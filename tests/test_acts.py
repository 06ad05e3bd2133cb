"""Acts that are commits: what they change in the text, what they refuse, and what reaches the remote."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from belay.engine.cli import main
from belay.engine.cli.acts import isolations, jobs, splices
from belay.engine.cli.acts.clone import Clone
from belay.engine.cli.acts.edits import RepositoryEdit
from belay.engine.cli.acts.targets import target
from belay.engine.cli.acts.ways_back import way_back
from belay.engine.errors import InputError
from belay.engine.load import load, load_directory
from belay.engine.model.times import rfc3339
from tests.golden.stories import sample_world
from tests.state_clone import ROOT, git, of_another, pushed, run, state_clone, take_back

TEXT = """# head
apiVersion: mindxdl.gitee.com/v1   # one
kind: AscendJob
metadata: {name: x, labels: {a: b}}
spec:
  runPolicy:
    schedulingPolicy: {minAvailable: 2}
  replicaSpecs:
    Master: &one
      replicas: 1
      template: {spec: {}}
    Worker:   # those that work
      replicas: "1"  # three
      list:
      - a
      -   y: 'q'   # yy

# end
---
kind: B
spec:
"""


def lines_changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines that went, and those that came."""
    import difflib

    rows = [row for row in difflib.ndiff(before.splitlines(), after.splitlines()) if row[0] in "+-"]
    return [row[2:] for row in rows if row[0] == "-"], [row[2:] for row in rows if row[0] == "+"]


@pytest.mark.parametrize(
    ("document", "path", "value", "gone", "come"),
    [
        (0, ("spec", "replicaSpecs", "Worker", "replicas"), 3, ['      replicas: "1"  # three'],
         ['      replicas: "3"  # three']),
        (0, ("spec", "runPolicy", "schedulingPolicy", "minAvailable"), 4, ["    schedulingPolicy: {minAvailable: 2}"],
         ["    schedulingPolicy: {minAvailable: 4}"]),
        (0, ("spec", "runPolicy", "schedulingPolicy", "priorityClass"), "high",
         ["    schedulingPolicy: {minAvailable: 2}"], ["    schedulingPolicy: {minAvailable: 2, priorityClass: high}"]),
        (0, ("metadata", "labels", "note"), "a, b: no", ["metadata: {name: x, labels: {a: b}}"],
         ["metadata: {name: x, labels: {a: b, note: 'a, b: no'}}"]),
        (0, ("spec", "replicaSpecs", "Worker", "list", 1, "z"), "no", [], ["          z: 'no'"]),
        (0, ("spec", "replicaSpecs", "Worker", "list", 1, "y"), "on", ["      -   y: 'q'   # yy"],
         ["      -   y: 'on'   # yy"]),
        (1, ("spec", "pol", "q"), True, [], ["  pol:", "    q: true"]),
        (1, ("spec",), "012", ["spec:"], ["spec: '012'"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_an_edit_changes_its_own_lines_only(
    document: int, path: tuple[Any, ...], value: Any, gone: list[str], come: list[str], newline: str
) -> None:
    text = TEXT.replace("\n", newline)
    edited = splices.with_value(text, document, path, value)
    assert lines_changed(text, edited) == (gone, come)
    assert edited.count("\r\n") in (0, edited.count("\n"))
    assert edited.endswith(newline)


def test_keys_items_and_documents_go_with_their_lines_only() -> None:
    assert lines_changed(TEXT, splices.without(TEXT, 0, ("metadata", "labels")))[1] == ["metadata: {name: x}"]
    assert lines_changed(TEXT, splices.without(TEXT, 0, ("spec", "replicaSpecs", "Worker", "list", 0))) == (
        ["      - a"],
        [],
    )
    assert splices.without_document(TEXT, 0) == "# head\nkind: B\nspec:\n"
    assert splices.without_document(TEXT, 1) == TEXT.partition("---\n")[0]
    assert splices.with_document(TEXT, "kind: C\n") == TEXT + "---\nkind: C\n"
    assert splices.with_document("# words only", "kind: C\n") == "# words only\nkind: C\n"


def test_what_a_splice_could_break_is_refused_with_its_line() -> None:
    shared = "a: &x {n: 1}\nb: *x\nc:\n  <<: *x\nd: &y 2\ne: *y\n"
    for path in (("b", "n"), ("a", "n"), ("d",), ("e",)):
        with pytest.raises(InputError, match="by hand"):
            splices.with_value(shared, 0, path, 5)
    assert splices.with_value(shared, 0, ("c", "m"), 5) == shared.replace("c:\n  <<: *x\n", "c:\n  <<: *x\n  m: 5\n")
    with pytest.raises(InputError, match="did not find expected node content"):
        splices.with_value("a: [", 0, ("a",), 1)


def places(body: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all scalars and mappings of a document."""
    if isinstance(body, dict):
        yield path
        for key, value in body.items():
            if isinstance(key, str):
                yield from places(value, (*path, key))
    elif isinstance(body, list):
        for index, value in enumerate(body):
            yield from places(value, (*path, index))
    elif path and isinstance(body, (str, int)):
        yield path


SHAPES = sorted(
    path
    for room in ("desired", "deploy/base", "deploy/samples", "deploy/overlays", "policies")
    for path in (ROOT / room).rglob("*.yaml")
    if path.stat().st_size < 20_000
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_of_every_document_of_this_repository_no_other_line_changes(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(SHAPES)).read_text()
    text = data.draw(st.sampled_from([text, text.replace("\n", "\r\n"), text.rstrip("\n")]))
    found = splices.bodies(text)
    if not found:
        return
    number = data.draw(st.integers(0, len(found) - 1))
    path = data.draw(st.sampled_from(sorted(places(found[number]), key=str)))
    body = found[number]
    for part in path:
        body = body[part]
    if isinstance(body, dict):
        path = (*path, "belay-test")
    value = data.draw(st.sampled_from([7, "plain", "no", "a: b # c", "[x", "it's", True]))
    try:
        edited = splices.with_value(text, number, path, value)
    except InputError as error:
        assert "by hand" in str(error)
        return
    gone, come = lines_changed(text, edited)
    assert (len(gone) <= 1 and 1 <= len(come) <= 2) or (gone, come) == ([], [])
    if isinstance(body, dict) and len(body) > 1:
        assert splices.without(edited, number, path) == text or text.endswith((" ", "\t")) or not text.endswith("\n")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a state repository whose remote takes pushes."""
    return state_clone(tmp_path)


def test_an_isolation_is_pushed_with_its_reason_and_taken_back(clone: Path) -> None:
    begin = git(clone, "rev-parse", "HEAD^{tree}")
    done = run(clone, "isolate", "node-3/4-5", "--reason", "ECC, again", "--until", "36h", "--why", "Ticket 4711.")
    assert done.exit_code == 0, done.output
    assert re.match(r"[0-9a-f]{40} Ada Isolate node-3/4,5 until \S+Z\nTicket 4711\.", pushed(clone))
    (document,) = load(load_directory(clone)).desired.isolations
    assert document.document.spec.reason == "ECC, again" and document.document.spec.chips[0].chips == (4, 5)
    take_back(clone, done)
    assert git(clone, "rev-parse", "HEAD^{tree}") == begin, "byte for byte as before"
    assert git(clone, "status", "--porcelain") == ""


def test_the_way_back_means_the_same_of_several_state_repositories_of_a_clone(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = clone / "lab/desired/jobs"
    jobs.mkdir(parents=True)
    for state, here, named in (
        (clone, clone / "desired/jobs", False), (clone, jobs, True), (clone / "lab", jobs, False),
        (clone / "lab", clone, True), (clone, clone.parent, True),
    ):  # fmt: skip
        monkeypatch.chdir(here)
        edit = RepositoryEdit({}, "Isolate node-1", ("belay release node-1",), revert=True)
        back = way_back(edit, "0a1b2c3d4e5f", pushed=False, clone=Clone(str(state)))
        repo, tree = (f" --repo {state}", f" -C {state}") if named else ("", "")
        assert back == f"belay release node-1{repo} && git{tree} revert --no-edit 0a1b2c3d4e5f", (state, here)


def test_a_broken_document_beside_it_does_not_end_an_act_in_a_traceback() -> None:
    head = "apiVersion: belay.dev/v1alpha1\nkind: Isolation\nmetadata: {name: a}\n"
    broken = {
        f"desired/{n}.yaml": (head + spec).encode() for n, spec in enumerate(("spec: [1]\n", "spec: {chips: 5}\n"))
    }
    broken["desired/2.yaml"] = b"kind: AscendJob\nmetadata: [1]\n"
    assert set(isolations.isolate(broken, [target("n1/3")], "fan", None).files) == {"desired/isolations/n1-3.yaml"}
    with pytest.raises(InputError, match="declares no job"):
        jobs.scale(broken, "n1", 3)

    unread = {"desired/a.yaml": (head + "spec: {chips: [5, {node: n1, chips: zz}], reason: x}\n").encode()}
    with pytest.raises(InputError, match="cannot be read: 'zz' names no chips"):
        isolations.release(unread, [target("n1/3")], 0)


def test_what_is_released_is_isolated_again_with_all_its_reasons_and_ends(clone: Path) -> None:
    for words in (("node-3/4-5", "--reason", "ECC, it's bad", "--until", "2099-12-24T18:00:00Z"),
                  ("node-1", "--reason", "fan"), ("node-2", "--reason", "fan")):  # fmt: skip
        assert run(clone, "isolate", *words).exit_code == 0
    done = run(clone, "release", "node-3/4-5", "node-1", "node-2", "--no-push")
    assert done.exit_code == 0 and load(load_directory(clone)).desired.isolations == ()
    take_back(clone, done)
    specs = [one.document.spec for one in load(load_directory(clone)).desired.isolations]
    assert sorted((spec.reason, spec.nodes) for spec in specs) == [("ECC, it's bad", ()), ("fan", ("node-1", "node-2"))]
    assert [rfc3339(spec.until) for spec in specs if spec.until] == ["2099-12-24T18:00:00Z"]


def test_an_isolation_that_no_command_makes_again_comes_back_by_reverting(clone: Path) -> None:
    file = clone / "desired/isolations.yaml"
    twice = "".join(
        f"---\napiVersion: belay.dev/v1alpha1\nkind: Isolation\nmetadata: {{name: {name}}}\n"
        f"spec: {{nodes: [node-1], reason: {name}}}\n" for name in ("fan", "optics")
    )  # fmt: skip
    file.write_text(file.read_text() + twice)
    git(clone, "commit", "-qam", "Isolate twice")
    before = git(clone, "rev-parse", "HEAD^{tree}")
    done = run(clone, "release", "node-1")
    assert done.exit_code == 0, done.output
    # the branch has moved on: just this act is undone
    (clone / "note").write_text("later")
    git(clone, "add", "note")
    git(clone, "commit", "-qm", "Note")
    take_back(clone, done)
    git(clone, "rm", "-q", "note")
    git(clone, "commit", "-qm", "No note")
    assert git(clone, "rev-parse", "HEAD^{tree}") == before
    assert "Revert" in pushed(clone), "the line pushes, too"


def test_a_drained_node_is_an_isolation_of_the_whole_node(clone: Path) -> None:
    assert run(clone, "drain", "node-1", "node-2").exit_code == 0
    (document,) = load(load_directory(clone)).desired.isolations
    assert document.document.spec.nodes == ("node-1", "node-2") and document.document.spec.reason == "maintenance"
    assert run(clone, "release", "node-1").exit_code == 0
    (document,) = load(load_directory(clone)).desired.isolations
    assert document.document.spec.nodes == ("node-2",)
    assert run(clone, "release", "node-2").exit_code == 0
    assert load(load_directory(clone)).desired.isolations == ()
    assert "chips are isolated" in run(clone, "drain", "node-1/3").output


def test_a_job_is_scaled_and_still_starts_together(clone: Path) -> None:
    before = (clone / "desired/jobs/pretrain.yaml").read_text()
    done = run(clone, "scale", "pretrain", "3")
    assert done.exit_code == 0 and "belay scale default/pretrain 1" in done.output
    after = (clone / "desired/jobs/pretrain.yaml").read_text()
    assert lines_changed(before, after) == (
        ["      minAvailable: 2", "      replicas: 1"],
        ["      minAvailable: 4", "      replicas: 3"],
    )
    assert run(clone, "priority", "default/pretrain", "high").exit_code == 0
    assert "      priorityClass: high\n" in (clone / "desired/jobs/pretrain.yaml").read_text()
    assert run(clone, "suspend", "training").exit_code == 0
    assert "suspended already" in run(clone, "suspend", "training").output
    assert run(clone, "rollback").exit_code == 0
    assert "suspend" not in (clone / "desired/pools/training.yaml").read_text()
    first = git(clone, "rev-list", "--max-parents=0", "HEAD")
    assert run(clone, "rollback", first[:10]).exit_code == 0
    assert git(clone, "rev-parse", "HEAD^{tree}") == git(clone, "rev-parse", f"{first}^{{tree}}")
    assert len(git(clone, "rev-list", "HEAD").split()) == 6, "history stays"


def test_a_confirmation_is_a_trailer_and_changes_no_file(clone: Path) -> None:
    tree, digest = git(clone, "rev-parse", "HEAD^{tree}"), "0123456789abcdef" * 2
    assert run(clone, "confirm", digest, "--why", "They are done.").exit_code == 0
    assert git(clone, "log", "-1", "--format=%(trailers:key=Belay-Confirm,valueonly)") == digest
    assert git(clone, "rev-parse", "HEAD^{tree}") == tree
    assert run(clone, "confirm", "all").exit_code == 2


def test_a_dry_run_writes_nothing(clone: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    done = run(clone, "scale", "pretrain", "3", "--dry-run")
    assert done.exit_code == 0 and "+      replicas: 3" in done.output and "not committed" in done.output
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain")) == (head, "")


def test_a_lost_race_is_made_again_on_top_and_other_changes_stay(clone: Path) -> None:
    other = of_another(clone)
    assert run(other, "priority", "pretrain", "high").exit_code == 0
    theirs = git(other, "rev-parse", "HEAD")
    (clone / "desired/README.md").write_text("my own words\n")
    done = run(clone, "policy", "edit", "training", "--mode", "shadow")
    assert done.exit_code == 0
    ours = git(clone, "rev-parse", "HEAD")
    assert f"others pushed first; the commit is now {ours[:12]}, on top of:" in done.output
    subject = "Set the priority of AscendJob default/pretrain to high"
    assert f"  {theirs[:12]} Bob: {subject} (desired/jobs/pretrain.yaml)" in done.output
    assert f"revert --no-edit {ours[:12]} && git -C " in done.output, "the commit as it was pushed is named"
    authors = git(other.parent / "remote.git", "log", "--format=%an", "main").splitlines()
    assert authors == [
        "Ada", "Bob", "Ada",
    ]  # fmt: skip
    assert git(clone, "status", "--porcelain") == "M desired/README.md", "what was changed by hand is not committed"
    # both change the same line: nothing is forced, and the way out is named
    assert run(other, "scale", "pretrain", "5", "--no-push").exit_code == 0
    assert run(clone, "scale", "pretrain", "7").exit_code == 0
    git(other, "config", "pull.rebase", "true")
    done = run(other, "priority", "pretrain", "low")
    assert done.exit_code == 2 and "others changed the same lines" in done.output
    assert "Ada Scale AscendJob default/pretrain from 1 to 7" in pushed(clone)
    # the way out that it names keeps what the person has changed and not committed
    (other / "desired/README.md").write_text("words of Bob\n")
    (way_out,) = re.findall(r"git (reset [^,]+), then git pull --rebase, and give the command again", done.output)
    git(other, *way_out.split())
    # nor a commit that was not pushed; here it is what the others' change collides with
    assert "default/pretrain" in git(other, "log", "-1", "--format=%s") and "to 5" in git(other, "log", "-1")
    git(other, "reset", "--keep", "@{upstream}")
    assert (other / "desired/README.md").read_text() == "words of Bob\n"
    assert run(other, "priority", "pretrain", "low").exit_code == 0


def test_what_became_an_error_on_top_of_others_is_not_pushed(clone: Path) -> None:
    other = of_another(clone)
    (other / "desired/by-hand.yaml").write_text(
        "apiVersion: belay.dev/v1alpha1\nkind: Isolation\nmetadata: {name: node-2}\n"
        "spec: {nodes: [node-2], reason: fan}\n"
    )
    git(other, "add", "--all")
    git(other, "commit", "-qm", "Isolate by hand")
    git(other, "push", "-q")
    done = run(clone, "isolate", "node-2", "--reason", "optics")
    assert done.exit_code == 2 and "on top of what others pushed: " in done.output, done.output
    assert "so the commit was not pushed" in done.output and "Bob: Isolate by hand" in done.output
    assert "Isolate by hand" in pushed(clone)
    assert "The commit is dropped" in done.output and "take it back" not in done.output
    assert git(clone, "rev-parse", "HEAD") == git(other, "rev-parse", "HEAD")


def test_a_plan_that_others_made_another_is_shown_again(clone: Path, tmp_path: Path) -> None:
    other = of_another(clone)
    assert run(other, "suspend", "training").exit_code == 0
    world = sample_world()
    world.until_quiet()
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(world.objects.values())}))
    done = run(clone, "scale", "pretrain", "2", "--cluster", str(file))
    assert done.exit_code == 0, done.output
    before, between, after = done.output.partition("what it does on top of theirs is different:\n")
    assert between and "Bob: Suspend NodePool training" in before
    (first,) = re.findall(r"^plan: .*$", before, re.MULTILINE)
    (second,) = re.findall(r"^plan: .*$", after, re.MULTILINE)
    assert first != second


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("scale", "pretrane", "3"), "Did you mean pretrain?"),
        (("scale", "pretrain", "3", "--task", "x"), "only jobs of Volcano's have tasks"),
        (("release", "node-9"), "no Isolation of this repository names it"),
        (("isolate", "node-3/x", "--reason", "r"), "Write NODE, NODE/4"),
        (("isolate", "node-3/99", "--reason", "r"), "a node has chips 0 to 63"),
        (("isolate", "node-3", "--reason", "r", "--until", "2020-01-01T00:00:00Z"), "this time has gone by"),
        (("isolate", "node-3", "--reason", "r", "--until", "soon"), "--until"),
        (("rollback", "nowhere"), "there is no such commit here"),
        (("rollback", "--repo"), "requires an argument"),
    ],
)
def test_a_wrong_word_is_named_and_nothing_is_written(clone: Path, words: tuple[str, ...], says: str) -> None:
    done = CliRunner().invoke(main, ["--help"]) if not words else (
        CliRunner().invoke(main, list(words)) if words[-1] == "--repo" else run(clone, *words)
    )  # fmt: skip
    assert done.exit_code == 2 and says in done.output, done.output
    assert git(clone, "status", "--porcelain") == ""


def test_a_folder_that_is_no_state_repository_is_named(tmp_path: Path) -> None:
    assert "no clone of a Git repository" in run(tmp_path, "drain", "node-1").output
    git(tmp_path, "init", "-q")
    assert "neither desired/ nor policies/" in run(tmp_path, "drain", "node-1").output


def test_a_file_with_changes_of_the_persons_own_is_left_alone(clone: Path) -> None:
    file = clone / "desired/jobs/pretrain.yaml"
    file.write_text(file.read_text() + "# mine\n")
    done = run(clone, "scale", "pretrain", "3")
    assert done.exit_code == 2 and "uncommitted changes" in done.output
    assert file.read_text().endswith("# mine\n")


def test_a_person_that_git_does_not_know_hears_it_before_the_plan(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL", "EMAIL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "new"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    git(clone, "config", "--unset", "user.name")
    git(clone, "config", "--unset", "user.email")
    git(clone, "config", "user.useConfigOnly", "true")  # Git would make an author from a machine's full name
    done = run(clone, "scale", "pretrain", "3")
    assert done.exit_code == 2 and "git config --global user.email" in done.output, done.output
    assert "[NoAuthor]" in done.output and "+++" not in done.output
    assert git(clone, "status", "--porcelain") == ""


def test_an_edit_that_would_be_refused_is_not_committed(clone: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    done = run(clone, "isolate", "No/3", "--reason", "r")
    assert done.exit_code == 2 and "Nothing was written" in done.output
    assert git(clone, "rev-parse", "HEAD") == head


def test_a_task_of_volcanos_is_named_where_there_are_several() -> None:
    files = {"desired/v.yaml": b"apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\nspec:\n"
             b"  tasks:\n    - name: a\n      replicas: 1\n    - {name: b, replicas: 2}\n"}  # fmt: skip
    assert jobs.scale(files, "v", 4, "b").files["desired/v.yaml"].endswith(b"- {name: b, replicas: 4}\n")  # type: ignore[union-attr]
    with pytest.raises(InputError, match="its tasks are a, b"):
        jobs.scale(files, "v", 4)


AN_ASCEND_JOB = b"""apiVersion: mindxdl.gitee.com/v1
kind: AscendJob
metadata: {name: x}
spec:
  runPolicy: {schedulingPolicy: {minAvailable: 3, priorityClass: low}}
  replicaSpecs:
    Master: {replicas: 1}
    Worker: {replicas: 4}
"""
NAMESAKES = b"""apiVersion: belay.dev/v1alpha1
kind: NodePool
metadata: {name: x}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec: {replicas: 2, template: {spec: {priorityClassName: low}}}
"""


def test_the_way_back_names_a_document_so_that_no_namesake_is_meant() -> None:
    files = {"desired/job.yaml": AN_ASCEND_JOB}
    assert jobs.prioritise(files, "x", "high").undo == ("belay priority default/x low",), "short where that is enough"
    files["desired/others.yaml"] = NAMESAKES
    acts = (
        (jobs.suspend(files, "NodePool/x", True), "belay resume NodePool/x"),
        (jobs.scale(files, "Deployment/default/x", 5), "belay scale Deployment/default/x 2"),
        (jobs.prioritise(files, "AscendJob/default/x", "high"), "belay priority AscendJob/default/x low"),
    )
    for edit, back in acts:
        assert edit.undo == (back,)
        assert not edit.reverted
    suspended = {path: data for path, data in {**files, **acts[0][0].files}.items() if data is not None}
    resumed = jobs.suspend(suspended, "NodePool/x", False).files
    assert b"suspend: false" in (resumed["desired/others.yaml"] or b""), "the name in the way back is understood"


def test_a_minimum_that_scaling_back_would_raise_is_brought_back_by_reverting() -> None:
    """Three of five pods suffice; of the three that are left all are needed, and that looks like a job that starts
    together."""
    files = {"desired/job.yaml": AN_ASCEND_JOB}
    assert jobs.scale(files, "x", 2).reverted
    assert jobs.scale(files, "x", 3).undo == ("belay scale default/x 4",)

    text = AN_ASCEND_JOB.replace(b"minAvailable: 3, ", b"").replace(b"    Master: {replicas: 1}\n", b"")
    none = jobs.scale({"desired/job.yaml": text}, "x", 0)
    again = jobs.scale({"desired/job.yaml": none.files["desired/job.yaml"] or b""}, "x", 4)
    assert again.files["desired/job.yaml"] == text, "a minimum that was not given is not made up"
