"""Verbs that ask: they read folders, files or a live cluster, answer, and change nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.invocation import Kinds, cluster_options, fails_clearly, output_option

if TYPE_CHECKING:
    from engine.documents import Desired
    from engine.model.cluster import Observed
    from engine.model.plan import Plan

_GET = ("nodes", "chips", "jobs", "faults", "vnpus", "pools", "links")


@click.command(short_help="Check a state repository. Exit 1 on errors.")
@click.argument("directory", metavar="DIR")
@click.option("--policies", metavar="DIR", multiple=True, help="Policies laid over the tree's own.")
@output_option()
@fails_clearly
def validate(directory: str, policies: tuple[str, ...], output: str) -> None:
    """Check every document of a state repository and play the tests of its fault policies; all findings at
    file:line:col. Exit 1 on errors or warnings.
    """
    from engine import show
    from engine.offline import validated
    from engine.summary import validation_summary

    loaded = validated(directory, policies)
    errors = sum(d.severity == "error" for d in loaded.diagnostics)
    warnings = sum(d.severity == "warning" for d in loaded.diagnostics)
    if output in ("json", "yaml"):
        show.document({"errors": errors, "warnings": warnings, "diagnostics": loaded.diagnostics}, output)
    else:
        for finding in loaded.diagnostics:
            click.echo(show.plain(str(finding)))
        click.echo(validation_summary(loaded), err=bool(errors or warnings))
    sys.exit(1 if errors or warnings else 0)


@click.command()
@cluster_options
@click.option("--explain", is_flag=True, help="Add the scores of every candidate node.")
@click.option("--exit-code", is_flag=True, help="Exit 1 when the plan has actions or deferred ones.")
@output_option()
@fails_clearly
def plan(explain: bool, exit_code: bool, output: str, **inputs: Any) -> None:
    """Show what the next pass would do, and why."""
    from engine import show
    from engine.summary import plan_table

    result, _, _ = _plan(**inputs)
    if output in ("json", "yaml"):
        show.document(result.document(explain=explain), output)
    else:
        plan_table(result, explain=explain, wide=output == "wide")
    sys.exit(1 if exit_code and (result.actions or result.deferred) else 0)


@click.command(short_help="Show what Git would change. Exit 1 if it would.")
@cluster_options
@fails_clearly
def diff(**inputs: Any) -> None:
    """Show how the live objects would change to be as Git declares them. Exit 1 on differences."""
    from engine import show
    from engine.errors import InputError
    from engine.summary import differences

    if not inputs["desired"]:
        raise InputError("there is nothing to compare with", hint="Give --desired DIR, the state repository.")
    result, observed, _ = _plan(**inputs)
    lines, colours = differences(result, observed), show.coloured(sys.stdout)
    for line in lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1]) if colours else None
        click.secho(show.plain(line), fg=style)
    for finding in result.diagnostics:
        click.echo(show.plain(str(finding)), err=True)
    sys.exit(1 if lines else 0)


@click.command(short_help="Show repository, pools and what is held back.")
@click.option("-w", "--watch", is_flag=True, help="Stay and print again on every change.")
@click.option("--kubeconfig", metavar="FILE")
@output_option()
@fails_clearly
def status(watch: bool, kubeconfig: str | None, output: str) -> None:
    """Show the repository's state, the pools, and what is held back."""
    from engine.summary import show_status

    show_status(kubeconfig, output, watch)


@click.command()
@click.argument("what", type=Kinds(_GET))
@cluster_options
@output_option()
@fails_clearly
def get(what: str, output: str, **inputs: Any) -> None:
    """List nodes, chips, jobs, faults, vnpus, pools or links."""
    from engine import answers, show

    result, observed, _ = _plan(**inputs)
    answer = answers.GET[what](result, observed)
    if output in ("json", "yaml"):
        show.document(answer.rows, output)
        return
    if not answer.rows:
        click.echo(f"no {what} found", err=True)
    columns = (*answer.columns, *(answer.wide if output == "wide" else ()))
    show.table(columns, [[row.get(column) for column in columns] for row in answer.rows])


@click.command(short_help="Say why a pod, job, chip, node or link is as it is.")
@click.argument("kind", type=click.Choice(["pod", "job", "chip", "node", "link"], case_sensitive=False))
@click.argument("name", metavar="NAME")
@cluster_options
@click.option("-o", "--output", type=click.Choice(("yaml", "json")), default="yaml", show_default=True)
@fails_clearly
def explain(kind: str, name: str, output: str, **inputs: Any) -> None:
    """Say why a pod, job, chip, node or link is as it is, and what comes next.

    NAME is NODE/CHIP for a chip (node-1/Ascend910-3 or node-1/3), NAMESPACE/NAME or NAME for pods and jobs,
    the name of the KVLink for a link.
    """
    from engine import show
    from engine.explanation import explain as explained

    result, observed, desired = _plan(**inputs, about=name if kind in ("job", "pod") else "")
    show.document(explained(kind, name, result, observed, desired), output)


@click.command(short_help="Derive recorded passes again and compare.")
@click.argument("recording", nargs=-1, required=True, metavar="FILE...")
@output_option()
@fails_clearly
def replay(recording: tuple[str, ...], output: str) -> None:
    """Derive recorded passes again and compare byte for byte. Exit 1 when one differs."""
    from engine import show
    from engine.recording import replay as again

    results = [again(Path(file)) for file in recording]
    if output in ("json", "yaml"):
        show.document(results, output)
    else:
        columns = ("file", "now", "recorded", "derived", "same")
        show.table(columns, [[getattr(r, c) for c in columns] for r in results])
    sys.exit(0 if all(r.same for r in results) else 1)


@click.command(short_help="Play a cluster forward: what if this happened?")
@cluster_options
@click.option(
    "--timeline", metavar="FILE", help="What happens to the cluster: a list of events (engine/simulate/README.md)."
)
@click.option("--for", "duration", metavar="DURATION", help="How long, such as 2h. Default: until everything is quiet.")
@click.option("--seed", type=int, default=0, show_default=True, help="Orders what happens at one moment.")
@output_option()
@fails_clearly
def simulate(output: str, timeline: str | None, duration: str | None, seed: int, **inputs: Any) -> None:
    """Play a cluster forward on a copy with a virtual clock: plan, act, let the rest move, until nothing happens.

    Nodes, kubelets, agents and controllers are simulated; every node is taken to have an agent that obeys its orders.
    """
    from engine import show
    from engine.invocation import seconds
    from engine.whatif import story, story_table

    items, clock, now = _cluster(inputs["cluster"], inputs["now"], inputs["kubeconfig"])
    outcome, findings = story(
        items, tree=inputs["desired"], overlays=inputs["policies"], timeline=timeline, now=now, clock=clock,
        live=inputs["cluster"] == "live", duration=seconds(duration, "--for"), seed=seed,
    )  # fmt: skip
    if output in ("json", "yaml"):
        show.document({**outcome.document(), "diagnostics": findings}, output)
        return
    story_table(outcome)
    for finding in findings:
        click.echo(show.plain(str(finding)), err=True)


@click.group(short_help="Try a fault policy on recorded history.")
def policy() -> None:
    """Try a fault policy before it is in force."""


@policy.command("test", short_help="What would a policy have done? Exit 1 if anything else.")
@click.argument("policy_path", metavar="POLICY")
@click.option(
    "--against",
    "recordings",
    metavar="RECORDING",
    multiple=True,
    required=True,
    help="Recorded passes, a folder of them, or a folder of `kubectl get … -o json` Lists; may be given again.",
)
@click.option("--desired", metavar="DIR", help="For Lists: the state repository of their time.")
@click.option("--policies", metavar="DIR", multiple=True, help="For Lists: policies laid over; may be given again.")
@output_option()
@fails_clearly
def policy_test(
    policy_path: str, recordings: tuple[str, ...], desired: str | None, policies: tuple[str, ...], output: str
) -> None:
    """Replay recorded history under the policies of its time and with POLICY enforced over them: which actions it
    would have avoided, which it would have added, and which it would have missed. Exit 1 when there are any.
    """
    from engine import show
    from engine.backtest import compare, policy_files
    from engine.summary import backtest_table

    verdict = compare(policy_files(policy_path), recordings, tree=desired, overlays=policies)
    if output in ("json", "yaml"):
        show.document(verdict, output)
    else:
        backtest_table(verdict, wide=output == "wide")
    sys.exit(1 if verdict.differs else 0)


def _plan(
    desired: str | None,
    policies: tuple[str, ...],
    cluster: str,
    now: str | None,
    kubeconfig: str | None,
    about: str = "",
) -> tuple[Plan, Observed, Desired]:
    from engine.offline import plan_offline

    items, clock, now = _cluster(cluster, now, kubeconfig)
    return plan_offline(
        items, tree=desired, overlays=policies, now=now, clock=clock, live=cluster == "live", about=about
    )


def _cluster(cluster: str, now: str | None, kubeconfig: str | None) -> tuple[list[dict[str, Any]], float, str | None]:
    """The objects, the clock, and the time to plan for (None: the newest report's)."""
    import time

    if cluster == "live":
        from engine.live import read_live
        from engine.model.times import rfc3339

        items, clock = read_live(kubeconfig), time.time()
        return items, clock, now or rfc3339(clock)
    from engine.clusterfile import read_cluster

    return read_cluster(cluster), time.time(), now


VERBS = (validate, plan, diff, status, get, explain, replay, simulate, policy)
