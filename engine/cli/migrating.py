"""`belay migrate`: from MindCluster to Belay, and from stored versions to newer ones."""

from __future__ import annotations

import sys

import click

from belay.engine.cli.inputs import cluster_items
from belay.engine.cli.invocation import fails_clearly, output_option
from belay.engine.cli.storage import storage


@click.group(short_help="Move a cluster from MindCluster to Belay.")
def migrate() -> None:
    """Move a cluster from MindCluster to Belay, one side at a time."""


@migrate.command(short_help="What of MindCluster runs, and what moving needs.")
@click.option("--cluster", default="live", show_default=True, metavar="FILE|live",
              help="What `kubectl get nodes,pods,configmaps -A -o json` printed (-: standard input).")  # fmt: skip
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@output_option()
@fails_clearly
def check(cluster: str, kubeconfig: str | None, output: str) -> None:
    """Say which components of MindCluster run, what Belay understands of them, what differs, and which steps to take.

    Only reads. Exit 1 when something is not understood.

    Example: belay migrate check
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.migration import examine, table

    items, _, _ = cluster_items(cluster, None, kubeconfig)
    found = examine(items)
    if output in ("json", "yaml"):
        show.document(found, output)
    else:
        table(found)
    sys.exit(1 if found.unknown else 0)


migrate.add_command(storage)

VERBS = (migrate,)
