"""`belay policy`: its verbs that are commits are those of acts; this one tries a policy on what happened."""

from __future__ import annotations

import sys

import click

from belay.engine.cli.acts.policies import add, edit
from belay.engine.cli.invocation import fails_clearly, output_option


@click.group(short_help="Add, change or try a fault policy.")
def policy() -> None:
    """Add or change a fault policy as a commit, or try one on recorded history before it is in force."""


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

    Example: belay policy test policies/training.yaml --against passes/
    """
    from belay.engine.cli import output as show
    from belay.engine.cli.backtest import compare, policy_files
    from belay.engine.cli.summary import backtest_table

    verdict = compare(policy_files(policy_path), recordings, tree=desired, overlays=policies)
    if output in ("json", "yaml"):
        show.document(verdict, output)
    else:
        backtest_table(verdict, wide=output == "wide")
    sys.exit(1 if verdict.differs else 0)


policy.add_command(add)
policy.add_command(edit)

VERBS = (policy,)
