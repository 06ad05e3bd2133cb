"""Verbs that start a process of the engine, or of a node, and keep it running."""

from __future__ import annotations

import sys

import click

from belay.engine.cli.invocation import fails_clearly

CONSOLE_ANSWERS = (sys.executable, "-m", "belay.engine.cli.console_answers")
"""The command of the processes that answer the console's questions."""


@click.command(short_help="Watch Git and Kubernetes, wake the workers.")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, then the pod's own account.")
@click.option("--source", metavar="FILE", help="A Source document: repository, branch, signatures; edits take effect.")
@fails_clearly
def controller(kubeconfig: str | None, source: str | None) -> None:
    """Watch Git and Kubernetes and wake the workers (settings: BELAY_* in the environment).

    Example: belay controller --source source.yaml
    """
    from belay.engine.controller.controller import main as run

    sys.exit(run(kubeconfig, source))


@click.command(short_help="Run passes and actions (a Celery worker).")
@fails_clearly
def worker() -> None:
    """Run passes and actions (a Celery worker; settings: BELAY_* in the environment).

    Example: belay worker
    """
    from belay.engine.controller.tasks import main as run

    sys.exit(run())


@click.command(short_help="Serve console, webhook, metrics, health.")
@click.option("--listen", default="127.0.0.1:8080", show_default=True, metavar="HOST:PORT")
@fails_clearly
def server(listen: str) -> None:
    """Serve the console, the webhook, /metrics, /healthz and /readyz (settings: BELAY_* in the environment).

    BELAY_WEBHOOK_SECRET is the secret that webhooks must know.

    Example: belay server --listen 0.0.0.0:8080
    """
    from belay.engine.serve.http import main as run

    sys.exit(run(listen, CONSOLE_ANSWERS))


@click.command(short_help="Show the console: a live cluster, a recording, a file.")
@click.option(
    "--cluster", metavar="FILE|live", help="What `kubectl get … -o json|yaml` printed. Default: the live one."
)
@click.option("--recording", metavar="FILE|DIR", help="A recorded pass, or a folder of them, which is a history.")
@click.option("--desired", metavar="DIR", help="For a FILE: the state repository. Default: what the cluster records.")
@click.option("--policies", metavar="DIR", multiple=True, help="Policies laid over; may be given again.")
@click.option("--repository", metavar="URL", default="", help="The Git repository, for branches and their plans.")
@click.option("--listen", default="127.0.0.1:8081", show_default=True, metavar="HOST:PORT")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@fails_clearly
def console(
    cluster: str | None,
    recording: str | None,
    desired: str | None,
    policies: tuple[str, ...],
    repository: str,
    listen: str,
    kubeconfig: str | None,
) -> None:
    """Serve the console on this machine: of a live cluster, with your own rights, of recorded passes, or of a file.

    It reads only. docs/console.md says what it shows and who may look.

    Examples: belay console; belay console --recording passes/
    """
    from belay.engine.serve.console.offline import AccessSettings, ConsoleOptions
    from belay.engine.serve.console.offline import main as run
    from belay.engine.settings import from_environment

    settings = from_environment()
    access = AccessSettings(
        hosts=settings.console_hosts, proxy_header=settings.console_proxy_header, proxies=settings.console_proxies
    )
    options = ConsoleOptions(
        access=access,
        cluster=cluster or "", recording=recording or "", desired=desired or "", policies=policies,
        repository=repository, listen=listen, kubeconfig=kubeconfig or "",
    )  # fmt: skip
    sys.exit(run(options, CONSOLE_ANSWERS, click.echo))


@click.command(short_help="Guard what Belay's own accounts may write (an admission webhook).")
@click.option("--listen", default="0.0.0.0:9443", show_default=True, metavar="HOST:PORT")
@click.option(
    "--certificates",
    metavar="DIR",
    default="",
    help="tls.crt, tls.key and ca.crt of an authority of yours.  [default: the process makes its own]",
)
@fails_clearly
def admission(listen: str, certificates: str) -> None:
    """Answer the API server's questions about writes of Belay's own accounts: each only its own reports and records.

    Each process makes its own certificate, renews it and has the API server trust it. For clusters without
    ValidatingAdmissionPolicy (Kubernetes before 1.30).

    Example: belay admission --listen 0.0.0.0:9443
    """
    from belay.engine.serve.admission.server import main as run

    sys.exit(run(listen, certificates))


def _agent_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the agent's version, as ``python -m belay.agents.daemon -version`` does, and end."""
    if wanted and not context.resilient_parsing:
        from belay.engine import versions

        click.echo(f"belay agent {versions.version()}")
        context.exit()


class _OneDash(click.Command):
    """Passes flags with one dash on as they are: ``-hotReset`` is not ``-h``, which alone still asks for help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--help" if argument == "-h" else argument for argument in args])


@click.command(
    cls=_OneDash,
    short_help="Run the node agent.",
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
)
@click.option("--node", envvar="NODE_NAME", required=True, help="This node's name (or $NODE_NAME).")
@click.option("--driver", metavar="DRIVER", required=True, help="dcmi[:FILE], npu_smi[:FILE] or simulated[:MODEL].")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, then the pod's own account.")
@click.option("--journal", metavar="DIR", default="/var/lib/belay", show_default=True)
@click.option(
    "-version",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_agent_version,
    help="Print the version and end.",
)
@click.argument("more", nargs=-1, type=click.UNPROCESSED)
@fails_clearly
def agent(node: str, driver: str, kubeconfig: str | None, journal: str, more: tuple[str, ...]) -> None:
    """Run the node agent: report, take orders, reset, partition.

    With --device-plugin it serves kubelet too, by the flags of MindCluster's device plugin (-volcanoType=true, …);
    python -m belay.agents.daemon --help lists them all.

    Example: belay agent --node node-1 --driver dcmi
    """
    from belay.agents.daemon.__main__ import main as run

    given = ["--node", node, "--driver", driver, "--state-dir", journal]
    sys.exit(run([*given, *(("--kubeconfig", kubeconfig) if kubeconfig else ()), *more], prog="belay agent"))


@click.command(
    short_help="Show a node's NPU metrics to Prometheus or Telegraf.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    add_help_option=False,
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@fails_clearly
def exporter(flags: tuple[str, ...]) -> None:
    """Show a node's NPU metrics, under the flags of MindCluster's npu-exporter: -ip=0.0.0.0 -containerMode=containerd …

    --metrics prints every metric with its labels, unit and products; --help every flag.

    Example: belay exporter -ip=0.0.0.0 -port=8082
    """
    if flags in (("--help",), ("-h",)):
        from belay.agents.exporter.settings import usage

        click.echo(f"{click.get_current_context().get_help()}\n\nFlags:\n{usage()}")
        return
    if flags == ("--metrics",):
        from belay.agents.exporter.table import METRICS
        from belay.engine.cli import output

        rows = [[m.name, m.group, m.labels, m.unit, ",".join(m.products), m.meaning] for m in METRICS]
        output.table(("METRIC", "GROUP", "LABELS", "UNIT", "PRODUCTS", "MEANING"), rows)
        return
    from belay.agents.exporter.run import main as run

    sys.exit(run(flags))


VERBS = (controller, worker, server, console, admission, agent, exporter)
