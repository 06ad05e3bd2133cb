"""Acts as pull and merge requests: the branch in a real remote, and the request on each forge."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from belay.engine.cli import main
from belay.engine.cli.acts import remotes
from belay.engine.cli.acts.requests import Opened, Proposal, open_request
from belay.engine.cli.forge_calls import GITEA, GITHUB, GITLAB, ForgeError
from belay.engine.errors import InputError
from belay.engine.proxies import proxy_for
from tests.certificates import authority, certificate
from tests.forge_server import serving
from tests.request_server import FORGES, PROJECT, TOKEN, RequestServer

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "belay/isolate-node-3-4-5"
_SSH = """#!/bin/sh
for command; do :; done
cd {base} && eval "$(printf %s "$command" | sed "s#'/#'./#")"
"""
_PROTECTED = """#!/bin/sh
[ "$1" != refs/heads/main ] || { echo "You are not allowed to push code to protected branches" >&2; exit 1; }
"""


@pytest.fixture(autouse=True)
def no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name for names in remotes.TOKENS.values() for name in names} & os.environ.keys():
        monkeypatch.delenv(name)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose remote is reached by Git's own protocol, at an address as forges have it."""
    program = tmp_path / "ssh"
    program.write_text(_SSH.format(base=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("GIT_SSH", str(program))
    monkeypatch.setenv("GIT_SSH_VARIANT", "ssh")
    subprocess.run(
        ["git", "init", "-q", "--bare", "--initial-branch=main", str(tmp_path / "ops/state.git")], check=True
    )
    made = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", "--initial-branch=main", str(made)], check=True)
    subprocess.run(["cp", "-r", str(ROOT / "desired"), str(made)], check=True)
    for name, value in (("user.name", "Ada"), ("user.email", "ada@example.com")):
        git(made, "config", name, value)
    git(made, "remote", "add", "origin", "ssh://git@forge.example.org:2222/ops/state.git")
    git(made, "add", "--all")
    git(made, "commit", "-qm", "Begin")
    git(made, "push", "-q", "-u", "origin", "main")
    return made


@pytest.fixture
def forge(request: pytest.FixtureRequest, clone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RequestServer]:
    kind = getattr(request, "param", GITHUB)
    with serving(RequestServer(kind, clone.parent / "ops/state.git")) as server:
        git(clone, "config", "belay.forge", kind.lower())
        git(clone, "config", "belay.forgeApi", server.api)
        monkeypatch.setenv("BELAY_FORGE_TOKEN", TOKEN)
        yield server


def git(folder: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def there(clone: Path, *args: str) -> str:
    """What Git says in the remote."""
    return git(clone.parent / "ops/state.git", *args)


def run(clone: Path, *args: str) -> Result:
    done = CliRunner().invoke(main, [*args, "--repo", str(clone), "--cluster", "none"])
    assert TOKEN not in done.output
    return done


def isolate(clone: Path, *more: str, reason: str = "ECC") -> Result:
    return run(clone, "isolate", "node-3/4-5", "--reason", reason, *more)


def words(server: RequestServer) -> list[str]:
    return [one["description" if server.forge == GITLAB else "body"] for one in server.requests]


@pytest.mark.parametrize("forge", FORGES, indirect=True)
def test_an_act_is_proposed_and_given_again_renews_its_request(clone: Path, forge: RequestServer) -> None:
    main_before, tree = there(clone, "rev-parse", "main"), git(clone, "rev-parse", "HEAD^{tree}")
    forge.add(BRANCH, "main", "of a fork", "with a branch of this name", owner="mallory")
    done = isolate(clone, "--pull-request", "--why", "Ticket 4711.")
    assert done.exit_code == 0, done.output
    fork, made = forge.requests
    branches = (made.get("source_branch") or made["head"]["ref"], made.get("target_branch") or made["base"]["ref"])
    assert branches == (BRANCH, "main") and made["title"].startswith("Isolate node-3/4,5")
    assert words(forge)[1].startswith("Ticket 4711.") and "`belay release node-3/4,5`" in words(forge)[1]
    assert f"opened: {made.get('web_url') or made['html_url']}; it is in force once it is merged" in done.output
    # the remote's main and the clone are as before; the branch is one commit on top of main
    assert there(clone, "rev-parse", "main") == git(clone, "rev-parse", "HEAD") == main_before
    assert (git(clone, "rev-parse", "HEAD^{tree}"), git(clone, "status", "--porcelain")) == (tree, "")
    first = there(clone, "rev-parse", BRANCH)
    assert there(clone, "rev-parse", f"{BRANCH}~1") == main_before
    assert there(clone, "log", "-1", "--format=%an %b", BRANCH) == "Ada Ticket 4711."

    done = isolate(clone, "--pull-request", reason="fan")
    assert done.exit_code == 0 and "renewed: " in done.output, done.output
    assert len(forge.requests) == 2 and fork["title"] == "of a fork" and "Ticket" not in words(forge)[1]
    changed = there(clone, "diff", "main", BRANCH)
    assert "reason: fan" in changed and "ECC" not in changed, "the branch holds the newer act alone"
    there(clone, "merge-base", "--is-ancestor", first, BRANCH)  # fails where the branch was forced
    seen = len(forge.seen)
    assert isolate(clone, "--pull-request", reason="fan").exit_code == 0
    assert [call.split()[0] for call in forge.seen[seen:]] == ["GET"], "the same words are not sent again"


def test_what_a_protected_branch_refuses_is_proposed(clone: Path, forge: RequestServer) -> None:
    hook = clone.parent / "ops/state.git/hooks/update"
    hook.write_text(_PROTECTED)
    hook.chmod(0o755)
    git(clone, "config", "belay.pullRequests", "false")
    done = isolate(clone)
    assert done.exit_code == 2 and "the server refuses pushes to this branch" in done.output
    assert "You are not allowed" in done.output and forge.requests == []
    git(clone, "reset", "--keep", "HEAD~1")  # as it says
    git(clone, "config", "--unset", "belay.pullRequests")
    before = git(clone, "rev-parse", "HEAD")
    done = isolate(clone)
    assert done.exit_code == 0 and "proposed as a request instead" in done.output, done.output
    assert len(forge.requests) == 1 and git(clone, "rev-parse", "HEAD") == there(clone, "rev-parse", "main") == before
    assert git(clone, "status", "--porcelain") == ""


def test_the_setting_proposes_every_act_and_a_race_is_lost_without_harm(clone: Path, forge: RequestServer) -> None:
    git(clone, "config", "belay.pullRequests", "true")
    other = of_another(clone)
    (other / "note").write_text("of Bob\n")
    git(other, "add", "note")
    git(other, "commit", "-qm", "Note")
    git(other, "push", "-q")
    (clone / "desired/README.md").write_text("my own words\n")
    assert "of belay/confirm" in run(clone, "confirm", "0123456789abcdef" * 2, "--dry-run").output
    assert run(clone, "confirm", "0123456789abcdef" * 2).exit_code == 0
    assert words(forge)[0].rstrip().endswith(f"Belay-Confirm: {'0123456789abcdef' * 2}")
    assert there(clone, "log", "-1", "--format=%P", forge.requests[0]["head"]["ref"]) == there(
        clone, "rev-parse", "main"
    )
    assert git(clone, "status", "--porcelain") == "M desired/README.md"

    # two acts are two requests; another person's commit on the branch of an act is not undone
    assert run(clone, "scale", "pretrain", "3").exit_code == run(clone, "priority", "pretrain", "high").exit_code == 0
    assert [one["head"]["ref"] for one in forge.requests[1:]] == ["belay/scale-pretrain", "belay/priority-pretrain"]
    git(other, "fetch", "-q")
    git(other, "switch", "-q", "belay/scale-pretrain")
    git(other, "commit", "-q", "--allow-empty", "-m", "Mine")
    git(other, "push", "-q")
    done = run(clone, "scale", "pretrain", "5")
    assert done.exit_code == 2 and "has commits of bob@example.com" in done.output, done.output
    assert there(clone, "log", "-1", "--format=%s", "belay/scale-pretrain") == "Mine"
    assert git(clone, "log", "-1", "--format=%s").startswith("Scale"), "the commit is there, as the message says"
    git(clone, "reset", "-q", "--keep", "HEAD~1")


def of_another(clone: Path) -> Path:
    """Another person's clone."""
    other = clone.parent / "other"
    git(clone.parent, "clone", "-q", str(clone.parent / "ops/state.git"), str(other))
    for name, value in (("user.name", "Bob"), ("user.email", "bob@example.com")):
        git(other, "config", name, value)
    return other


def keep_own_work(clone: Path) -> str:
    """A commit of the person's own that is not pushed; its id."""
    (clone / "mine").write_text("my local work\n")
    git(clone, "add", "mine")
    git(clone, "commit", "-qm", "My local work")
    return git(clone, "rev-parse", "HEAD")


def test_work_of_ones_own_stays_in_the_clone_and_out_of_a_request(clone: Path, forge: RequestServer) -> None:
    own, main_before = keep_own_work(clone), there(clone, "rev-parse", "main")
    done = isolate(clone, "--pull-request")
    assert done.exit_code == 0 and len(forge.requests) == 1, done.output
    assert there(clone, "rev-parse", f"{BRANCH}~1") == main_before, "the request holds the act alone"
    assert "mine" not in there(clone, "diff", "--name-only", "main", BRANCH)
    assert git(clone, "rev-parse", "HEAD") == own and (clone / "mine").exists()

    # it is merged; the same act given again in the clone that has not seen it proposes nothing
    there(clone, "update-ref", "refs/heads/main", BRANCH)
    there(clone, "branch", "-D", BRANCH)
    done = isolate(clone, "--pull-request")
    assert done.exit_code == 0 and "origin/main has this change already" in done.output, done.output
    assert len(forge.requests) == 1 and BRANCH not in there(clone, "branch", "--list")
    assert git(clone, "rev-parse", "HEAD") == own and (clone / "mine").read_text() == "my local work\n"
    assert git(clone, "status", "--porcelain") == "" and len(git(clone, "worktree", "list").splitlines()) == 1


def test_a_lost_race_to_the_same_change_on_a_protected_branch_publishes_no_own_work(
    clone: Path, forge: RequestServer
) -> None:
    other = of_another(clone)
    assert isolate(other).exit_code == 0
    hook = clone.parent / "ops/state.git/hooks/update"
    hook.write_text(_PROTECTED)
    hook.chmod(0o755)
    keep_own_work(clone)
    done = isolate(clone)
    assert done.exit_code == 0 and "origin/main has this change already" in done.output, done.output
    assert forge.requests == [] and there(clone, "branch", "--format=%(refname:short)") == "main"
    assert git(clone, "log", "--format=%s", "origin/main..") == "My local work" and (clone / "mine").exists()


def test_a_request_on_lines_that_others_changed_is_refused_with_the_commit_kept(
    clone: Path, forge: RequestServer
) -> None:
    assert isolate(of_another(clone), reason="fan").exit_code == 0
    own = keep_own_work(clone)
    done = isolate(clone, "--pull-request")
    assert done.exit_code == 2 and "others changed the same lines" in done.output, done.output
    git(clone, "reset", "--keep", "HEAD~1")  # as it says
    assert git(clone, "rev-parse", "HEAD") == own and forge.requests == []


def test_without_a_token_or_a_known_forge_the_page_is_named(clone: Path) -> None:
    hook = clone.parent / "ops/state.git/hooks/post-receive"
    done = isolate(clone, "--pull-request")
    assert done.exit_code == 0, done.output
    assert f"open a request of {BRANCH} into main (git config belay.forge" in done.output
    git(clone, "config", "belay.forge", "GitLab")
    done = run(clone, "drain", "node-1", "--pull-request")
    source = "merge_request%5Bsource_branch%5D=belay%2Fdrain-node-1&merge_request%5Btarget_branch%5D=main"
    assert f"open the request: https://forge.example.org/ops/state/-/merge_requests/new?{source}" in done.output
    assert "$GITLAB_TOKEN" in done.output
    hook.write_text('#!/bin/sh\necho "Create one:" >&2\necho "  https://forge.example.org/new/$$" >&2\n')
    hook.chmod(0o755)
    assert "open the request: https://forge.example.org/new/" in run(clone, "drain", "node-2", "--pull-request").output


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ((401, {}), "expired or is of another forge; it is read from $BELAY_FORGE_TOKEN"),
        ((403, {}), "needs the right to open requests: Pull requests: read and write"),
        ((404, {}), f"sees no {PROJECT} on GitHub"),
        ((429, {"Retry-After": "3600"}), "its limit of calls ends in 3600 s"),
        ((302, {"Location": f"https://elsewhere.example/{TOKEN}"}), "a token is not sent after it"),
    ],
)
def test_a_refusal_says_what_to_do_and_where_the_commit_is(
    clone: Path, forge: RequestServer, fault: tuple[int, dict[str, str]], says: str
) -> None:
    forge.faults = [fault]
    done = isolate(clone, "--pull-request")
    assert done.exit_code == 2 and says in done.output, done.output
    assert f"The commit is on {BRANCH}: open the request: https://forge.example.org/" in done.output
    assert there(clone, "log", "-1", "--format=%s", BRANCH).startswith("Isolate") and forge.requests == []
    assert f"take it back: git -C {clone} push origin --delete {BRANCH}\n" in done.output, "nothing else has changed"
    assert "belay release" not in done.output


def test_an_earlier_act_of_the_same_words_is_not_taken_for_one_without_a_request(
    clone: Path, forge: RequestServer
) -> None:
    git(clone, "commit", "-q", "--allow-empty", "-m", "Change FaultPolicy training (#12)")
    git(clone, "push", "-q")
    forge.faults = [(404, {})]
    done = run(clone, "policy", "edit", "training", "--mode", "shadow", "--pull-request")
    assert done.exit_code == 2 and "revert" not in done.output, done.output
    (back,) = re.findall(r"^take it back: (.+)$", done.output, re.MULTILINE)
    subprocess.run(["bash", "-ec", back], check=True, capture_output=True)
    assert there(clone, "branch", "--format=%(refname:short)") == "main"


@pytest.mark.parametrize(
    ("settings", "options", "says"),
    [
        ({"belay.forge": "sourcehut"}, ("--pull-request",), "One of forgejo, gitcode, gitea, gitee, github, gitlab"),
        (
            {"belay.forge": "gitea", "belay.forgeApi": "http://forge.example.org/api/v1"},
            ("--pull-request",),
            "not https",
        ),
        ({"belay.pullRequests": "maybe"}, (), "neither true nor false"),
        ({}, ("--pull-request", "--no-push"), "Leave one of them out"),
    ],
)
def test_a_wrong_setting_is_named(clone: Path, settings: dict[str, str], options: tuple[str, ...], says: str) -> None:
    for name, value in settings.items():
        git(clone, "config", name, value)
    done = isolate(clone, *options)
    assert done.exit_code == 2 and says in done.output, done.output


# the calls

ASKED = Proposal("main", "trunk", "Title", "Body")


def opened(server: RequestServer, *, certificates: str = "", waits: list[float] | None = None, api: str = "") -> Opened:
    async def sleep(seconds: float) -> None:
        (waits if waits is not None else []).append(seconds)

    remote = remotes.Remote(server.forge, "https://forge.example.org", PROJECT, api or server.api)
    return asyncio.run(open_request(remote, TOKEN, ASKED, certificates=certificates, now=lambda: 1.0, sleep=sleep))


@pytest.fixture
def repository(clone: Path) -> Path:
    folder = clone.parent / "ops/state.git"
    git(folder, "branch", "trunk", "main")
    return folder


@pytest.mark.parametrize("kind", FORGES)
def test_a_request_is_never_doubled(repository: Path, kind: str) -> None:
    for fault, waits in (("made elsewhere", []), ("made and cut", [1.0])):
        with serving(RequestServer(kind, repository)) as server:
            waited: list[float] = []
            list_first: tuple[int, dict[str, str]] = (429, {"Retry-After": "2"})
            for number in range(60):
                server.add(f"other-{number}", "trunk", "Other", "")
            server.faults = [list_first]
            answer = server.answer

            async def faulty(request, answer=answer, server=server, fault=fault):  # type: ignore[no-untyped-def]
                if request.method == "POST" and len(server.requests) == 60:
                    server.faults.append(fault)
                return await answer(request)

            server.answer = faulty  # type: ignore[method-assign]
            with serving(server):
                assert opened(server, waits=waited).updated
            assert len(server.requests) == 61 and server.requests[60]["title"] == "Title"
            assert words(server)[60] == "Body" and waited == [2.0, *waits]


def test_a_request_that_a_forge_does_not_take_is_said(repository: Path) -> None:
    git(repository, "branch", "-D", "trunk")
    refused = pytest.raises(ForgeError, match=r"HTTP 422: .*Look whether main differs from trunk")
    with serving(RequestServer(GITHUB, repository)) as server, refused:
        opened(server)


def test_an_authority_of_ones_own_is_that_of_git(repository: Path, tmp_path: Path) -> None:
    trusted = authority(tmp_path, "own")
    chain, key = certificate(tmp_path, "127.0.0.1", "own")[:2]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, key)
    with serving(RequestServer(GITEA, repository), tls) as server:
        with pytest.raises(ForgeError, match=r"git config http\.sslCAInfo FILE"):
            opened(server)
        assert not opened(server, certificates=str(trusted)).updated and len(server.requests) == 1
        with pytest.raises(InputError, match="cannot be read"):
            opened(server, certificates=str(tmp_path / "none"))


@pytest.mark.parametrize("kind", [GITHUB, GITLAB])
def test_passwords_of_a_netrc_are_not_sent_and_a_proxy_is_used(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / ".netrc").write_text("default login ada password of-another-server\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NETRC", raising=False)
    for name in ("no_proxy", "NO_PROXY", "http_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # a server of a token refuses what has another proof beside it
    with serving(RequestServer(kind, repository)) as server:
        assert not opened(server).updated
        calls = len(server.seen)

        api = server.api.replace("127.0.0.1", "forge.invalid")
        monkeypatch.setenv("http_proxy", server.api.partition("://")[2].partition("/")[0])
        assert opened(server, api=api).updated and len(server.seen) > calls, "a name that the proxy alone knows"
        monkeypatch.setenv("no_proxy", ".invalid")
        assert proxy_for(api) is None
        monkeypatch.delenv("no_proxy")
        monkeypatch.setenv("http_proxy", "socks5://ada:secret@127.0.0.1:1")
        with pytest.raises(InputError, match="a proxy of 'socks5' cannot be used"):
            opened(server, api=api)


# the remote's address


@pytest.mark.parametrize(
    ("url", "kind", "forge", "api", "project"),
    [
        ("git@github.com:ops/state.git", "", "GitHub", "https://api.github.com", "ops/state"),
        ("ssh://git@ssh.github.com:443/ops/state.git", "", "GitHub", "https://api.github.com", "ops/state"),
        ("https://ada@gitlab.com/group/sub/state", "", "GitLab", "https://gitlab.com/api/v4", "group/sub/state"),
        ("https://codeberg.org/ops/state.git", "", "Gitea", "https://codeberg.org/api/v1", "ops/state"),
        ("git@gitee.com:ops/state.git", "", "Gitee", "https://gitee.com/api/v5", "ops/state"),
        ("https://gitcode.com/ops/state.git", "", "GitCode", "https://api.gitcode.com/api/v5", "ops/state"),
        ("ssh://git@git.example.org:2222/ops/state", "forgejo", "Gitea", "https://git.example.org/api/v1", "ops/state"),
        (
            "https://git.example.org:8443/ops/state",
            "github",
            "GitHub",
            "https://git.example.org:8443/api/v3",
            "ops/state",
        ),
        # a host that is not known gets no token, whatever it is called
        ("https://github.com.example.org/ops/state.git", "", "", "", "ops/state"),
        ("/srv/git/state.git", "", "", "", ""),
        ("http://[::1", "", "", "", ""),
    ],
)
def test_the_forge_is_that_of_the_remotes_host_or_of_the_setting(
    url: str, kind: str, forge: str, api: str, project: str
) -> None:
    found = remotes.remote_of(url, kind, "")
    assert (found.forge, found.api, found.project) == (forge, api, project)


@pytest.mark.parametrize(
    ("url", "project"),
    [
        ("https://git.example.org/git/ops/state.git", "ops/state"),
        ("git@git.example.org:ops/state.git", "ops/state"),
        ("git@git.example.org:git/state.git", "git/state"),
    ],
)
def test_a_forge_below_a_path_has_its_projects_and_pages_there(url: str, project: str) -> None:
    found = remotes.remote_of(url, "gitlab", "https://git.example.org/git/api/v4/")
    assert (found.project, found.web) == (project, "https://git.example.org/git")
    elsewhere = remotes.remote_of(url, "gitlab", "https://api.example.org/git/api/v4")
    assert elsewhere.web == "https://git.example.org", "another host's path says nothing"


def test_a_folder_is_no_project_of_a_forge() -> None:
    with pytest.raises(InputError, match=r"state\.git: the remote's address names no project on GitLab"):
        remotes.remote_of("/srv/git/state.git", "gitlab", "")


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("git@github.com:ops/state.git", "https://github.com/ops/state/compare/main...belay/a?expand=1"),
        ("git@gitee.com:ops/state.git", "https://gitee.com/ops/state/pull/new/ops:belay/a...ops:main"),
        ("https://gitea.com/ops/state", "https://gitea.com/ops/state/compare/main...belay/a"),
        ("https://gitcode.com/ops/state", "https://gitcode.com/ops/state/pulls"),
    ],
)
def test_the_page_on_which_a_person_opens_the_request(url: str, page: str) -> None:
    assert remotes.page(remotes.remote_of(url, "", ""), "belay/a", "main") == page


def test_a_token_is_one_word_and_the_named_one_comes_first() -> None:
    assert remotes.token({"GITHUB_TOKEN": "a", "BELAY_FORGE_TOKEN": "b\n"}, GITHUB) == "b"
    assert remotes.token({"GITLAB_TOKEN": "a"}, GITHUB) == ""
    with pytest.raises(InputError) as odd:
        remotes.token({"GITHUB_TOKEN": "line\nX-Other: 1"}, GITHUB)
    assert "X-Other" not in str(odd.value)
