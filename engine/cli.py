"""The command line: the verbs, nothing else. Heavy imports stay inside the commands.

Exit codes: 0 done, 1 findings or differences (validate, diff, plan --exit-code), 2 it could not be done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine import __version__
from engine.invocation import Kinds, cluster_options, fails_clearly, output_option

if TYPE_CHECKING:
    from engine.documents import Desired
    from engine.model.cluster import Observed
    from engine.model.plan import Plan

_GET = ("nodes", "chips", "jobs", "faults", "vnpus", "pools")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="belay", message="%(prog)s %(version)s")
def main() -> None:
    """Keep Ascend NPU clusters in the state that a Git repository declares."""


@main.command()
@fails_clearly
def version() -> None:
    """Print the version."""
    click.echo(f"belay {__version__}")


@main.command(short_help="Check a state repository. Exit 1 on errors.")
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


@main.command()
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


@main.command(short_help="Show what Git would change. Exit 1 if it would.")
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


@main.command(short_help="Show repository, pools and what is held back.")
@click.option("-w", "--watch", is_flag=True, help="Stay and print again on every change.")
@click.option("--kubeconfig", metavar="FILE")
@output_option()
@fails_clearly
def status(watch: bool, kubeconfig: str | None, output: str) -> None:
    """Show the repository's state, the pools, and what is held back."""
    from engine.summary import show_status

    show_status(kubeconfig, output, watch)


@main.command()
@click.argument("what", type=Kinds(_GET))
@cluster_options
@output_option()
@fails_clearly
def get(what: str, output: str, **inputs: Any) -> None:
    """List nodes, chips, jobs, faults, vnpus or pools."""
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


@main.command(short_help="Say why a pod, job, chip or node is as it is.")
@click.argument("kind", type=click.Choice(["pod", "job", "chip", "node"], case_sensitive=False))
@click.argument("name", metavar="NAME")
@cluster_options
@click.option("-o", "--output", type=click.Choice(("yaml", "json")), default="yaml", show_default=True)
@fails_clearly
def explain(kind: str, name: str, output: str, **inputs: Any) -> None:
    """Say why a pod, job, chip or node is as it is, and what comes next.

    NAME is NODE/CHIP for a chip (node-1/Ascend910-3 or node-1/3), NAMESPACE/NAME or NAME for pods and jobs.
    """
    from engine import answers, show

    result, observed, _ = _plan(**inputs, about=name if kind in ("job", "pod") else "")
    show.document(answers.explain(kind, name, result, observed), output)


@main.command(short_help="Derive recorded passes again and compare.")
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


@main.command(short_help="Play a cluster forward: what if this happened?")
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


@main.group(short_help="Try a fault policy on recorded history.")
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


@main.group(short_help="Make simulated nodes fail (sandbox only).", invoke_without_command=True)
@click.option(
    "--timeline", metavar="FILE", help="Play a story of faults; deploy/samples/faults-timeline.yaml shows all."
)
@click.option("--check", is_flag=True, help="Only read the story; needs no cluster.")
@click.option("--speed", type=click.FloatRange(0.01, 1000.0), default=1.0, show_default=True, help="Times as fast.")
@click.option("--kubeconfig", metavar="FILE")
@click.pass_context
@fails_clearly
def inject(ctx: click.Context, timeline: str | None, check: bool, speed: float, kubeconfig: str | None) -> None:
    """Make the sandbox's simulated nodes misbehave (sandbox only)."""
    if ctx.invoked_subcommand is not None:
        if timeline or check:
            raise click.UsageError("--timeline and --check stand alone.")
        return
    if timeline is None:
        raise click.UsageError("Give --timeline FILE, or one of the commands fault and node.")
    from engine.errors import InputError
    from engine.sandbox import play
    from engine.sandbox.timeline import read

    try:
        events = read(Path(timeline))
    except InputError as error:
        for line in error.message.split("\n") if not error.where else [str(error)]:
            click.echo(line, err=True)
        sys.exit(2)
    if not check:
        play.play(events, say=click.echo, speed=speed, kubeconfig=kubeconfig)
    last = f"{events[-1].at:g} s"
    click.echo(f"{timeline}: {len(events)} events, the last at {last}" + (", all sound" if check else ", all played"))


@inject.command("fault")
@click.argument("chip", metavar="NODE/CHIP")
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--network", is_flag=True, help="On the chip's network plane.")
@click.option("--clear", is_flag=True, help="Take the chip's faults away; a reset does so too.")
@click.option("--reset-fails", type=click.IntRange(0, 100), default=0, help="Let the next N resets fail.")
@click.option("--kubeconfig", metavar="FILE")
@fails_clearly
def inject_fault(
    chip: str, codes: tuple[str, ...], network: bool, clear: bool, reset_fails: int, kubeconfig: str | None
) -> None:
    """Put fault CODEs on a chip, e.g. `belay inject fault node-1/Ascend910-3 80C98001`."""
    from engine.sandbox.inject import fault

    click.echo(fault(chip, codes, network=network, clear=clear, reset_fails=reset_fails, kubeconfig=kubeconfig))


@inject.command("node")
@click.argument("node")
@click.argument("state", type=click.Choice(["ready", "not-ready"]))
@click.option("--kubeconfig", metavar="FILE")
@fails_clearly
def inject_node(node: str, state: str, kubeconfig: str | None) -> None:
    """Stop or start a simulated node's heartbeat."""
    from engine.sandbox.inject import node_ready

    click.echo(node_ready(node, state == "ready", kubeconfig=kubeconfig))


@main.command(short_help="Print JSON Schemas of the kinds, for editors.")
@click.argument("kind", required=False)
@click.option("--write", metavar="DIR", help="Write every schema into a folder.")
@fails_clearly
def schema(kind: str | None, write: str | None) -> None:
    """Print the JSON Schema of a kind (for editors), or list the kinds."""
    from engine.errors import InputError
    from engine.load.schemas import schema_text, schemas

    found = schemas()
    if write:
        folder = Path(write)
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in found.items():
            (folder / name).write_bytes(schema_text(body))
        click.echo(f"{len(found)} schemas in {folder}")
    elif kind is None:
        for name in sorted(found):
            click.echo(name.removesuffix(".json"))
    elif f"{kind.lower()}.json" in found:
        click.echo(schema_text(found[f"{kind.lower()}.json"]), nl=False)
    else:
        raise InputError(f"no schema for kind {kind!r}", hint="`belay schema` lists them.")


@main.command(short_help="Print a completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@fails_clearly
def completion(shell: str) -> None:
    """Print a completion script: eval "$(belay completion bash)"."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is not None:
        click.echo(complete(main, {}, "belay", "_BELAY_COMPLETE").source())


@main.command(short_help="Run the sandbox until Ctrl-C.")
@click.option("--nodes", type=click.IntRange(1, 1000), default=8, show_default=True, help="Simulated nodes.")
@click.option("--product", metavar="P", default="atlas-800t-a2", show_default=True, help="A name in policies/products.")
@click.option("--state", metavar="DIR", help="State repository to start from (default: the shipped sample).")
@click.option("--data", metavar="DIR", help="Where everything is kept; state survives a restart with the same DIR.")
@click.option("--time-scale", type=click.FloatRange(0.001, 1.0), envvar="BELAY_TIME_SCALE", help="Shortens waits.")
@fails_clearly
def up(nodes: int, product: str, state: str | None, data: str | None, time_scale: float | None) -> None:
    """Run the sandbox: simulated cluster, engine and Git remote in one command, until Ctrl-C."""
    from engine.sandbox.up import main as run

    sys.exit(run(nodes=nodes, product=product, state=state, data=data, time_scale=time_scale))


@main.command(short_help="Run the whole loop step by step, then end.")
@fails_clearly
def demo() -> None:
    """Run the main job on the embedded default, step by step; ends by itself."""
    from engine.sandbox.demo import main as run

    sys.exit(run())


@main.command(short_help="Watch Git and Kubernetes, wake the workers.")
@click.option("--kubeconfig", metavar="FILE")
@click.option("--source", metavar="FILE", help="A Source document: repository, branch, signatures; edits take effect.")
@fails_clearly
def controller(kubeconfig: str | None, source: str | None) -> None:
    """Watch Git and Kubernetes and wake the workers (settings: BELAY_* in the environment)."""
    from engine.controller import main as run

    sys.exit(run(kubeconfig, source))


@main.command(short_help="Run passes and actions (a Celery worker).")
@fails_clearly
def worker() -> None:
    """Run passes and actions (a Celery worker; settings: BELAY_* in the environment)."""
    from engine.tasks import main as run

    sys.exit(run())


@main.command(short_help="Serve webhook, metrics, health, status page.")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT")
@fails_clearly
def server(listen: str) -> None:
    """Serve the webhook, /metrics, /healthz, /readyz and a status page (settings: BELAY_* in the environment).

    BELAY_WEBHOOK_SECRET is the secret that webhooks must know.
    """
    from engine.serve.http import main as run

    sys.exit(run(listen))


@main.group(name="sim-driver", short_help="Make a driver library for machines without NPUs.")
def sim_driver() -> None:
    """Make a driver library for machines without NPUs."""


@sim_driver.command(name="build", short_help="Compile the stand-in libdcmi.so.")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("sim-driver"))
@click.option("--chips", type=click.IntRange(1, 64), default=8, help="Chips of the machine.")
@click.option("--chip-name", default="910B3", help="Chip name as the driver gives it.")
def sim_driver_build(folder: Path, chips: int, chip_name: str) -> None:
    """Compile the stand-in libdcmi.so and write the state of a healthy machine beside it."""
    from agents.drivers.standin.build import BuildError, build
    from agents.drivers.standin.state import Standin

    try:
        library = build(folder)
        state = Standin.create(folder / "state", chips=chips, chip_name=chip_name).file
    except (BuildError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{library}\n{state}")
    click.echo(f"use them: BELAY_SIM_DCMI_STATE={state.resolve()} belay agent --driver dcmi:{library.resolve()} …")


@main.command(
    short_help="Show a node's NPU metrics to Prometheus or Telegraf.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@fails_clearly
def exporter(flags: tuple[str, ...]) -> None:
    """Show a node's NPU metrics, under the flags of MindCluster's npu-exporter: -ip=0.0.0.0 -containerMode=containerd …

    --metrics prints every metric with its labels, unit and products; --help every flag.
    """
    if flags in (("--help",), ("-h",)):
        from agents.exporter.settings import usage

        click.echo(f"{click.get_current_context().get_help()}\n\nFlags:\n{usage()}")
        return
    if flags == ("--metrics",):
        from agents.exporter.table import METRICS
        from engine import show

        rows = [[m.name, m.group, m.labels, m.unit, ",".join(m.products), m.meaning] for m in METRICS]
        show.table(("METRIC", "GROUP", "LABELS", "UNIT", "PRODUCTS", "MEANING"), rows)
        return
    from agents.exporter.run import main as run

    sys.exit(run(flags))


@main.group(short_help="Install the OCI runtime that gives containers their chips.")
def runtime() -> None:
    """Build, install and remove belay-oci-runtime, the OCI runtime over runc that gives containers their chips."""


@runtime.command(name="build", short_help="Compile its two programs.")
@click.option("--out", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("oci-runtime"))
@click.option("--arch", type=click.Choice(["native", "x86_64", "aarch64"]), default="native", show_default=True)
@fails_clearly
def runtime_build(folder: Path, arch: str) -> None:
    """Compile the two programs into a folder, for `install --programs` on hosts without a compiler."""
    from agents.runtime.build import BuildError, build

    try:
        click.echo("\n".join(map(str, build(folder, arch))))
    except BuildError as error:
        raise click.ClickException(str(error)) from error


@runtime.command(name="install", short_help="Install it and enter it in the container engine.")
@click.option("--install-scene", "scene", default="docker", show_default=True, help="docker, containerd, crio, isula.")
@click.option("--injection-mode", "mode", default="legacy", show_default=True, help="legacy (a hook mounts) or cdi.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--config-file-path", "config", metavar="FILE", help="The engine's file, where it is not the usual one.")
@click.option("--install-type", "kind", metavar="TYPE", help="A500, A200, A200ISoC, A500A2 or A200IA2; else none.")
@click.option("--default/--keep-default", "default", default=None, help="Whether it runs every container.")
@click.option("--programs", type=click.Path(path_type=Path), help="A folder that `belay runtime build` filled.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_install(root: Path, **wish: Any) -> None:
    """Install the runtime and enter it in the engine's configuration, which is kept for `uninstall`."""
    from agents.runtime.install import Host, InstallError, Wish, install

    try:
        click.echo("\n".join(install(Wish(**wish), __version__, Host(root))))
    except InstallError as error:
        raise click.ClickException(str(error)) from error


@runtime.command(name="uninstall", short_help="Take it out again.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--force", is_flag=True, help="Although containers made by it run; the programs stay for them.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_uninstall(base: str, force: bool, root: Path) -> None:
    """Put the engine's configuration back as it was and remove the runtime."""
    from agents.runtime.install import Host, InstallError, uninstall

    try:
        click.echo("\n".join(uninstall(base, force=force, host=Host(root))))
    except InstallError as error:
        raise click.ClickException(str(error)) from error


@runtime.command(name="status", short_help="Show what is installed, and which containers it made.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@output_option()
@fails_clearly
def runtime_status(base: str, output: str, root: Path) -> None:
    """Show what is installed, whether the engine's file still names it, and running containers made by it."""
    from agents.runtime.install import Host, InstallError, status
    from engine import show

    try:
        found = status(base, host=Host(root))
    except InstallError as error:
        raise click.ClickException(str(error)) from error
    if output in ("json", "yaml"):
        show.document(found, output)
        return
    containers = found["containers"]
    rows = [[name, value if value not in ([], "") else "none"] for name, value in found.items() if name != "containers"]
    show.table(("WHAT", "VALUE"), [*rows, ["containers", ", ".join(it["id"] for it in containers) or "none"]])


@main.command(short_help="Run the node agent.", context_settings={"ignore_unknown_options": True})
@click.option("--node", envvar="NODE_NAME", required=True, help="This node's name (or $NODE_NAME).")
@click.option("--driver", metavar="DRIVER", required=True, help="dcmi[:FILE], npu_smi[:FILE] or simulated[:MODEL].")
@click.option("--kubeconfig", metavar="FILE")
@click.option("--journal", metavar="DIR", default="/var/lib/belay", show_default=True)
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
@fails_clearly
def agent(node: str, driver: str, kubeconfig: str | None, journal: str, more: tuple[str, ...]) -> None:
    """Run the node agent: report, take orders, reset, partition.

    With --device-plugin it serves kubelet too, by the flags of MindCluster's device plugin (-volcanoType=true, …);
    python -m agents.node --help lists them all.
    """
    from agents.node.__main__ import main as run

    given = ["--node", node, "--driver", driver, "--state-dir", journal]
    sys.exit(run([*given, *(("--kubeconfig", kubeconfig) if kubeconfig else ()), *more]))


def _container_options(command: Any) -> Any:
    """The options of the manager, by its own names and those of MindCluster's."""
    for option in reversed(
        (
            click.option("--runtime", "-runtimeType", type=click.Choice(["docker", "containerd"]), default="docker"),
            click.option(
                "--socket", "-sockPath", metavar="FILE", default="", help="The runtime's socket (its usual place)."
            ),
            click.option(
                "--strategy",
                "-ctrStrategy",
                type=click.Choice(["never", "singleRecover", "ringRecover"]),
                default="never",
                help="Which containers a fault stops: none, those on the chip, those on its ring.",
            ),
            click.option(
                "--fault-config", "-faultConfigPath", metavar="FILE", default="", help="Fault levels of your own."
            ),
            click.option("--driver", metavar="DRIVER", default="dcmi", help="dcmi[:FILE] or simulated[:MODEL]."),
            click.option("--state", metavar="FILE", default="/tmp/status.json", help="The state file."),
            click.option(
                "--log-file", "-logPath", metavar="FILE", default="", help="Log to a file instead of standard error."
            ),
            click.option(
                "--log-level",
                "-logLevel",
                type=int,
                default=0,
                help="-1 debug, 0 info, 1 warning, 2 error, 3 critical.",
            ),
            click.option("--log-days", "-maxAge", type=int, default=7, help="Days that old log files are kept."),
            click.option("--log-backups", "-maxBackups", type=int, default=30, help="How many old log files are kept."),
        )
    ):
        command = option(command)
    return command


@main.group(short_help="Recover containers on a host without Kubernetes.")
def containers() -> None:
    """Recover containers on a host without Kubernetes: stop those on a faulty chip, reset it, start them again."""


@containers.command(name="run", short_help="Run the manager.")
@_container_options
@fails_clearly
def containers_run(**options: Any) -> None:
    """Run until SIGINT or SIGTERM. The flags of MindCluster's container manager are understood too."""
    from agents.containers.commands import Options, run

    try:
        chosen = Options(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(run(chosen))


@containers.command(name="status", short_help="Show the state of each container.")
@click.option("--state", type=click.Path(path_type=Path), default=Path("/tmp/status.json"), help="The state file.")
@fails_clearly
def containers_status(state: Path) -> None:
    """Show the containers that use chips, the state each is in, and what to do about one that stays there."""
    from agents.containers.commands import show

    sys.exit(show(state))


@containers.command(name="install", short_help="Make the manager a service of systemd.")
@_container_options
@click.option("--timer-delay", "delay", default="60s", show_default=True, help="How long after boot it starts.")
@fails_clearly
def containers_install(delay: str, **options: Any) -> None:
    """Write the units and start them after every boot. The options are those the service will run with."""
    from agents.containers.commands import Options
    from agents.containers.install import InstallError, install

    try:
        written = install(Options(**options), delay=delay)
    except (InstallError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    click.echo("".join(f"{path}\n" for path in written) + "started; see belay containers status")


@containers.command(name="uninstall", short_help="Take the service away; logs stay.")
@fails_clearly
def containers_uninstall() -> None:
    """Stop the service and remove its units and flags; logs stay."""
    from agents.containers.install import InstallError, uninstall

    try:
        removed = uninstall()
    except InstallError as error:
        raise click.ClickException(str(error)) from error
    click.echo("".join(f"{path}\n" for path in removed) + ("removed" if removed else "nothing is installed"))


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


if __name__ == "__main__":
    main()
