"""`belay review`: what a change does, said on its pull request."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from belay.engine import cli
from belay.engine.cli.forecast import Eviction, JobOutcome
from belay.engine.cli.forge_calls import ATTEMPTS, GITEA, GITHUB, GITLAB, ForgeError, checked_address
from belay.engine.cli.review import base, ci
from belay.engine.cli.review.base import tree_at
from belay.engine.cli.review.ci import ReviewRequest
from belay.engine.cli.review.comment import LIMIT, code, comment, marker
from belay.engine.cli.review.comparison import Finding, HardwareChange, JobChange, Review
from belay.engine.cli.review.forges import Posted, post
from belay.engine.errors import InputError
from belay.engine.model.times import rfc3339
from tests.forge_server import NUMBER, PROJECT, TOKEN, ForgeServer, serving
from tests.golden.stories import sample_world

ROOT = Path(__file__).parent.parent
FORGES = (GITHUB, GITLAB, GITEA)
CI = ("GITHUB_", "GITLAB_", "GITEA_", "CI_", "FORGEJO_", "BELAY_REVIEW")
FIRST = marker("default")


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(CI):
            monkeypatch.delenv(name)


# the calls


@pytest.fixture(params=FORGES)
def forge(request: pytest.FixtureRequest) -> Iterator[ForgeServer]:
    with serving(ForgeServer(request.param)) as server:
        yield server


@pytest.fixture
def github() -> Iterator[ForgeServer]:
    with serving(ForgeServer(GITHUB)) as server:
        yield server


def posted(server: ForgeServer, text: str, *, token: str = TOKEN, waits: list[float] | None = None) -> Posted:
    async def sleep(seconds: float) -> None:
        (waits if waits is not None else []).append(seconds)

    request = ReviewRequest(server.forge, f"{server.address}{server.prefix}", PROJECT[server.forge], NUMBER)
    return asyncio.run(post(request, token, text, now=lambda: 1_788_000_000.0, sleep=sleep))


def bodies(server: ForgeServer) -> list[str]:
    return [one["body"] for one in server.comments]


def test_a_comment_is_made_once_and_then_updated(forge: ForgeServer) -> None:
    forge.add("looks good", "ada")
    assert not posted(forge, f"{FIRST}\nfirst").updated
    assert posted(forge, f"{FIRST}\nsecond").updated
    assert bodies(forge) == ["looks good", f"{FIRST}\nsecond"]
    before = len(forge.seen)
    assert posted(forge, f"{FIRST}\nsecond").updated
    assert [call.split()[0] for call in forge.seen[before:]] == ["GET", "GET"], "the same text is not sent again"
    posted(forge, f"{marker('other-cluster')}\nthird")
    assert len(forge.comments) == 3


#: GitLab's own schema of a note, spec/fixtures/api/schemas/public_api/v4/notes.json: what each has, and may have.
NOTE = {"id", "body", "attachment", "author", "created_at", "updated_at", "system", "noteable_id", "noteable_type"}
NOTE_MAY = NOTE | {"type", "commands_changes", "noteable_iid", "resolved", "resolvable", "resolved_by", "resolved_at",
                   "confidential", "internal"}  # fmt: skip
AUTHOR = {"id", "name", "username", "state", "avatar_url", "web_url"}


def test_notes_of_the_stand_in_are_those_of_gitlabs_schema() -> None:
    note = ForgeServer(GITLAB).add("text", "ada")
    assert note.keys() >= NOTE and note.keys() <= NOTE_MAY
    assert note["author"].keys() == AUTHOR


def test_an_answer_as_older_servers_give_it_is_understood(github: ForgeServer) -> None:
    # as api.github.com gave it when it was recorded, and old Enterprise servers may: no html_url
    old = github.add(f"{FIRST}\r\nbefore", github.own)
    for name in ("html_url", "issue_url"):
        del old[name]
    made = posted(github, f"{FIRST}\nafter")
    assert made.updated and made.address == old["url"]


def test_comments_of_other_people_and_of_the_system_are_left_alone(forge: ForgeServer) -> None:
    forge.add(f"{FIRST}\nforged, to be edited later", "mallory")
    if forge.forge == GITLAB:
        forge.add(f"{FIRST}\nchanged the title", forge.own, system=True)
    count = len(forge.comments)
    assert not posted(forge, f"{FIRST}\nreal").updated
    assert bodies(forge)[0].endswith("forged, to be edited later")
    assert bodies(forge)[count:] == [f"{FIRST}\nreal"]


def test_the_own_comment_is_found_on_a_later_page(forge: ForgeServer) -> None:
    for number in range(230):
        forge.add(f"comment {number}", "ada")
    forge.add(f"{FIRST}\r\nof a browser", forge.own)
    forge.add("one more", "ada")
    assert posted(forge, f"{FIRST}\nnew").updated
    assert bodies(forge)[230] == f"{FIRST}\nnew"


@pytest.mark.parametrize(("kind", "own"), [(GITHUB, "github-actions[bot]"), (GITEA, "gitea-actions")])
def test_a_token_of_the_job_itself_may_not_ask_who_it_is(kind: str, own: str) -> None:
    with serving(ForgeServer(kind, own)) as server:
        server.knows_users = False
        assert not posted(server, f"{FIRST}\none").updated
        assert posted(server, f"{FIRST}\ntwo").updated
        assert bodies(server) == [f"{FIRST}\ntwo"]


@pytest.mark.parametrize("fault", ["made and cut", "made and failed"])
def test_a_comment_whose_answer_was_lost_is_not_made_twice(forge: ForgeServer, fault: str) -> None:
    waits: list[float] = []
    server_answer = forge.answer
    lost = [True]

    async def answer(request: Any) -> Any:
        if request.method == "POST" and lost.pop() if lost else False:
            forge.faults.append(fault)
        return await server_answer(request)

    forge.answer = answer  # type: ignore[method-assign]
    with serving(forge):
        assert posted(forge, f"{FIRST}\nonce", waits=waits).updated
    assert bodies(forge) == [f"{FIRST}\nonce"]
    assert waits == [1.0]


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        ((429, {"Retry-After": "7"}), 7.0),
        ((403, {"Retry-After": "60"}), 60.0),
        ((403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1788000010"}), 11.0),
        ((403, {"X-RateLimit-Remaining": "0"}), 1.0),
        ((429, {"RateLimit-Reset": "1788000020"}), 21.0),
        ((503, {"Retry-After": "Mon, 31 Aug 2026 00:00:00 GMT"}), None),
        ((502, {}), 1.0),
        ((429, {"Retry-After": "soon"}), 1.0),
    ],
)
def test_limits_and_failures_are_waited_for(github: ForgeServer, fault: Any, wait: float | None) -> None:
    waits: list[float] = []
    github.faults = [fault]
    if wait is None:  # beyond what is waited for
        with pytest.raises(ForgeError, match="its limit of calls ends in"):
            posted(github, f"{FIRST}\none", waits=waits)
        return
    posted(github, f"{FIRST}\none", waits=waits)
    assert waits == [wait]
    assert bodies(github) == [f"{FIRST}\none"]


def test_a_forge_that_stays_away_is_given_up(forge: ForgeServer) -> None:
    waits: list[float] = []
    forge.faults = [(500, {})] * 50
    with pytest.raises(ForgeError, match=f"HTTP 500, {ATTEMPTS} times"):
        posted(forge, f"{FIRST}\none", waits=waits)
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert forge.comments == []


def test_a_token_that_may_not_write_is_said_with_the_way_out(forge: ForgeServer) -> None:
    forge.may_write = False
    with pytest.raises(ForgeError, match=r"HTTP 403: .*forks.*docs/review\.md"):
        posted(forge, f"{FIRST}\none")


@pytest.mark.parametrize("fault", [(404, {}), (301, {"Location": f"https://elsewhere.example/{TOKEN}"}), (418, {})])
def test_no_refusal_shows_the_token_or_follows_a_redirect(forge: ForgeServer, fault: Any) -> None:
    forge.faults = [(200, {}), fault, fault]
    with pytest.raises(ForgeError) as refused:
        posted(forge, f"{FIRST}\none")
    assert TOKEN not in str(refused.value) + repr(refused.value)


def test_a_wrong_token_is_said(forge: ForgeServer) -> None:
    with pytest.raises(ForgeError, match="HTTP 401"):
        posted(forge, f"{FIRST}\none", token="other-token-0123456789")


# where it runs


def test_the_event_names_the_pull_request_where_the_ref_does_not(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    env = {
        "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "ops/state", "GITHUB_API_URL": "https://api.github.com",
        "GITHUB_REF": "refs/heads/main", "GITHUB_EVENT_PATH": str(event),
    }  # fmt: skip
    for body in ({"number": 7, "pull_request": {"number": 7}}, {"issue": {"number": 7}}):
        event.write_text(json.dumps(body))
        assert ci.request(env) == (GITHUB, "https://api.github.com", "ops/state", 7)
    for text in ('{"ref": "refs/heads/main"}', "[]", "{" * 10_000, "", '{"number": "x"}'):
        event.write_text(text)
        with pytest.raises(InputError, match="GITHUB_EVENT_PATH"):
            ci.request(env)


@pytest.mark.parametrize(
    ("env", "match"),
    [
        ({}, "no CI of GitHub, GitLab or Gitea"),
        ({"GITLAB_CI": "true"}, "of no merge request"),
        ({"GITLAB_CI": "true", "CI_MERGE_REQUEST_IID": "4/../5", "CI_PROJECT_ID": "1"}, "cannot be used"),
        ({"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "a/b/../../x"}, "cannot be used"),
    ],
)
def test_a_run_that_is_of_no_request_says_why(env: dict[str, str], match: str) -> None:
    with pytest.raises(InputError, match=match):
        ci.request(env)


def test_a_token_is_sent_by_https_only_unless_allowed() -> None:
    for good in ("https://git.example.com/api/v1/", "http://127.0.0.1:3000/api/v1"):
        assert checked_address(good, plain=False) == good.rstrip("/")
    with pytest.raises(InputError, match="is not https"):
        checked_address("http://git.example.com/api/v1", plain=False)
    assert checked_address("http://git.example.com/api/v1", plain=True)
    for bad in ("", "file:///etc", "https://user:secret@git.example.com"):
        with pytest.raises(InputError):
            checked_address(bad, plain=True)


def test_a_token_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(InputError, match=r"\$GITLAB_TOKEN") as missing:
        ci.token({}, GITLAB)
    assert "scope api" in str(missing.value)
    with pytest.raises(InputError) as odd:
        ci.token({"GITHUB_TOKEN": "line\nX-Other: 1"}, GITHUB)
    assert "X-Other" not in str(odd.value)
    assert ci.token({"GITHUB_TOKEN": "a", "BELAY_REVIEW_TOKEN": "b\n"}, GITHUB) == "b"


# the text

HOSTILE = "a`|\n\r<script>@everyone #1 ![x](http://e) \u202e\u200b\x1b[31m\\|` </details> /close --> \ud800"


def test_hostile_names_stay_text_of_one_cell() -> None:
    shown = code(HOSTILE)
    assert re.fullmatch(r"`[^`|\\\n\r\x1b\u202e\u200b]+`", shown), shown
    lost = Eviction(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 8, 1.0, HOSTILE, HOSTILE, 2.0)
    job = JobOutcome("Job", HOSTILE, HOSTILE, "waiting", None, {HOSTILE: [HOSTILE]}, HOSTILE, HOSTILE, HOSTILE)
    review = Review(
        (Finding("error", HOSTILE, HOSTILE, HOSTILE, True),),
        0,
        (JobChange("Job", HOSTILE, HOSTILE, job, None), JobChange("Job", HOSTILE, "x", None, job)),
        hardware=(HardwareChange("ResetChips", HOSTILE, (HOSTILE,), HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        evicted=(lost,),
        planned=True,
        against=HOSTILE,
        notes=(HOSTILE,),
    )
    text = comment(review)
    text.encode()
    outside = re.sub(r"`[^`\n]*`", "", text)
    assert not re.search(r"script|everyone|#1 |/close|http:", outside), outside
    assert outside.count("<details") == outside.count("</details>") == 5
    columns = 0
    for line in text.splitlines():
        bars = line.count("|") if line.startswith("|") else 0
        assert bars in (0, columns) or columns == 0, "no name adds a cell"
        columns = bars


def test_a_long_review_keeps_within_what_forges_take() -> None:
    waiting = JobOutcome("AscendJob", "team", "j", "waiting", None, {}, "NoChips", "界" * 400)
    jobs = tuple(JobChange("AscendJob", "team", f"{'j' * 200}-{n}", waiting, None) for n in range(5_000))
    text = comment(Review((), 0, jobs, planned=True))
    assert len(text.encode()) <= LIMIT
    assert "5000 jobs left waiting" in text
    found = re.search(r"… and (\d+) more", text)
    assert found and int(found[1]) + text.count("| `AscendJob team/") == 5_000


# the whole


@pytest.fixture(scope="module")
def items() -> list[dict[str, Any]]:
    """The sample cluster, its jobs running for an hour."""
    world = sample_world()
    world.until_quiet()
    for item in world.objects.values():
        if item["kind"] == "Pod":
            item["status"]["startTime"] = rfc3339(world.now - 3600)
    return list(world.objects.values())


@pytest.fixture
def cluster(items: list[dict[str, Any]], tmp_path: Path) -> str:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(file)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A clone of the sample repository whose branch changes something."""
    folder = tmp_path / "state"
    shutil.copytree(ROOT / "desired", folder / "desired")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    return folder


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def belay(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli.main, ["review", *words], env=env)


def grown(state: Path) -> None:
    """A job becomes larger than the cluster, another one goes, and one document is wrong."""
    file = state / "desired" / "jobs" / "pretrain.yaml"
    documents = list(yaml.safe_load_all(file.read_text()))
    for one in documents:
        if one["kind"] == "AscendJob":
            one["spec"]["replicaSpecs"]["Worker"]["replicas"] = 400
    file.write_text(yaml.safe_dump_all(documents))
    (state / "desired" / "odd.yaml").write_text("apiVersion: belay.dev/v1alpha1\nkind: NodePool\nspec: {}\n")


def test_a_review_says_what_the_change_does_and_nothing_of_what_was_so_before(state: Path, cluster: str) -> None:
    same = belay("--desired", str(state), "--base", "origin/main", "--cluster", cluster)
    assert same.exit_code == 0, same.output
    assert "### Belay: no job, node or chip changes" in same.stdout

    grown(state)
    result = belay("--desired", str(state), "--base", "origin/main", "--cluster", cluster, "-o", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert {(one["severity"], one["new"]) for one in found["findings"] if "odd.yaml" in one["place"]} == {
        ("error", True)
    }
    waits = [one for one in found["jobs"] if one["after"] and one["after"]["outcome"] == "waiting"]
    assert [one["name"] for one in waits] == ["pretrain"]

    text = belay("--desired", str(state), "--base", "origin/main", "--cluster", cluster).stdout
    assert text.startswith(FIRST)
    assert "1 job left waiting" in text
    assert "<details open><summary><b>Findings</b> (2)</summary>" in text
    assert "desired/odd.yaml:" in text


def test_what_becomes_of_nodes_and_chips_is_a_table(state: Path, cluster: str) -> None:
    isolation = "apiVersion: belay.dev/v1alpha1\nkind: Isolation\nmetadata: {name: %s}\nspec: {%s, reason: fan}\n"
    chips = isolation % ("chips", "chips: [{node: node-2, chips: [4, 5, 6]}]")
    nodes = isolation % ("nodes", "nodes: [node-3, node-4, node-5]")
    (state / "desired" / "fans.yaml").write_text(f"{chips}---\n{nodes}")
    text = belay("--desired", str(state), "--base", "origin/main", "--cluster", cluster).stdout
    assert "3 nodes isolated (1 held back), 3 chips isolated" in text
    assert "<summary><b>Nodes and chips</b> (4)</summary>" in text
    assert "| `node-2/Ascend910-4..6` | isolated | at once | `ManualIsolation: Ascend910-4" in text, text
    assert re.search(r"\| `node-5` \| isolated \| held back by `default` until `2026-\S+Z` \| `Maintenance: ", text)


@pytest.mark.parametrize("kind", FORGES)
def test_a_job_of_each_forge_comments_with_one_command(kind: str, state: Path, tmp_path: Path) -> None:
    with serving(ForgeServer(kind)) as server:
        page = tmp_path / "summary.md"
        head = subprocess.run(
            ["git", "-C", str(state), "rev-parse", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        env = server.environment()
        if kind == GITLAB:
            env |= {"CI_MERGE_REQUEST_DIFF_BASE_SHA": head, "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}
        else:
            env |= {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(page)}
        done = belay("--desired", str(state), "--post", env=env)
        assert done.exit_code == 0, done.output
        assert TOKEN not in done.output
        grown(state)
        done = belay("--desired", str(state), "--post", env=env)
        assert done.exit_code == 1, done.output
        assert done.stderr.startswith("updated: ")
        (made,) = bodies(server)
        assert "2 errors" in made and "against `main`" in made and "(new)" in made
        if kind != GITLAB:
            assert page.read_text().count(FIRST) == 2


def test_a_shallow_clone_is_reviewed_without_its_base(state: Path) -> None:
    env = {"GITHUB_ACTIONS": "true", "GITHUB_BASE_REF": "release"}
    done = belay("--desired", str(state), env=env)
    assert done.exit_code == 0, done.output
    assert "compared with nothing" in done.stdout and "fetch-depth: 0" in done.stdout
    refused = belay("--desired", str(state), "--base", "release")
    assert refused.exit_code == 2 and "has no revision release" in refused.stderr
    refused = belay("--desired", str(state), "--base", "--output=/tmp/x")
    assert refused.exit_code == 2


def head(folder: Path, revision: str = "HEAD") -> str:
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", revision], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def written(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", name)


def files(folder: str) -> dict[str, str]:
    return {str(one.relative_to(folder)): one.read_text() for one in Path(folder).rglob("*") if one.is_file()}


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """A change that is checked out as its forge merged it, and a target that went on since."""
    folder = tmp_path / "parted"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    written(folder, "desired/a.yaml", "a: 1\n")
    git(folder, "checkout", "-qb", "change")
    written(folder, "desired/change.yaml", "c: 1\n")
    git(folder, "checkout", "-q", "main")
    written(folder, "desired/before.yaml", "b: 1\n")
    git(folder, "checkout", "-q", "--detach")
    git(folder, "merge", "-q", "--no-ff", "-m", "as merged at the event", "change")
    git(folder, "branch", "event")
    git(folder, "checkout", "-q", "main")
    written(folder, "desired/later.yaml", "l: 1\n")
    git(folder, "update-ref", "refs/remotes/origin/main", "main")
    git(folder, "checkout", "-q", "event")
    return folder


def test_commits_that_came_to_the_target_later_are_not_shown_reversed(parted: Path) -> None:
    with tree_at(str(parted), "refs/remotes/origin/main") as before:
        assert set(files(before)) == {"desired/a.yaml", "desired/before.yaml"}
    # and where the change itself is checked out, what it began from
    git(parted, "checkout", "-q", "change")
    with tree_at(str(parted), "refs/remotes/origin/main") as before:
        assert set(files(before)) == {"desired/a.yaml"}
    with tree_at(str(parted / "desired"), "HEAD") as before:
        assert set(files(before)) == {"a.yaml", "change.yaml"}


def test_gitlab_pipelines_for_merged_results_name_the_targets_commit(parted: Path) -> None:
    env = {"GITLAB_CI": "true", "CI_MERGE_REQUEST_DIFF_BASE_SHA": head(parted, "change~1"),
           "CI_MERGE_REQUEST_TARGET_BRANCH_SHA": head(parted, "event~1")}  # fmt: skip
    merged = ci.base(env)
    assert merged is not None
    with tree_at(str(parted), merged.revision) as before:
        assert "desired/before.yaml" in files(before), "what the target has is not the change's"
    plain = ci.base(env | {"CI_MERGE_REQUEST_TARGET_BRANCH_SHA": ""})
    assert plain is not None and plain.revision == head(parted, "change~1")


def test_attributes_of_the_repository_change_nothing_in_the_tree_before(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "link").symlink_to("/etc/passwd")
    written(folder, ".gitattributes", "desired/** export-ignore\n*.yaml export-subst eol=crlf\n")
    written(folder, "desired/jobs/ä b.yaml", "commit: $Format:%H$\n")
    with tree_at(str(folder), "HEAD") as before:
        assert files(before)["desired/jobs/ä b.yaml"] == "commit: $Format:%H$\n"
        assert not (Path(before) / "link").exists()
    assert not Path(before).exists()
    git(folder, "checkout", "-q", "--orphan", "other")
    written(folder, "desired/new.yaml", "n: 1\n")
    (folder / "late").mkdir()
    with tree_at(str(folder), "main") as before:
        assert "desired/jobs/ä b.yaml" in files(before), "with no commit in common it is the named one's"
    with tree_at(str(folder / "late"), "main") as before:
        assert files(before) == {}, "the folder is new"


def test_a_clone_without_the_common_commit_says_what_to_fetch(parted: Path, tmp_path: Path) -> None:
    git(parted, "checkout", "-q", "change")
    shallow = tmp_path / "shallow"
    subprocess.run(
        ["git", "clone", "-q", "--depth=1", "--no-single-branch", f"file://{parted}", str(shallow)], check=True
    )
    with pytest.raises(InputError, match="have in common") as missing, tree_at(str(shallow), "origin/main"):
        pytest.fail("a tree")
    assert "fetch-depth: 0" in str(missing.value)


def test_a_tree_that_is_too_large_is_refused(parted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_FILES", 1)
    with pytest.raises(InputError, match="more than") as large, tree_at(str(parted), "origin/main"):
        pytest.fail("a tree")
    assert "--base" in str(large.value)


def test_a_time_that_is_none_is_named(state: Path, cluster: str) -> None:
    result = belay("--desired", str(state), "--base", "origin/main", "--cluster", cluster, "--now", "noon")
    assert result.exit_code == 2 and "'noon' is not a time" in result.stderr


def test_a_folder_that_is_not_a_state_repository_fails(state: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    done = belay("--desired", str(tmp_path / "other"))
    assert done.exit_code == 2 and "not a state repository" in done.stderr and "--desired" in done.stderr
    # a change that takes all away is one, and is shown
    shutil.rmtree(state / "desired")
    assert belay("--desired", str(state), "--base", "origin/main").exit_code == 0


def test_the_review_fails_on_what_is_asked(state: Path, cluster: str) -> None:
    shutil.rmtree(state / "desired" / "jobs")
    words = ("--desired", str(state), "--base", "origin/main", "--cluster", cluster)
    assert belay(*words).exit_code == 0
    assert belay(*words, "--fail-on", "prunes").exit_code == 1
    assert belay(*words, "--fail-on", "waiting", "--fail-on", "errors").exit_code == 0


# what users copy


def shipped(name: str) -> Any:
    return yaml.safe_load((ROOT / "deploy" / "review" / name).read_text())


def test_the_action_hands_every_input_to_an_option_as_environment() -> None:
    action = shipped("action.yml")
    step = action["runs"]["steps"][-1]
    options = {f"BELAY_REVIEW_{one.name.upper()}" for one in cli.main.commands["review"].params if one.name}
    given = {name: value for name, value in step["env"].items() if name not in ("POST", "BELAY_REVIEW_TOKEN")}
    assert given.keys() <= options
    used = re.findall(r"inputs\.([a-z-]+)", json.dumps(step["env"]))
    assert sorted(used) == sorted(action["inputs"])
    install = next(one["run"] for one in action["runs"]["steps"] if one.get("name") == "install")
    locks = re.findall(r'-r "\$source/([^"]+)"', install)
    assert locks == ["deploy/image/build.lock", "deploy/image/engine.lock"], "only what runs, as in the images"
    assert all((ROOT / one).is_file() for one in locks)
    assert install.count('pip" install') == install.count("--require-hashes") + install.count(
        "install --quiet --no-deps"
    )
    for one in action["runs"]["steps"]:
        assert "${{" not in one.get("run", ""), "a value must not become text of a script"


@pytest.mark.parametrize("kind", FORGES)
def test_the_scripts_that_are_shipped_comment(kind: str, state: Path, tmp_path: Path) -> None:
    if kind == GITHUB:
        script = shipped("action.yml")["runs"]["steps"][-1]["run"]
    elif kind == GITLAB:
        script = "\n".join(shipped("gitlab-ci.yml")["belay-review"]["script"])
    else:
        script = shipped("gitea-workflow.yaml")["jobs"]["review"]["steps"][-1]["run"]
    with serving(ForgeServer(kind)) as server:
        env = {"PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path), "POST": "true"}
        if kind == GITHUB:
            env |= {"BELAY_REVIEW_KEY": "prod", "BELAY_REVIEW_FAIL_ON": "errors warnings", "BELAY_REVIEW_BASE": ""}
        if kind == GITLAB:
            env |= {"CI_PROJECT_DIR": str(state), "TMPDIR": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-euc", script],
            cwd=state,
            env=env | server.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        (made,) = bodies(server)
        assert made.startswith(marker("prod" if kind == GITHUB else "default"))
        assert TOKEN not in done.stdout + done.stderr


def test_the_hook_names_a_verb_with_its_words() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    name, verb = hook["entry"].split()
    assert name == "belay" and verb in cli.main.commands
    assert not hook["pass_filenames"]
    assert re.match(hook["files"], "desired/jobs/a.yaml") and not re.match(hook["files"], "README.md")


def test_the_hook_refuses_a_broken_tree(state: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    words = [*hook["entry"].split()[1:], *[str(state / word) for word in hook["args"]]]
    assert CliRunner().invoke(cli.main, words).exit_code == 0
    grown(state)
    assert CliRunner().invoke(cli.main, words).exit_code == 1
