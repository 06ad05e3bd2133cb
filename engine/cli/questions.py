"""Verbs that only read: folders, files or a live cluster."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from belay.engine.cli.codes import KINDS, PUBLISHED_KINDS, KindOrCode, canonical_fault, code_lines, code_rows
from belay.engine.cli.inputs import cluster_items, left_out, plan_cluster
from belay.engine.cli.invocation import cluster_options, fails_clearly, output_option
from belay.engine.cli.known_names import complete_row, completes

if TYPE_CHECKING:
    from belay.engine.cli.forecast import Forecast
    from belay.engine.documents import Desired
    from belay.engine.model.plan import Plan


@click.command(short_help="Check a state repository. Exit 1 on errors.")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--policies", metavar="DIR", multiple=True, help="Policies laid over the tree's own.")
@click.option("--cluster", metavar="FILE|live", help="Check selectors, queues, nodes and chips against a cluster, too.")
@click.option(
    "--crds",
    metavar="PATH",
    multiple=True,
    help="A file or folder of CustomResourceDefinitions: rows of kind WorkloadKind are checked against them.",
)
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@output_option()
@fails_clearly
def validate(
    directory: str | None,
    policies: tuple[str, ...],
    cluster: str | None,
    crds: tuple[str, ...],
    kubeconfig: str | None,
    output: str,
) -> None:
    """Check every document of a state repository and play the tests of its fault policies; all findings at
    file:line:col. Exit 1 on errors or warnings, and where there is no document at all.

    Without DIR it is the repository whose clone one stands in.

    Examples: belay validate; belay validate state
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.summary import validation_summary
    from belay.engine.replay.cluster_file import read_definitions
    from belay.engine.replay.offline import validated

    items = cluster_items(cluster, None, kubeconfig)[0] if cluster else None
    definitions = [item for path in crds for item in read_definitions(path)]
    tree = _repository_here() if directory is None else directory
    loaded = validated(tree, policies, items, time.time(), definitions)
    errors = sum(d.severity == "error" for d in loaded.diagnostics)
    warnings = sum(d.severity == "warning" for d in loaded.diagnostics)
    if output in ("json", "yaml"):
        show.document({"errors": errors, "warnings": warnings, "diagnostics": loaded.diagnostics}, output)
    else:
        for finding in loaded.diagnostics:
            show.text(str(finding), hang=4)
        click.echo(validation_summary(loaded), err=bool(errors or warnings))
    sys.exit(1 if errors or warnings or not loaded.good else 0)


def _repository_here() -> str:
    """The state repository whose clone one stands in. Raises InputError where there is none."""
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.errors import InputError

    try:
        return str(Clone(".").folder)
    except InputError as error:
        raise InputError(error.message, where=error.where, hint="Name it: belay validate DIR",
                         code=error.code) from error  # fmt: skip


@click.command(short_help="Show what the next pass does, why, and the outcome.")
@cluster_options
@click.option("--explain", is_flag=True, help="Add the scores of every candidate node.")
@click.option("--exit-code", is_flag=True, help="Exit 1 when the plan has actions or deferred ones.")
@click.option("--now-only", is_flag=True, help="Plan the next pass only; do not simulate its outcome.")
@output_option()
@fails_clearly
def plan(explain: bool, exit_code: bool, now_only: bool, output: str, **inputs: Any) -> None:
    """Show what the next pass does, and why; then the outcome once nothing is left to do.

    The outcome is simulated on a copy: where each job is placed, or why it waits and the way out; which pods are
    evicted and the work lost with them; what is pruned (field ``outcome``). Exit 1 where a document is refused.

    Examples: belay plan --desired .; belay plan --desired . --cluster cluster.yaml --explain
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.summary import outcome_table, plan_table
    from belay.engine.replay.offline import plan_offline

    items, clock, now = cluster_items(inputs["cluster"], inputs["now"], inputs["kubeconfig"], inputs["context"])
    live = inputs["cluster"] == "live"
    result, _, desired = plan_offline(
        items, tree=inputs["desired"], overlays=inputs["policies"], now=now, clock=clock, live=live
    )
    outcome, why = (None, "") if now_only else _forecast(result, desired, items)
    if output in ("json", "yaml"):
        more = {} if now_only else {"outcome": outcome}
        show.document({**result.document(explain=explain), **more}, output)
    else:
        plan_table(result, explain=explain, wide=output == "wide")
        if outcome is not None:
            outcome_table(outcome, result)
    if why:
        click.echo(show.plain(f"the outcome was not simulated: {why}"), err=True)
    note = left_out(result, items, inputs["cluster"])
    if note:
        click.echo(show.plain(note), err=True)
    refused = any(finding.severity == "error" and finding.file for finding in result.diagnostics)
    sys.exit(1 if refused or (exit_code and (result.actions or result.deferred)) else 0)


@click.command(short_help="Show what Git would change. Exit 1 if it would.")
@cluster_options
@click.option("-o", "--output", type=click.Choice(("table", "json", "yaml")), default="table", show_default=True,
              help="A unified diff, or one document.")  # fmt: skip
@fails_clearly
def diff(output: str, **inputs: Any) -> None:
    """Show how the live objects would change to be as Git declares them. Exit 1 on differences.

    It compares with a folder, so --desired must be given: what the cluster records of Git is what it was made from.

    Example: belay diff --desired .
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.differences import changes, differences
    from belay.engine.errors import InputError

    if not inputs["desired"]:
        raise InputError("there is nothing to compare with", hint="Give --desired DIR, the state repository.")
    result, observed, *_ = plan_cluster(**inputs)
    found = changes(result, observed)
    if output in ("json", "yaml"):
        show.document({"changes": found, "diagnostics": result.diagnostics}, output)
        sys.exit(1 if found else 0)
    lines, colours = differences(found), show.coloured(sys.stdout)
    for line in lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1]) if colours else None
        click.secho(show.plain(line), fg=style)
    if not lines:
        click.echo("no differences")
    for finding in result.diagnostics:
        click.echo(show.plain(str(finding)), err=True)
    sys.exit(1 if lines else 0)


@click.command(short_help="Say why a job, node, queue, … is as it is, or what a code means.")
@click.argument("kind", type=KindOrCode(), metavar="KIND|CODE")
@click.argument("name", metavar="[NAME]", required=False, shell_complete=complete_row)
@cluster_options
@click.option("-o", "--output", type=click.Choice(("text", "yaml", "json")), default="text", show_default=True)
@fails_clearly
def explain(kind: str, name: str | None, output: str, **inputs: Any) -> None:
    """Say why a pod, job, chip, node, link, order, queue, pool, policy or revision is as it is, and what comes next; or
    what a code means and what to do.

    NAME is NODE/CHIP for a chip (node-1/Ascend910-3 or node-1/3), NAMESPACE/NAME or NAME for pods and jobs,
    the name of the KVLink for a link. An order (NODE/CHIP) is explained from commit and signer to what the agent did.
    Queues, pools, policies and revisions are explained by what the engine publishes, as of its last pass.

    CODE is the word in brackets at the end of an error or a finding, or the reason of a condition, an Event or a
    waiting job; it needs no cluster. Or it is a fault code (80C98001): what it says, its level and who sets that, what
    Belay does on it, and which chips have it; where no cluster answers, as the shipped tables have it.

    Examples: belay explain job default/llm; belay explain chip node-3/4; belay explain queue research;
    belay explain revision 4f2c91a; belay explain TopologyNotMet; belay explain 80C98001
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.narrative import narrate
    from belay.engine.cli.served import fault_facts, served_explanation

    if kind not in KINDS:
        if name is not None:
            raise click.UsageError(f"{kind} is a code, which takes no name.")
        if not canonical_fault(kind):
            _explain_code(kind, output)
            return
        kind, name = "code", kind
    if name is None:
        raise click.UsageError(f"Missing argument 'NAME': which {kind}?")
    if kind in PUBLISHED_KINDS:
        from belay.engine.cli.explained_status import explain_published

        body, now = explain_published(kind, name, inputs)
    elif kind == "code":
        body, now = fault_facts(name, inputs)
    elif (served := served_explanation(kind, name, inputs)) is not None:
        body, now = served, time.time()
    elif kind == "order":
        import msgspec

        from belay.engine.cli.order_chain import explain_order

        items, now, _ = cluster_items(inputs["cluster"], None, inputs["kubeconfig"], inputs["context"])
        body = msgspec.to_builtins(explain_order(name, items), str_keys=True)
    else:
        from belay.engine.cli.explanation import explain as explained

        result, observed, desired, _ = plan_cluster(**inputs, about=name if kind in ("job", "pod") else "")
        body, now = explained(kind, name, result, observed, desired), result.now
    if output == "text":
        narrate(kind, body, sys.stdout, now)
    else:
        show.document(body, output)


def _explain_code(code: str, output: str) -> None:
    from belay.engine.cli import output as show

    if output != "text":
        show.document(code_rows(code), output)
        return
    for line in code_lines(code_rows(code)):
        show.text(line, hang=14)


@click.command(short_help="Derive recorded passes again and compare.")
@click.argument("recording", nargs=-1, required=True, metavar="FILE...")
@output_option()
@fails_clearly
def replay(recording: tuple[str, ...], output: str) -> None:
    """Derive recorded passes again and compare byte for byte. Exit 1 when one differs.

    Example: belay replay passes/main-0001.json.gz
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.progress import progress
    from belay.engine.model.times import rfc3339
    from belay.engine.replay.recording import replay as again
    from belay.engine.replay.summary import SUFFIX as FIGURES

    results = []
    # figures lie beside recordings, where a pattern of the shell finds them too
    recording = tuple(file for file in recording if not file.endswith(FIGURES)) or recording
    with progress("replaying", len(recording)) as step:
        for file in recording:
            results.append(again(Path(file)))
            step(note=Path(file).name)
    if output in ("json", "yaml"):
        show.document(results, output)
    else:
        columns = ("file", "now", "recorded", "derived", "same")
        rows = [[rfc3339(r.now) if c == "now" else getattr(r, c) for c in columns] for r in results]
        show.table(columns, rows, now=time.time())
        for result in results:
            if result.why:
                click.echo(show.plain(f"{result.file}: {result.why}"), err=True)
        click.echo(f"{sum(r.same for r in results)} of {len(results)} the same")
    sys.exit(0 if all(r.same for r in results) else 1)


@click.command(short_help="Play a cluster forward: what if this happened?")
@cluster_options
@click.option(
    "--timeline", metavar="FILE", help="What happens to the cluster: a list of events (engine/simulate/README.md)."
)
@click.option("--kill", multiple=True, metavar="NODE", shell_complete=completes("node"),
              help="This node dies at the beginning; may be given again.")  # fmt: skip
@click.option("--drain", multiple=True, metavar="NODE", shell_complete=completes("node"),
              help="This node is drained, as `belay drain` does; may be given again.")  # fmt: skip
@click.option("--fault", multiple=True, metavar="NODE/CHIP[=CODE]", shell_complete=completes("chip"),
              help="This chip reports a fault (80C98001); may be given again.")  # fmt: skip
@click.option("--for", "duration", metavar="DURATION", help="How long, e.g. 2h. Default: until nothing is left to do.")
@click.option("--seed", type=int, default=0, show_default=True, help="Orders what happens at one moment.")
@output_option()
@fails_clearly
def simulate(
    output: str, timeline: str | None, kill: tuple[str, ...], drain: tuple[str, ...], fault: tuple[str, ...],
    duration: str | None, seed: int, **inputs: Any,
) -> None:  # fmt: skip
    """Play a copy of a cluster forward on a virtual clock: plan, act, let the rest react, until nothing happens.

    Nodes, kubelets, agents and controllers are simulated; every node is assumed to have an agent that obeys its orders.

    The last sentence says which jobs lose pods, for how long, and what stays out of service.

    Examples: belay simulate --kill node-2; belay simulate --drain node-3 --fault node-1/3 --desired .;
    belay simulate --timeline faults.yaml --for 2h
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.invocation import seconds
    from belay.engine.cli.simulation import simulate_cluster, simulation_table
    from belay.engine.cli.what_if import asked, closing_sentence

    items, clock, now = cluster_items(inputs["cluster"], inputs["now"], inputs["kubeconfig"], inputs["context"])
    outcome, findings = simulate_cluster(
        items, tree=inputs["desired"], overlays=inputs["policies"], timeline=timeline, now=now, clock=clock,
        live=inputs["cluster"] == "live", duration=seconds(duration, "--for"), seed=seed,
        what_if=asked(kill, drain, fault),
    )  # fmt: skip
    if output in ("json", "yaml"):
        body = {**outcome.document(), "diagnostics": findings, "summary": closing_sentence(outcome)}
        show.document(body, output)
        return
    simulation_table(outcome)
    for finding in findings:
        click.echo(show.plain(str(finding)), err=True)


def _forecast(result: Plan, desired: Desired, items: list[dict[str, Any]]) -> tuple[Forecast | None, str]:
    """The outcome of a plan, or why it cannot be simulated."""
    from belay.engine.cli.forecast import forecast
    from belay.engine.cli.invocation import debugging
    from belay.engine.cli.progress import progress

    try:
        with progress("simulating the outcome", plain=False):
            found = forecast(result, desired, items)
    except Exception as error:  # the plan itself is good, whatever the copy of a strange cluster does
        if debugging():
            raise
        return None, " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return found, "" if found is not None else "no node of the cluster has a device report"


@click.command(short_help="Check signatures and revisions of exported objects.")
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIR...")
@click.option("--keys", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="The engine's public keys (*.pub). Without: seals are not checked.")  # fmt: skip
@click.option("--signers", metavar="FILE", type=click.Path(exists=True, path_type=Path),
              help="Who may sign commits: allowed signers (SSH) or public keys (GnuPG).")  # fmt: skip
@output_option()
@fails_clearly
def verify(files: tuple[str, ...], keys: Path | None, signers: Path | None, output: str) -> None:
    """Check, offline, the chain from signed commits over policies to orders in what
    `kubectl get configmaps -A -o yaml` printed. Exit 1 when a link does not hold.

    Example: belay verify configmaps.yaml --keys keys --signers allowed_signers
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.order_chain import verify as checked
    from belay.engine.replay.cluster_file import read_cluster

    paths = [
        str(path) for name in files for path in (sorted(Path(name).glob("*.*")) if Path(name).is_dir() else [name])
    ]
    checks = checked([item for path in paths for item in read_cluster(path)], keys, signers)
    if output in ("json", "yaml"):
        show.document(checks, output)
    else:
        show.table(("object", "check", "result"), [[row.object, row.check, row.problem or "ok"] for row in checks])
    if not checks:
        click.echo("nothing to check: no belay-revisions, belay-policy-* or belay-orders-* among the objects", err=True)
    sys.exit(1 if not checks or any(row.problem for row in checks) else 0)


VERBS = (validate, plan, diff, explain, verify, replay, simulate)
