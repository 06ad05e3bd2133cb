"""`belay notify`: whether notifications arrive. `belay server` sends them, with its own secrets and network."""

from __future__ import annotations

import sys
from typing import Any

import click

from belay.engine.cli.invocation import fails_clearly


@click.group(short_help="Try the receivers of notifications.")
def notify() -> None:
    """Try the receivers of notifications (docs/notifications.md)."""


@notify.command(short_help="Send a test message to one receiver, or to all. Exit 1 if one takes none.")
@click.argument("receiver", metavar="[RECEIVER]", default="")
@click.option("--server", metavar="URL", help="The server that sends. Default: $BELAY_SERVER, the kubeconfig's.")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster.")
@click.option("-o", "--output", type=click.Choice(("table", "json", "yaml")), default="table", show_default=True,
              help="How to print.")  # fmt: skip
@fails_clearly
def test(receiver: str, server: str | None, kubeconfig: str | None, output: str) -> None:
    """Have `belay server` send a test message to RECEIVER (NAME or POLICY/NAME), or to every receiver of the policies
    in force, and say what each answers. Exit 1 if one takes no message.

    Example: belay notify test ops-chat
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.server_client import ask_test

    found: dict[str, Any] = ask_test(receiver, server=server, kubeconfig=kubeconfig)
    rows = found.get("receivers", [])
    if output == "table":
        cells = [[row["receiver"], row["type"], row["problem"] or "took the test message"] for row in rows]
        show.table(("receiver", "type", "result"), cells)
    else:
        show.document(found, output)
    if any(row["problem"] for row in rows):
        sys.exit(1)


VERBS = (notify,)
