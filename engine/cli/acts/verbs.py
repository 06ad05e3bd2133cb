"""The verbs: one command for each ordinary act, made as a commit of the state repository."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from belay.engine.cli.invocation import WholeNumber, fails_clearly
from belay.engine.cli.known_names import completes

if TYPE_CHECKING:
    from belay.engine.cli.acts.edits import RepositoryEdit

_TARGETS = completes("node", "chip")
#: Isolations of nodes or chips that the cluster has not (engine/model/codes/findings: FindingCode.COVERS_NOTHING).
OF_NOTHING = ("CoversNothing",)


def act_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where the clone is, whether to commit and push, and what the commit says."""
    for option in (
        click.option("--repo", metavar="DIR", default=".", help="The clone of the state repository. Default: here."),
        click.option("--why", metavar="TEXT", help="The body of the commit's message."),
        click.option("--dry-run", is_flag=True, help="Print the diff, findings and plan; commit nothing."),
        click.option(
            "--cluster",
            metavar="FILE|live|none",
            help="Where the change is planned before it is committed. Default: live, if one is configured.",
        ),
        click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster."),
        click.option("--no-push", is_flag=True, help="Commit, and leave pushing to you."),
        click.option(
            "--pull-request",
            is_flag=True,
            help="Propose the commit as a pull or merge request. Also where "
            "the branch is protected, and by: git config belay.pullRequests true.",
        ),
    ):
        command = option(command)
    return command


@click.command(short_help="Take nodes or chips out of service, as a commit.")
@click.argument("targets", nargs=-1, required=True, metavar="NODE[/CHIPS]...", shell_complete=_TARGETS)
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown wherever the chips are shown.")
@click.option("--until", metavar="TIME", help="When it ends, such as 36h, 22:00, friday or 2026-12-24T18:00:00Z.")
@act_options
@fails_clearly
def isolate(targets: tuple[str, ...], reason: str, until: str | None, **options: Any) -> None:
    """Take nodes or chips out of service until they are released: an Isolation is added and pushed.

    A whole node is cordoned and its gangs are moved whole (docs/acts.md). A node or chip that the cluster has not is
    refused, unless with --cluster none. Examples: belay isolate node-3 --reason
    "fan, ticket 4711"; belay isolate node-3/4-5 --reason "ECC" --until 36h
    """
    from belay.engine.cli.acts import isolations
    from belay.engine.cli.acts.targets import target

    named = [target(text) for text in targets]
    act(options, lambda files: isolations.isolate(files, named, reason, _moment(until)), refused=OF_NOTHING)


@click.command(short_help="Empty nodes for maintenance, as a commit.")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=completes("node"))
@click.option("--by", metavar="TIME", help="When they must be empty, such as 22:00 or 4h; refused where running work "
              "cannot have left by then.")  # fmt: skip
@click.option("--reason", default="maintenance", show_default=True, metavar="TEXT", help="Why.")
@click.option("--until", metavar="TIME", help="When it ends, such as 36h, 22:00, friday or 2026-12-24T18:00:00Z.")
@act_options
@fails_clearly
def drain(nodes: tuple[str, ...], by: str | None, reason: str, until: str | None, **options: Any) -> None:
    """Empty whole nodes: they are cordoned, and their gangs move whole to other nodes, within the safety budget.

    It begins when the commit is in force. With --by the cluster is simulated first: the command says when the last pod
    has ended, and commits nothing where that is later, with the pods, the budgets and the time that is enough.

    `belay release NODE` gives them back. It is an Isolation, which `kubectl drain` is not: that strands half a gang.

    Example: belay drain node-3 --by 22:00 --reason "new optics"
    """
    from belay.engine.cli.acts import isolations
    from belay.engine.cli.acts.targets import target
    from belay.engine.errors import InputError
    from belay.engine.model.times import rfc3339

    named = [target(text) for text in nodes]
    for one in named:
        if one.chips:
            raise InputError("chips are isolated, nodes are drained", where=str(one), hint=f"belay isolate {one}")
    end, deadline = _moment(until), _moment(by, "--by")
    if deadline is not None and end is not None and end <= deadline:
        raise InputError("the work would end before it begins", where=f"--until {until}", hint="Give a time after --by")
    if deadline is not None and options["cluster"] == "none":
        raise InputError("when nodes are empty is foretold from a cluster", where="--by", hint="--cluster FILE|live")
    nodes = tuple(one.node for one in named)

    def promise(after: Mapping[str, bytes]) -> str:
        from belay.engine.cli.acts.deadline import finish
        from belay.engine.cli.acts.deadline import promise as promised

        if deadline is None:
            return finish(after, nodes, options["cluster"], options["kubeconfig"])
        return promised(after, nodes, deadline, options["cluster"], options["kubeconfig"])

    reason = f"{reason}, empty by {rfc3339(deadline)}" if deadline is not None else reason
    act(
        options,
        lambda files: isolations.isolate(files, named, reason, end),
        promise=promise if options["cluster"] != "none" else None,
        refused=OF_NOTHING,
    )


@click.command(short_help="Give isolated nodes or chips back, as a commit.")
@click.argument("targets", nargs=-1, required=True, metavar="NODE[/CHIPS]...", shell_complete=_TARGETS)
@act_options
@fails_clearly
def release(targets: tuple[str, ...], **options: Any) -> None:
    """Take nodes or chips out of the Isolations that name them; an Isolation of nothing is removed.

    Chips are released as they were isolated: node-3/4-5 together, if one Isolation names both.

    Example: belay release node-3/4-5
    """
    from belay.engine.cli.acts import isolations
    from belay.engine.cli.acts.targets import target

    named = [target(text) for text in targets]
    act(options, lambda files: isolations.release(files, named, time.time()))


@click.command(short_help="Change how many pods a job has, as a commit.")
@click.argument("job", metavar="JOB", shell_complete=completes("job"))
@click.argument("replicas", type=WholeNumber(0, 100_000), metavar="N")
@click.option("--task", default="", metavar="NAME", help="The task of a job of Volcano's that has several.")
@act_options
@fails_clearly
def scale(job: str, replicas: int, task: str, **options: Any) -> None:
    """Change how many pods a job has: the workers of an AscendJob, the replicas of a Deployment, a task of Volcano's.

    JOB is NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME of a document in the repository. An AscendJob whose pods had to
    start together still has to.

    Example: belay scale default/chat 4
    """
    from belay.engine.cli.acts import jobs

    act(options, lambda files: jobs.scale(files, job, replicas, task))


@click.command(short_help="Change the priority of a job, as a commit.")
@click.argument("job", metavar="JOB", shell_complete=completes("job"))
@click.argument("priority", metavar="CLASS")
@act_options
@fails_clearly
def priority(job: str, priority: str, **options: Any) -> None:
    """Give a job another PriorityClass. Of a Deployment the template changes, so its pods are rolled.

    A class that neither the repository nor the cluster has is refused, unless with --cluster none.

    Example: belay priority default/llm high --why "the paper is due"
    """
    from belay.engine.cli.acts import jobs
    from belay.engine.cli.acts.priorities import check_priority_class

    def change(files: Mapping[str, bytes]) -> RepositoryEdit:
        edit = jobs.prioritise(files, job, priority)
        check_priority_class(priority, files, options["cluster"], options["kubeconfig"])
        return edit

    act(options, change)


@click.command(short_help="Suspend a pool or job, as a commit.")
@click.argument("name", metavar="NAME", shell_complete=completes("job", "pool"))
@act_options
@fails_clearly
def suspend(name: str, **options: Any) -> None:
    """Suspend a NodePool (it takes no new pods), an AscendJob or a Job of Kubernetes (their pods end, and their chips
    are free). Other kinds are scaled.

    Example: belay suspend pretrain --why "the night belongs to evaluation"
    """
    from belay.engine.cli.acts import jobs

    act(options, lambda files: jobs.suspend(files, name, True))


@click.command(short_help="Resume a suspended pool or job, as a commit.")
@click.argument("name", metavar="NAME", shell_complete=completes("job", "pool"))
@act_options
@fails_clearly
def resume(name: str, **options: Any) -> None:
    """Resume what is suspended: a NodePool, an AscendJob or a Job of Kubernetes.

    Example: belay resume pretrain
    """
    from belay.engine.cli.acts import jobs

    act(options, lambda files: jobs.suspend(files, name, False))


@click.command(short_help="Go back to the documents of an earlier revision, as a commit.")
@click.argument("revision", default="", metavar="[REV]", shell_complete=completes("revision"))
@act_options
@fails_clearly
def rollback(revision: str, **options: Any) -> None:
    """Make desired/ and policies/ what they were at REV, in a new commit.

    Without REV it is the commit before the last one that changed them. History stays; other files are not touched.

    Examples: belay rollback; belay rollback 4f2c91a --why "the new layout starves inference"
    """
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.cli.acts.edits import RepositoryEdit

    clone = Clone(options["repo"])
    commit = clone.resolve(revision) if revision else clone.before_last_change()
    wanted, present = clone.at(commit), clone.at("HEAD")
    changed: dict[str, bytes | None] = {path: data for path, data in wanted.items() if present.get(path) != data}
    changed |= {path: None for path in present if path not in wanted}
    edit = RepositoryEdit(changed, f"Roll back to {commit[:12]}")
    act(options, lambda _: edit)


@click.command(short_help="Confirm deletions that wait for a person, as a commit.")
@click.argument("digest", metavar="DIGEST")
@act_options
@fails_clearly
def confirm(digest: str, **options: Any) -> None:
    """Confirm exactly the deletions that `belay status` shows with this DIGEST; the commit changes no file. Its first
    six digits are enough where the cluster can be asked; a digest with which nothing waits is refused. What is deleted
    is listed first, with --dry-run, too.

    To keep the objects instead, restore their documents: belay rollback.

    Example: belay confirm 3f9a41 --why "the old jobs have ended"
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.cli.acts.confirmation import confirmed
    from belay.engine.cli.acts.edits import RepositoryEdit
    from belay.engine.cli.acts.restoring import restoring

    found = confirmed(digest, options["cluster"], options["kubeconfig"])
    if found.note:
        click.echo(show.plain(found.note), err=True)
    for line in found.deleted:
        click.echo(show.plain(line))
    digest, clone = found.digest, Clone(options["repo"])
    edit = RepositoryEdit(
        {},
        f"Confirm deletions {digest[:8]}",
        lambda: restoring(clone, found.base),
        only_while="the objects are still there",
    )
    act(options, lambda _: edit, trailer=f"Belay-Confirm: {digest}")


@click.command(short_help="Declare running objects in Git as they are, as a commit.")
@click.argument("objects", nargs=-1, required=True, metavar="NAMESPACE/KIND/NAME...")
@act_options
@fails_clearly
def adopt(objects: tuple[str, ...], **options: Any) -> None:
    """Declare running objects in Git as they are: nothing of them changes, and from then on Git decides.

    What the API server and controllers added is left out of the document. Example: belay adopt default/Deployment/chat
    """
    from belay.engine.cli.acts.adoption import adopt
    from belay.engine.cli.acts.effects import NO_CLUSTER
    from belay.engine.cli.inputs import LIVE, cluster_items
    from belay.engine.errors import InputError

    if options["cluster"] == NO_CLUSTER:
        raise InputError("objects are adopted from a cluster", where="--cluster none", hint="--cluster FILE|live")
    items = cluster_items(options["cluster"] or LIVE, None, options["kubeconfig"])[0]
    act(options, lambda files: adopt(files, items, objects, options["kubeconfig"]))


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """``NAME=VALUE`` of an option that may be repeated. Raises InputError where one is none."""
    from belay.engine.errors import InputError

    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise InputError("a name, = and a value are wanted", where=f"{option} {text}")
        found[key] = value
    return found


VERBS = (isolate, drain, release, scale, priority, suspend, resume, rollback, confirm, adopt)


def act(
    options: Mapping[str, Any],
    change: Callable[[Mapping[str, bytes]], RepositoryEdit],
    trailer: str = "",
    promise: Callable[[Mapping[str, bytes]], str] | None = None,
    refused: Collection[str] = (),
) -> None:
    """Edit, check, show, plan, commit, push or propose; every step says what it did.

    ``promise`` and ``refused``: engine/cli/acts/prospects.py.
    """
    from dataclasses import replace
    from functools import partial

    from belay.engine.cli import output as show
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.cli.acts.proposals import RequestWords, branch_name, publication, publish, show_companions
    from belay.engine.cli.acts.prospects import Prospect
    from belay.engine.cli.acts.ways_back import way_back
    from belay.engine.errors import InputError

    clone = Clone(options["repo"])
    clone.check_whole()
    if not options["dry_run"]:
        clone.check_idle()
    how = publication(clone, options)
    files = clone.files()
    edit = change(files)
    edit = replace(edit, files={path: data for path, data in edit.files.items() if files.get(path) != data})
    if not edit.files and not trailer:
        raise InputError("nothing would change", where=edit.subject, code="NothingToChange")
    clone.check_clean(edit.files)
    if not options["dry_run"]:
        clone.check_author()  # before the plan, which can take its time
    prospect = Prospect(options, promise, refused)
    prospect.check(files, edit.files)
    _show_diff(clone.diff(edit.files))

    plan = prospect.plan(files, edit.files)
    for line in plan:
        click.echo(show.plain(line))
    show_companions(clone, how, options)

    if options["dry_run"]:
        branch = branch_name(clone, click.get_current_context())
        proposed = f"; it becomes a request of {branch}" if how.always else ""
        click.echo(f"not committed (--dry-run): {show.plain(edit.subject)}{proposed}")
        return
    parts = [edit.subject, options["why"] or "", trailer]
    commit = clone.commit(edit.files, "\n\n".join(part for part in parts if part))
    click.echo(f"committed {commit[:12]}: {show.plain(edit.subject)}")
    if options["no_push"]:
        click.echo("not pushed (--no-push): git push brings it into force")
        click.echo(f"take it back: {show.plain(way_back(edit, commit, pushed=False, clone=clone))}")
        return
    again = partial(prospect.again, clone, edit, plan)
    publish(clone, edit, commit, how, again, RequestWords(options["why"] or "", plan, trailer))


def _show_diff(diff: str) -> None:
    from belay.engine.cli import output as show

    colours = show.coloured(sys.stdout)
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1]) if colours else None
        click.secho(show.plain(line), fg=style)


def _moment(text: str | None, option: str = "--until") -> float | None:
    """A time, or a duration from now. Raises InputError where it is neither, or has gone by."""
    from belay.engine.cli.acts.moments import moment_to_come

    return None if text is None else moment_to_come(text, time.time(), option)
