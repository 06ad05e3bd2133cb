"""`belay check`: is something outside of Belay as jobs need it."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from belay.engine.cli.invocation import Number, fails_clearly, output_option
from belay.engine.errors import InputError

if TYPE_CHECKING:
    from belay.agents.storage.findings import Finding

_SIZE = re.compile(r"(?P<number>[0-9]{1,12}(\.[0-9]{1,6})?)(?P<unit>|[KMGT]i?)B?\Z")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MOST_BYTES = 64 * 2**30


def _bytes(context: click.Context, parameter: click.Parameter, text: str) -> int:
    found = _SIZE.match(text)
    if found is None:
        raise click.BadParameter("write a size, as 256Mi or 200Gi", context, parameter)
    return int(float(found["number"]) * _UNITS[found["unit"]])


@click.group(short_help="Check what jobs need beside Belay.")
def check() -> None:
    """Check what jobs need beside Belay."""


@check.command(short_help="Is a folder fit for data sets, code and checkpoints?")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option(
    "--size", default="256Mi", show_default=True, callback=_bytes, help="How much is written to measure the speed."
)
@click.option(
    "--checkpoint",
    default="0",
    callback=_bytes,
    metavar="SIZE",
    help="Size of a full checkpoint, as 200Gi: judges speed and room.",
)
@click.option(
    "--limit",
    default=30.0,
    show_default=True,
    type=Number(1, 3600),
    help="Seconds after which a silent probe counts as hanging.",
)
@click.option(
    "--exports",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Also (or only) the server's /etc/exports.",
)
@output_option()
@fails_clearly
def storage(folder: Path | None, size: int, checkpoint: int, limit: float, exports: Path | None, output: str) -> None:
    """Check the storage mounted at FOLDER: mount options, owner and squashing, locks, fsync, rename, speed, room.

    Run it where jobs run and as the user they run as: kubectl exec POD -- belay check storage /job/output. It writes
    below FOLDER and removes that again. Exit code 1 when something is an error or could not be tried.

    Example: belay check storage /mnt/checkpoints --size 1Gi
    """
    import msgspec

    from belay.agents.storage.check import check_folder
    from belay.agents.storage.exports import check_exports
    from belay.engine.cli import output as show

    if folder is None and exports is None:
        raise InputError("nothing to check", hint="Name the folder, or --exports FILE on the server.")
    if size > MOST_BYTES:
        raise InputError(f"--size: at most {MOST_BYTES >> 30}Gi are written")
    found: list[Finding] = []
    if exports is not None:
        found += check_exports(exports.read_text(encoding="utf-8", errors="replace"))
    if folder is not None:
        found += check_folder(folder, size, limit, checkpoint)
    if output in ("json", "yaml"):
        show.document({"findings": [msgspec.to_builtins(one) for one in found]}, output)
    else:
        _print(found)
    sys.exit(1 if any(one.state in ("error", "unknown") for one in found) else 0)


def _print(found: Sequence[Finding]) -> None:
    from belay.engine.cli import output as show

    show.table(("STATE", "CHECK", "FOUND"), [(one.state, one.check, one.found) for one in found])
    for one in found:
        if one.next_step:
            click.echo(f"\n{one.state}: {one.found}\n  cause: {one.cause}\n  next:  {one.next_step}")


VERBS = (check,)
