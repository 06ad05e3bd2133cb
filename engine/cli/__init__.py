"""The verbs of the command line. Slow imports stay inside the commands.

Exit codes: 0 done, 1 findings or differences (validate, diff, plan --exit-code), 2 the command failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from belay.engine.cli.invocation import fails_clearly
from belay.engine.cli.verb_groups import GroupedVerbs, VerbTable

#: Where each verb is, below this package: its module is imported when the verb is asked for. Manuals keep the order.
_HOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "acts.verbs": (
        "isolate", "drain", "release", "scale", "priority", "suspend", "resume", "rollback", "confirm", "adopt",
    ),
    "questions": ("validate", "plan", "diff", "explain", "verify", "replay", "simulate"),
    "policy_verbs": ("policy",),
    "migrating": ("migrate",),
    "diagnosing": ("diagnose",),
    "artefacts": ("import",),
    "review.verb": ("review",),
    "views": ("status", "get", "top"),
    "events": ("events",),
    "logs": ("logs",),
    "syncing": ("sync",),
    "waiting": ("wait",),
    "history": ("history", "report", "usage"),
    "mcp_server": ("mcp",),
    "notifying": ("notify",),
    "processes": ("controller", "worker", "server", "console", "admission", "agent", "exporter"),
    "hosts": ("train", "runtime", "containers"),
    "checkpoints": ("checkpoint",),
    "checks": ("check",),
    "keys": ("keys",),
    "rights": ("rights",),
    "sandbox": ("up", "demo", "inject", "sim-driver"),
    "acts.new": ("new",),
    "acts.beginnings": ("init",),
}  # fmt: skip
#: Words of kubectl and of other tools of this field, and the verb that does this.
_MEANT: Final = {
    "describe": "explain", "why": "explain", "log": "logs",
    "lint": "validate", "dry-run": "plan", "start": "up", "watch": "status -w",
    "cordon": "isolate", "uncordon": "release", "undo": "rollback",
}  # fmt: skip


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from belay.engine import versions

        click.echo(f"belay {versions.version()}")
        context.exit()


class _Verbs(GroupedVerbs):
    """Verbs in groups; the word of another tool leads to the verb that does the same."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not args or args[0] not in _MEANT:
                raise
            # in place of what click finds alike, so that one answer is given
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]}?", ctx) from error


@click.group(
    cls=_Verbs,
    commands=VerbTable(__name__, _HOMES),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Keep Ascend NPU clusters in the state that a Git repository declares."""


@main.command()
@click.option("-o", "--output", type=click.Choice(("table", "json", "yaml")), default="table", show_default=True,
              help="A line, or one document: version, commit, its time, and the formats that are read.")  # fmt: skip
@fails_clearly
def version(output: str) -> None:
    """Print the version. Releases are tags; between them it names the commit.

    Example: belay version
    """
    from belay.engine import versions

    if output == "table":
        click.echo(f"belay {versions.version()}")
        return
    from belay.engine.cli import output as show
    from belay.engine.model.times import rfc3339
    from belay.engine.replay.recording import FORMAT

    build = versions.build()
    time = rfc3339(build.time) if build.time else ""
    show.document({"version": build.version, "commit": build.commit, "time": time, "recordings": [FORMAT]}, output)


@main.command(short_help="Print JSON Schemas of the kinds, for editors.")
@click.argument("kind", required=False)
@click.option("--write", metavar="DIR", help="Write every schema into a folder.")
@click.option("--crds", metavar="DIR", help="Write the CustomResourceDefinitions of the kinds into a folder.")
@click.option(
    "--rights", metavar="DIR", help="Print the ClusterRole that lets Belay read the WorkloadKinds of a folder."
)
@fails_clearly
def schema(kind: str | None, write: str | None, crds: str | None, rights: str | None) -> None:
    """Print the JSON Schema of a kind (for editors), or list the kinds.

    Examples: belay schema NodePool; belay schema --write schemas
    """
    if rights:
        from belay.engine.load import load
        from belay.engine.load.files import load_directory
        from belay.engine.load.workload_rights import OWN_ROLE, role_text

        declared = load(load_directory(rights), shipped={}).desired.workload_table
        click.echo(role_text(declared.rows.values(), OWN_ROLE), nl=False)
        return

    from belay.engine.errors import InputError
    from belay.engine.load.custom_resources import definition_text, definitions
    from belay.engine.load.schemas import schema_text, schemas

    found = schemas()
    if crds:
        folder = Path(crds)
        folder.mkdir(parents=True, exist_ok=True)
        for name, definition in definitions().items():
            (folder / name).write_text(definition_text(definition), encoding="utf-8")
        click.echo(f"{len(definitions())} definitions in {folder}")
    if write:
        folder = Path(write)
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in found.items():
            (folder / name).write_bytes(schema_text(body))
        click.echo(f"{len(found)} schemas in {folder}")
    elif crds:
        return
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
    """Print a completion script: eval "$(belay completion bash)".

    Example: belay completion bash > /etc/bash_completion.d/belay
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is not None:
        click.echo(complete(main, {}, "belay", "_BELAY_COMPLETE").source())
