"""`belay sync`: the controllers fetch now, and the command ends when the revision is in force."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from belay.engine.cli.invocation import access_options, fails_clearly, seconds
from belay.engine.cli.known_names import completes
from belay.engine.model.labels import ABOUT_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from belay.engine.cli.waiting import WaitStanding
    from belay.engine.status.status_reader import PublishedStatus

#: Seconds after the request in which a refusal may still be that of an earlier fetch.
_OLD_ANSWER: Final = 5.0
_GIT_SECONDS: Final = 30.0
_REFUSING: Final = frozenset({"Verified", "Accepted"})
"""Conditions of a fetched revision whose failure only another commit, or a person, mends."""


class WantedRevision(NamedTuple):
    """The commit to be in force, and whether a later one contains it, as far as is known here."""

    commit: str
    is_within: Callable[[str], bool]


@click.command(short_help="Fetch the repository now, and wait until it is in force.")
@click.argument("revision", required=False, metavar="[REV]", shell_complete=completes("revision"))
@click.option("--timeout", "limit", default="5m", show_default=True, metavar="DURATION", help="How long at most.")
@click.option("--no-wait", is_flag=True, help="Only ask for the fetch.")
@click.option("--server", metavar="URL", help="The server that asks. Default: $BELAY_SERVER, the kubeconfig's.")
@access_options
@fails_clearly
def sync(
    revision: str | None, limit: str, no_wait: bool, server: str | None, kubeconfig: str | None, context: str | None
) -> None:
    """Have the controllers fetch the repository now, and wait until REV, or a later commit, is in force with all its
    documents.

    Without REV it is the commit that is checked out here, which must be pushed; elsewhere the newest commit of the
    branch that the cluster follows. `belay server` passes the request on; where none is known, the next poll fetches.
    Exit 0: in force. Exit 1: the time is up, or the revision is refused or waits for a person; the last line says why,
    and what to do. Exit 2: nothing could be asked.

    Examples: belay sync; belay sync 4f2c91a --timeout 2m; belay sync --no-wait
    """
    from belay.engine.cli.output import plain
    from belay.engine.cli.waiting import until_reached
    from belay.engine.errors import BelayError

    longest = seconds(limit, "--timeout")
    assert longest is not None
    wanted = None if no_wait else _wanted(revision, kubeconfig, context)

    began = time.monotonic()
    problem = _ask(server, kubeconfig, context)
    if wanted is None:
        if problem:
            raise BelayError(problem)
        click.echo("asked the controllers to fetch")
        return
    if problem:
        click.echo(plain(f"{problem}. The next poll fetches; waiting for it."), err=True)

    final = until_reached(
        kubeconfig,
        lambda status: sync_standing(status, wanted, settled=time.monotonic() - began > _OLD_ANSWER),
        longest,
        context,
    )
    click.echo(plain(final.text), err=not final.reached)
    sys.exit(0 if final.reached else 1)


VERBS = (sync,)


def sync_standing(status: PublishedStatus, wanted: WantedRevision, *, settled: bool) -> WaitStanding:
    """How far the revision is. ``settled``: what is published is no answer to an earlier fetch any more, so a refusal
    is one.
    """
    from belay.engine.cli.waiting import WaitStanding, revision_standing

    found = revision_standing(status, wanted.commit, wanted.is_within)
    if found.reached:
        return found._replace(text=found.text + _later(status))
    hindrance = "" if status.no_pass or not settled else _hindrance(status, wanted)
    return WaitStanding(False, True, f"{found.text}. {hindrance}") if hindrance else found


def _later(status: PublishedStatus) -> str:
    """What of the revision takes effect once chips are free, as it waits for running work; empty: nothing."""
    from belay.engine.model.codes.passes import PassCode
    from belay.engine.model.wording import counted

    waiting = sum(one.get("code") == PassCode.LAYOUT_WAITS for one in status.diagnostics)
    if not waiting:
        return ""
    return f"; {counted(waiting, 'chip')} {'is' if waiting == 1 else 'are'} cut once free (belay status)"


def _hindrance(status: PublishedStatus, wanted: WantedRevision) -> str:
    """What must be done before the revision can come into force; empty where waiting helps."""
    from belay.engine.model.codes.passes import PassCode
    from belay.engine.status.conditions import API_REFUSES, EXCEPT_REFUSED

    read = status.attempted.startswith(wanted.commit) or wanted.is_within(status.attempted)
    if not read:
        return ""
    refused = [one for one in status.conditions if one.get("type") in _REFUSING and one.get("status") == "False"]
    if refused:
        return "Mend what is refused and push again."
    if digest := str(status.held_prune.get("digest") or ""):
        return f"Deletions wait for a person: belay confirm {digest[:12]}, or belay rollback."
    if any(one.get("code") == PassCode.POLICY_HELD_BACK for one in status.diagnostics):
        return "Narrow the policy, or raise the budget, and push again."
    applied = next((one for one in status.conditions if one.get("type") == "Applied"), {})
    if applied.get("reason") == EXCEPT_REFUSED:
        return "Mend the documents (belay validate) and push again."
    return "Mend the object, or what refuses it (belay status)." if applied.get("reason") == API_REFUSES else ""


def _ask(server: str | None, kubeconfig: str | None, context: str | None) -> str:
    """Ask for the fetch; why that was not possible, or empty."""
    from belay.engine.cli.server_client import NoServer, ask_fetch
    from belay.engine.errors import InputError

    try:
        ask_fetch(server=server, kubeconfig=kubeconfig, context=context)
    except (NoServer, InputError) as error:
        return str(error).rstrip(".")
    return ""


def _wanted(name: str | None, kubeconfig: str | None, context: str | None) -> WantedRevision:
    """The commit that is meant.

    Raises:
        InputError: it is not pushed, or none can be found.
    """
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.errors import InputError

    try:
        clone = Clone(".")
    except InputError:
        return WantedRevision(name or _newest(kubeconfig, context), lambda later: False)
    if name is not None:
        try:
            commit = clone.resolve(name)
        except InputError:
            # a commit that was not fetched to here
            return WantedRevision(name, lambda later: False)
    else:
        commit = clone.head()
        if not clone.pushed(commit):
            raise InputError(f"{commit[:12]}, which is checked out here, is on no remote branch",
                             where=str(clone.root), hint="Push it (git push), or name a revision.")  # fmt: skip
    return WantedRevision(commit, lambda later: later != "" and clone.contains(later, commit))


def _newest(kubeconfig: str | None, context: str | None) -> str:
    """The newest commit of the branch that the main shard's controller follows."""
    from belay.engine.errors import InputError
    from belay.engine.kube import CONFIGMAP, Kube
    from belay.engine.observe.live import with_kube
    from belay.engine.wire import names, sourceinfo

    async def read(kube: Kube) -> sourceinfo.FollowedRepository | None:
        found = (await kube.list(CONFIGMAP, names.SYSTEM, f"{ABOUT_LABEL}=source")).items
        main = [one for one in found if one["metadata"]["name"] == names.SOURCE]
        return sourceinfo.parse(main[0]) if main else None

    following = with_kube(kubeconfig, read, context=context)
    hint = "Name the revision, or go to the clone of the state repository."
    if following is None or not following.url:
        raise InputError("the cluster does not say which repository it follows", hint=hint)
    reference = f"refs/heads/{following.branch}" if following.branch else "HEAD"
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--quiet", "--", following.url, reference],
            capture_output=True, text=True, timeout=_GIT_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"git cannot ask the repository ({type(error).__name__})", hint=hint) from error
    commit = done.stdout.split("\t")[0]
    if done.returncode or not commit:
        raise InputError(f"its newest commit cannot be read from here: git ls-remote ends with {done.returncode}",
                         where=following.branch or "HEAD", hint=hint)  # fmt: skip
    return commit
