"""The verb: `belay review`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from belay.engine.cli.invocation import fails_clearly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from belay.engine.cli.review.comparison import Review

_FAILS = ("errors", "warnings", "evictions", "prunes", "waiting")
_SUMMARY_LIMIT = 1024 * 1024


@click.command(
    context_settings={"auto_envvar_prefix": "BELAY_REVIEW"},
    short_help="Say on a pull request what a change does to the cluster.",
)
@click.option("--desired", metavar="DIR", default=".", show_default=True, help="State repository with the change.")
@click.option(
    "--base",
    metavar="REVISION|DIR",
    help="What it is merged into: a revision of the same clone, or a folder. Default: as CI says.",
)
@click.option("--policies", metavar="DIR", multiple=True, help="Policies laid over; may be given again.")
@click.option(
    "--cluster",
    metavar="FILE|live",
    help="What `kubectl get … -o json|yaml` printed, or the live cluster. Without: findings only.",
)
@click.option("--now", metavar="RFC3339", help="Default: the clock (live) or the newest report (FILE).")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@click.option("--post", is_flag=True, help="Comment on the request that this CI job runs for, or update the comment.")
@click.option("--key", default="default", show_default=True, help="Keeps comments of several clusters apart.")
@click.option(
    "--fail-on",
    type=click.Choice(_FAILS),
    multiple=True,
    default=("errors",),
    show_default=True,
    help="Exit 1 on these; may be given again.",
)
@click.option("--plain-http", is_flag=True, help="Send the token to an API without https too.")
@click.option("-o", "--output", type=click.Choice(("markdown", "json", "yaml")), default="markdown", show_default=True)
@fails_clearly
def review(output: str, post: bool, key: str, fail_on: tuple[str, ...], plain_http: bool, **inputs: Any) -> None:
    """Compare a change with what it is merged into: findings, jobs placed, moved or left waiting and why, pods evicted
    and chip-hours lost with them, objects pruned.

    Printed as Markdown. With --post it becomes a comment on the pull or merge request of GitHub, GitLab or Gitea whose
    CI runs this. Options may be given as $BELAY_REVIEW_DESIRED and the like too. The token is read from
    $BELAY_REVIEW_TOKEN, $GITHUB_TOKEN, $GITLAB_TOKEN or $GITEA_TOKEN.

    Example: belay review --desired . --base origin/main
    """
    import os
    import re

    from belay.engine import versions
    from belay.engine.cli import output as show
    from belay.engine.cli.forge_calls import checked_address
    from belay.engine.cli.review import ci
    from belay.engine.cli.review.comment import comment
    from belay.engine.errors import InputError

    if not re.fullmatch(r"[A-Za-z0-9._-]{1,63}", key) or "--" in key:
        raise InputError(f"{key!r} is not a key: at most 63 letters, digits, '.', '_' or '-'", where="--key")
    env = os.environ
    if post:  # before the work, so that a missing token is reported at once
        request = ci.request(env)
        request = request._replace(api=checked_address(request.api, plain=plain_http))
        token = ci.token(env, request.forge)
    found = _reviewed(env, **inputs)
    text = comment(found, key, commit=ci.commit(env), version=versions.version())
    if output == "markdown":
        click.echo(text, nl=False)
    else:
        show.document(found, output)
    _to_summary(env, text)
    if post:
        import asyncio

        from belay.engine.cli.review.forges import post as send

        posted = asyncio.run(send(request, token, text))
        click.echo(f"{'updated' if posted.updated else 'commented'}: {show.plain(posted.address)}", err=True)
    sys.exit(1 if any(_has(found, word) for word in fail_on) else 0)


def _reviewed(
    env: Mapping[str, str],
    *,
    desired: str,
    base: str | None,
    policies: tuple[str, ...],
    cluster: str | None,
    now: str | None,
    kubeconfig: str | None,
) -> Review:
    import contextlib
    import time

    from belay.engine.cli.review import ci
    from belay.engine.cli.review.base import tree_at
    from belay.engine.cli.review.comparison import review as compared
    from belay.engine.errors import InputError
    from belay.engine.observe.live import read_live
    from belay.engine.replay.cluster_file import read_cluster

    items, clock, live, notes = None, None, False, []
    if cluster is None:
        notes.append("no cluster was given (--cluster): findings only, nothing was planned")
    else:
        live, clock = cluster == "live", time.time()
        items = read_live(kubeconfig) if live else read_cluster(cluster)
    with contextlib.ExitStack() as stack:
        before, against = None, ""
        named = ci.MergeTarget(base, base) if base else ci.base(env)
        if base and Path(base).is_dir():
            before, against = base, base
        elif named is not None:
            try:
                before, against = stack.enter_context(tree_at(desired, named.revision)), named.name
            except InputError as error:
                if base:
                    raise
                notes.append(f"compared with nothing: {error}")
        else:
            notes.append("compared with nothing: --base names no revision, and this is no CI job of a request")
        if Path(desired).is_dir() and not _documents(desired) and not (before and _documents(before)):
            raise InputError(
                "holds neither desired/ nor policies/, so it is not a state repository", where=desired,
                hint="Name its root with --desired (or the input desired of the action).",
            )  # fmt: skip
        return compared(
            desired,
            before,
            cluster=items,
            overlays=policies,
            now=now,
            clock=clock,
            live=live,
            against=against,
            notes=notes,
        )


def _documents(folder: str) -> bool:
    """Whether there may be documents at all; a change that removes the last one leaves the folder out, not its base."""
    return any((Path(folder) / name).is_dir() for name in ("desired", "policies"))


def _has(found: Review, word: str) -> bool:
    match word:
        case "errors" | "warnings":
            return bool(found.count(word.removesuffix("s")))
        case "evictions":
            return bool(found.evicted)
        case "prunes":
            return bool(found.pruned)
        case _:
            return bool(found.outcomes("waiting"))


def _to_summary(env: Mapping[str, str], text: str) -> None:
    """The job's own page of GitHub and Gitea, which needs no token: requests from forks show the review there."""
    file = env.get("GITHUB_STEP_SUMMARY", "")
    if not file or len(text) > _SUMMARY_LIMIT:
        return
    try:
        with Path(file).open("a", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        click.echo(f"the job's summary cannot be written: {error.strerror}", err=True)


VERBS = (review,)
