"""Which continuous integration runs this, on which request, and with whose token; from the environment alone.

Sources: the variables that GitHub Actions ("Default environment variables"), GitLab CI/CD ("Predefined variables":
merge request pipelines) and Gitea Actions (GitHub's names, and GITEA_ACTIONS) document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from belay.engine.cli.forge_calls import GITEA, GITHUB, GITLAB
from belay.engine.errors import InputError

TOKENS: Final = {
    GITHUB: ("BELAY_REVIEW_TOKEN", "GITHUB_TOKEN"),
    GITLAB: ("BELAY_REVIEW_TOKEN", "GITLAB_TOKEN"),
    GITEA: ("BELAY_REVIEW_TOKEN", "GITEA_TOKEN", "GITHUB_TOKEN"),
}
"""Variables that may hold the token, in the order in which they are looked at."""
MOST_EVENT: Final = 16 * 1024 * 1024
_EVENT: Final = "$GITHUB_EVENT_PATH"


class ReviewRequest(NamedTuple):
    """A pull or merge request: the API's address, the project there (owner/name, or GitLab's number) and its number."""

    forge: str
    api: str
    project: str
    number: int


class MergeTarget(NamedTuple):
    """What a request is to be merged into: a revision of the clone, and its name for readers."""

    revision: str
    name: str


def forge(env: Mapping[str, str]) -> str:
    """The forge whose CI runs this process; empty if none does."""
    if env.get("GITEA_ACTIONS") == "true" or env.get("FORGEJO_ACTIONS") == "true":
        return GITEA
    if env.get("GITLAB_CI") == "true":
        return GITLAB
    return GITHUB if env.get("GITHUB_ACTIONS") == "true" else ""


def base(env: Mapping[str, str]) -> MergeTarget | None:
    """What the request of this run is to be merged into; None outside one."""
    kind = forge(env)
    if kind == GITLAB:
        # a pipeline for merged results has the target's commits in its own; only such a one names the first variable
        commit = env.get("CI_MERGE_REQUEST_TARGET_BRANCH_SHA") or env.get("CI_MERGE_REQUEST_DIFF_BASE_SHA", "")
        return MergeTarget(commit, env.get("CI_MERGE_REQUEST_TARGET_BRANCH_NAME") or commit[:12]) if commit else None
    branch = env.get("GITHUB_BASE_REF", "") if kind else ""
    return MergeTarget(f"refs/remotes/origin/{branch}", branch) if branch else None


def commit(env: Mapping[str, str]) -> str:
    """The commit that is reviewed, or nothing."""
    return env.get("CI_COMMIT_SHA" if forge(env) == GITLAB else "GITHUB_SHA", "") if forge(env) else ""


def request(env: Mapping[str, str]) -> ReviewRequest:
    """The request to comment on.

    Raises:
        InputError: no CI that is known, not a run for a request, or a variable that cannot be used.
    """
    kind = forge(env)
    if kind == GITLAB:
        project = env.get("CI_MERGE_REQUEST_PROJECT_ID") or env.get("CI_PROJECT_ID", "")
        number = env.get("CI_MERGE_REQUEST_IID", "")
        if not number:
            raise InputError(
                "this pipeline is of no merge request", where="CI_MERGE_REQUEST_IID",
                hint="Give the job: rules: [{if: $CI_PIPELINE_SOURCE == 'merge_request_event'}].",
            )  # fmt: skip
        return ReviewRequest(
            kind,
            env.get("CI_API_V4_URL", ""),
            _matching(project, r"\d+", "CI_PROJECT_ID"),
            _number(number, "CI_MERGE_REQUEST_IID"),
        )
    if not kind:
        raise InputError(
            "no CI of GitHub, GitLab or Gitea runs this", where="--post", hint="Without --post the comment is printed."
        )
    project = _matching(env.get("GITHUB_REPOSITORY", ""), r"[\w.-]+/[\w.-]+", "GITHUB_REPOSITORY")
    api = env.get("GITHUB_API_URL", "")
    if kind == GITEA and not api.rstrip("/").endswith("/api/v1"):
        api = f"{env.get('GITHUB_SERVER_URL', '').rstrip('/')}/api/v1"
    found = re.fullmatch(r"refs/pull/(\d+)/(merge|head)", env.get("GITHUB_REF", ""))
    return ReviewRequest(kind, api, project, int(found[1]) if found else _of_event(env.get("GITHUB_EVENT_PATH", "")))


def token(env: Mapping[str, str], kind: str) -> str:
    """The token to comment with.

    Raises:
        InputError: none is set, or it cannot be one; the message holds nothing of it.
    """
    for name in TOKENS[kind]:
        value = env.get(name, "").strip()
        if value:
            if not re.fullmatch(r"[\x21-\x7e]{1,4096}", value):
                raise InputError("holds no token: a token is one word of ASCII letters", where=f"${name}")
            return value
    names = " or ".join(f"${name}" for name in TOKENS[kind])
    hints = {
        GITHUB: "In the workflow: permissions: {pull-requests: write} and env: {GITHUB_TOKEN: ${{ github.token }}}.",
        GITLAB: "A project access token with scope api and role Reporter; CI_JOB_TOKEN may not write notes.",
        GITEA: "In the workflow: env: {GITHUB_TOKEN: ${{ github.token }}}.",
    }
    raise InputError(f"no token to comment with: set {names}", where="--post", hint=hints[kind])


class _Numbered(msgspec.Struct):
    number: int = 0


class _Event(msgspec.Struct):
    """What the payload of an event of GitHub or Gitea says about its request."""

    number: int = 0
    pull_request: _Numbered | None = None
    issue: _Numbered | None = None


def _of_event(path: str) -> int:
    data = b""
    if path:
        try:
            with Path(path).open("rb") as stream:
                data = stream.read(MOST_EVENT + 1)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}", where=_EVENT) from error
    return number_in(data)


def number_in(event: bytes) -> int:
    """The number of the request that the payload of an event is about.

    Raises:
        InputError: no payload, or of no request.
    """
    if len(event) > MOST_EVENT:
        raise InputError(f"the event is larger than {MOST_EVENT >> 20} MiB", where=_EVENT)
    try:
        read = msgspec.json.decode(event, type=_Event) if event else _Event()
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InputError(f"holds no event: {error}", where=_EVENT) from error
    number = (read.pull_request or read.issue or _Numbered()).number or read.number
    if number <= 0:
        raise InputError("this run is of no pull request", where=_EVENT, hint="Let the workflow run on: pull_request.")
    return number


def _number(text: str, where: str) -> int:
    return int(_matching(text, r"[1-9]\d{0,15}", where))


def _matching(text: str, pattern: str, where: str) -> str:
    if not re.fullmatch(pattern, text, re.ASCII):
        raise InputError(f"{text[:200]!r} cannot be used", where=f"${where}")
    return text
