"""How an act's commit is published: pushed to the branch that is followed, or proposed as a pull or merge request.

Proposed is what ``--pull-request`` or the clone's setting ``belay.pullRequests`` asks for, and what the server takes by
no push because the branch is protected. The branch is named after the act, so that the same act given again renews its
request.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from belay.engine.cli.acts.clone import Clone
from belay.engine.cli.acts.edits import RepositoryEdit

if TYPE_CHECKING:
    from belay.engine.cli.acts.pushing import CommitBetween, Pushed

SETTING: Final = "belay.pullRequests"
_LONGEST_NAME: Final = 60
_LONGEST_TITLE: Final = 200
_LONGEST_BODY: Final = 50_000
"""Characters; GitHub takes 65,536."""
_TRUE: Final = ("true", "yes", "on", "1", "always")
_FALSE: Final = ("false", "no", "off", "0", "never")


class RequestWords(NamedTuple):
    """What a request says beside its way back: why, what the change does, and the trailer that the commit must keep."""

    why: str
    plan: Sequence[str]
    trailer: str


@dataclass(frozen=True)
class Publication:
    """How commits of this clone are published: as requests ``always``, or where a push is refused, or never."""

    always: bool
    when_refused: bool


def publication(clone: Clone, options: Mapping[str, Any]) -> Publication:
    """What the options and the clone's settings ask for.

    Raises:
        InputError: options that exclude each other, a setting that says neither yes nor no, or no branch to push.
    """
    from belay.engine.cli.acts.pushing import upstream
    from belay.engine.errors import InputError

    if options["pull_request"] and options["no_push"]:
        raise InputError("a request needs a branch that is pushed", where="--pull-request --no-push",
                         hint="Leave one of them out")  # fmt: skip
    said = clone.setting(SETTING).lower()
    if said and said not in (*_TRUE, *_FALSE):
        raise InputError(f"{said[:40]!r} is neither true nor false", where=f"git config {SETTING}",
                         hint="true: always; false: never; unset: where a push is refused")  # fmt: skip
    if not options["no_push"] and not options["dry_run"]:
        upstream(clone)  # what cannot be pushed is not committed
    return Publication(options["pull_request"] or said in _TRUE, said not in _FALSE)


def branch_name(clone: Clone, context: click.Context) -> str:
    """The branch of an act: its verb and what it is about, such as ``belay/scale-pretrain``.

    Several state repositories may lie in one repository of Git, so the folder belongs to the name.
    """
    arguments = [one for one in context.command.params if isinstance(one, click.Argument)]
    about = context.params.get(arguments[0].name or "") if arguments else ""
    words = [*context.command_path.split()[1:], *(about if isinstance(about, tuple) else [str(about or "")])]
    if clone.folder != clone.root:
        words.insert(0, clone.folder.relative_to(clone.root).as_posix())
    text = " ".join(words)
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return f"belay/{name}"


def body(why: str, plan: Sequence[str], undo: str, trailer: str) -> str:
    """The request's words: why, what the change does, the way back, and what the merged commit must keep."""
    lines = "\n".join(plan)
    longest = max((len(ticks) for ticks in re.findall(r"`+", lines)), default=0)
    fence = "`" * max(3, longest + 1)
    room = _LONGEST_BODY - len(why[:_LONGEST_BODY]) - len(undo)
    if len(lines) > max(room, 0):
        lines = f"{lines[: max(room, 0)]}\n…"
    parts = [
        why[:_LONGEST_BODY],
        f"What it does:\n\n{fence}text\n{lines}\n{fence}" if lines else "",
        f"Take it back, once it is merged: `{undo}`" if "`" not in undo else f"Take it back, once it is merged: {undo}",
        trailer,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def show_companions(clone: Clone, how: Publication, options: Mapping[str, Any]) -> None:
    """Say which commits that are not pushed yet go along with that of the act; into a request goes none."""
    from belay.engine.cli import output as show
    from belay.engine.cli.acts import pushing
    from belay.engine.cli.acts.prospects import show_commits
    from belay.engine.errors import InputError

    if how.always or options["no_push"]:
        return
    try:
        found = pushing.unpushed(clone)
    except InputError:
        return  # a dry run where no branch is checked out
    if found:
        click.echo(show.plain(f"the push takes along what {pushing.upstream(clone).name} has not yet:"))
        show_commits(found)


def publish(
    clone: Clone,
    edit: RepositoryEdit,
    commit: str,
    how: Publication,
    again: Callable[[Sequence[CommitBetween]], None],
    words: RequestWords,
) -> None:
    """Push the newest commit or propose it, and say where it is; ``again`` as `pushing.push` calls it.

    Raises:
        BelayError: neither was possible, and the commit is there; or no request could be opened for it.
    """
    from belay.engine.errors import BelayError

    try:
        proposed = _push_or_propose(clone, edit, how, again)
    except BelayError:
        if stays := _in_the_branch(clone, commit):
            _say_way_back(clone, edit, stays, pushed=False, err=True)
        raise
    if proposed is None:
        return

    try:
        _request(clone, edit, proposed, words)
    except BelayError:
        place = proposed.upstream
        dropped = f"git push {shlex.quote(place.remote)} --delete {shlex.quote(proposed.branch)}"
        _say_way_back(clone, RepositoryEdit({}, edit.subject, (dropped,)), "", pushed=True, err=True)
        raise


def _push_or_propose(
    clone: Clone, edit: RepositoryEdit, how: Publication, again: Callable[[Sequence[CommitBetween]], None]
) -> Pushed | None:
    """Bring the commit to the remote; the branch for which a request is still to be opened."""
    from belay.engine.cli import output as show
    from belay.engine.cli.acts import pushing

    if not how.always:
        try:
            place = pushing.push(clone, again)
            done = f"pushed to {place.name}; belay status says when it is in force" if place else _there_already(clone)
            click.echo(show.plain(done))
            _say_way_back(clone, edit, clone.head() if place else "", pushed=True)
            return None
        except pushing.RefusedError as refused:
            if not how.when_refused:
                raise
            click.echo(show.plain(f"{refused.where}: {refused.message}: proposed as a request instead"), err=True)

    pushed = pushing.propose(clone, branch_name(clone, click.get_current_context()))
    if pushed is None:
        click.echo(show.plain(_there_already(clone)))
        _say_way_back(clone, edit, "", pushed=True)
    return pushed


def _request(clone: Clone, edit: RepositoryEdit, pushed: Pushed, words: RequestWords) -> None:
    """Open or renew the request of a branch that is pushed."""
    from belay.engine.cli import output as show
    from belay.engine.cli.acts.ways_back import way_back

    place = pushed.upstream
    click.echo(show.plain(f"pushed to {place.remote}/{pushed.branch}; {place.branch} is as it was"))
    text = body(words.why, words.plan, way_back(edit, "", pushed=True), words.trailer)
    click.echo(show.plain(_opened(clone, pushed, edit.subject[:_LONGEST_TITLE], text)))
    undo = way_back(edit, "", pushed=True, clone=clone)
    click.echo(f"take it back: close the request; once it is merged: {show.plain(undo)}")


def _in_the_branch(clone: Clone, commit: str) -> str:
    """The act's commit as it lies in the branch, where a rebase may have made it another; empty where it does not."""
    if clone.words() == clone.words(commit):
        return clone.head()
    return commit if clone.contains("HEAD", commit) else ""


def _say_way_back(clone: Clone, edit: RepositoryEdit, commit: str, *, pushed: bool, err: bool = False) -> None:
    from belay.engine.cli import output as show
    from belay.engine.cli.acts.ways_back import way_back

    click.echo(f"take it back: {show.plain(way_back(edit, commit, pushed=pushed, clone=clone))}", err=err)


def _there_already(clone: Clone) -> str:
    from belay.engine.cli.acts import pushing

    name = pushing.upstream(clone).name
    return f"{name} has this change already, so no commit is left to publish; git pull --rebase brings it here"


def _opened(clone: Clone, pushed: Pushed, title: str, words: str) -> str:
    """Open or renew the request; the sentence that says so, or how a person opens it."""
    import asyncio
    import os

    from belay.engine.cli.acts import remotes
    from belay.engine.cli.acts.requests import Proposal, open_request
    from belay.engine.cli.forge_calls import ForgeError

    place = pushed.upstream
    url = clone.git("remote", "get-url", "--push", place.remote).stdout.strip()
    remote = remotes.remote_of(url, clone.setting(remotes.KIND_SETTING), clone.setting(remotes.API_SETTING))
    page = pushed.printed or remotes.page(remote, pushed.branch, place.branch)
    by_hand = f"open the request: {page}" if page else f"open a request of {pushed.branch} into {place.branch}"
    if not remote.forge:
        known = "|".join(sorted(remotes.FORGES))
        return f"{by_hand} (git config {remotes.KIND_SETTING} {known} lets belay open it)"
    token = remotes.token(os.environ, remote.forge)
    if not token:
        return f"{by_hand} (with ${' or $'.join(remotes.TOKENS[remote.forge])} belay opens it)"
    proposal = Proposal(pushed.branch, place.branch, title, words)
    try:
        opened = asyncio.run(open_request(remote, token, proposal, certificates=clone.certificates(remote.api)))
    except ForgeError as error:
        raise ForgeError(f"{error.message}. The commit is on {pushed.branch}: {by_hand}", where=error.where,
                         hint=error.hint) from error  # fmt: skip
    return f"{'renewed' if opened.updated else 'opened'}: {opened.address}; it is in force once it is merged"
