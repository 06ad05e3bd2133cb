"""Verbs for checkpoints of training jobs: list, verify, convert, disk use, retention."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from belay.engine.cli.ages import relative
from belay.engine.cli.invocation import WholeNumber, fails_clearly
from belay.engine.cli.progress import progress
from belay.engine.errors import InputError
from belay.engine.model.wording import counted

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_ANY = click.Path(exists=True, path_type=Path)


@click.group(short_help="List, prove, convert and prune checkpoints of training jobs.")
def checkpoint() -> None:
    """List, prove, convert and prune checkpoints of training jobs."""


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@checkpoint.command(name="list", short_help="The sets in a folder, newest first.")
@click.argument("folder", type=_FOLDER, metavar="DIR")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@fails_clearly
def list_sets(folder: Path, output: str) -> None:
    """The checkpoints in DIR, newest first, and what incomplete ones lack. Exit code 1 when none is complete.

    Example: belay checkpoint list /mnt/checkpoints
    """
    from belay.agents.training.checkpoint import sets

    with progress(f"reading {folder}"):
        found = sets.scan(folder.absolute())
    if output == "json":
        rows = [
            {"step": one.step, "kind": one.kind, "path": str(one.folder), "files": len(one.files), "bytes": one.size,
             "ranks": one.world_size, "complete": one.complete, "missing": list(one.missing)}
            for one in found
        ]  # fmt: skip
        click.echo(json.dumps(rows, indent=2))
    else:
        for one in found:
            when = relative(one.age_of, time.time())
            state = "complete" if one.complete else "incomplete"
            click.echo(f"{one.step:>12}  {state:<10}  {_size(one.size):>10}  {one.kind:<8}  {when}  {one.folder.name}")
            for text in one.missing[:10]:
                click.echo(f"{'':>12}    lacks {text}")
        if not found:
            click.echo(f"no checkpoints in {folder}")
    if not any(one.complete for one in found):
        raise SystemExit(1)


@checkpoint.command(short_help="Read everything and compare it with the checksums.")
@click.argument("folder", type=_ANY, metavar="DIR")
@click.option("--threads", type=WholeNumber(0, 64), default=0, help="Default: one for each core.")
@fails_clearly
def verify(folder: Path, threads: int) -> None:
    """Prove every file below DIR (or one file) by its checksums. Exit code 1 for damaged files and incomplete sets, and
    when nothing there could be checked.

    Example: belay checkpoint verify /mnt/checkpoints --threads 8
    """
    from belay.agents.training.checkpoint import sets, verifying

    files = list(verifying.files(folder))
    if not files:
        raise InputError(f"{folder} holds no files", hint="Name the folder that training saves to, or one file.")
    total = sum(path.stat().st_size for path in files)
    begin, verdicts = time.monotonic(), []
    with progress("verifying", total, unit="B") as step:
        for path in files:
            verdicts.append(verifying.verify(path, threads, step))
    spent = max(time.monotonic() - begin, 1e-6)
    bad = [verdict for verdict in verdicts if verdict.state == "damaged"]
    for verdict in verdicts:
        if verdict.state != "proven" or verdict.text:
            text = verdict.text if verdict.state == "damaged" else f"{verdict.path}: {verdict.text}"
            click.echo(f"{verdict.state}: {text}")
    lacking = [] if folder.is_file() else [one for one in sets.scan(folder.absolute()) if not one.complete]
    for one in lacking:
        click.echo(f"incomplete: {one.folder}: {'; '.join(one.missing[:5])}")
    proven = sum(verdict.state == "proven" for verdict in verdicts)
    checked = any(verdict.state in ("proven", "structure") for verdict in verdicts)
    if not bad and not checked:
        click.echo(f"nothing could be checked: {folder} holds no .mindio file, and no checksums are kept there")
    speed = f"{_size(total)} in {spent:.1f} s ({_size(total / spent)}/s)"
    click.echo(f"{proven} of {counted(len(verdicts), 'file')} proven, {len(bad)} damaged, {speed}")
    if bad or lacking or not checked:
        raise SystemExit(1)


@checkpoint.command(short_help="To and from torch's zip and safetensors.")
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--to", "wanted", type=click.Choice(["torch", "mindio", "safetensors"]), help="Default: torch, or mindio."
)
@fails_clearly
def convert(source: Path, target: Path, wanted: str | None) -> None:
    """Write SOURCE in another format as TARGET; the content of SOURCE decides its format. Needs PyTorch.

    Example: belay checkpoint convert step-1000.pt step-1000.safetensors --to safetensors
    """
    from belay.agents.training.checkpoint.errors import CheckpointError

    try:
        from belay.agents.training.checkpoint import convert as converter
    except ImportError as error:
        raise InputError(
            "converting needs PyTorch", hint="Run it in the training image, or pip install torch."
        ) from error
    try:
        with progress("converting", source.stat().st_size, unit="B") as step:
            written = converter.convert(source, target, wanted, step)
    except CheckpointError as error:
        raise InputError(str(error)) from error
    click.echo(f"{target}: {written}, {_size(target.stat().st_size)}")


@checkpoint.command(short_help="Room that checkpoints take.")
@click.argument("folder", type=_FOLDER, metavar="DIR")
@fails_clearly
def du(folder: Path) -> None:
    """Bytes of each set in DIR, of leftovers of interrupted work, and what the file system has free.

    Example: belay checkpoint du /mnt/checkpoints
    """
    import shutil

    from belay.agents.training.checkpoint import retention, sets

    with progress(f"reading {folder}"):
        found, left = sets.scan(folder.absolute()), retention.leftovers(folder)
        all_left = [path for place in left for path in ([place] if place.is_file() else place.rglob("*"))]
        lost = sum(path.stat().st_blocks * 512 for path in all_left if path.is_file())
    for one in found:
        click.echo(f"{_size(one.size):>10}  {one.folder.name}{'' if one.complete else '  (incomplete)'}")
    free = shutil.disk_usage(folder)
    click.echo(f"{_size(sum(one.size for one in found)):>10}  in {len(found)} sets")
    click.echo(f"{_size(lost):>10}  in {len(left)} leftovers (belay checkpoint prune removes them)")
    click.echo(f"{_size(free.free):>10}  free of {_size(free.total)}")


@checkpoint.command(short_help="Whether a folder is a sound place for checkpoints.")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option("--size", type=WholeNumber(4, 1 << 20), default=256, show_default=True, help="MiB written and read.")
@fails_clearly
def check(folder: Path, size: int) -> None:
    """Try DIR out: mount, rights (squashed root), locks, renames, room, speed. Exit code 1 when it is not sound.

    Example: belay checkpoint check /mnt/checkpoints
    """
    from belay.agents.training.checkpoint import places

    count = size // 4 * 4 << 20
    with progress("measuring", 2 * count, unit="B") as step:
        report = places.check(folder, count, progress=step)
    for word, lines in (("", report.facts), ("warning: ", report.warnings), ("error: ", report.errors)):
        for line in lines:
            click.echo(word + line)
    if report.errors:
        raise SystemExit(1)


def _age(text: str) -> float:
    units = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
    if text[-1:] not in units or not text[:-1].isdecimal():
        raise InputError(f"{text!r} is not an age", hint="Write 12h, 30d or 4w.")
    return int(text[:-1]) * units[text[-1]]


@checkpoint.command(short_help="Remove outdated sets and leftovers.")
@click.argument("folder", type=_FOLDER, metavar="DIR")
@click.option("--keep", type=WholeNumber(1), help="How many complete sets stay.")
@click.option("--older-than", "age", metavar="AGE", help="Remove sets last written before: 12h, 30d, 4w.")
@click.option("--dry-run", "dry", is_flag=True, help="Only say what would go.")
@fails_clearly
def prune(folder: Path, keep: int | None, age: str | None, dry: bool) -> None:
    """Remove sets beyond --keep or --older-than, incomplete sets older than the newest complete one, and what
    interrupted work left. The newest complete set always stays, and every set of a later step. Before a complete set
    goes, one that stays is proven by its checksums; exit code 1 for damaged ones.

    Example: belay checkpoint prune /mnt/checkpoints --keep 5 --dry-run
    """
    from belay.agents.training.checkpoint import retention

    oldest = time.time() - _age(age) if age else None
    word = "would remove" if dry else "removing"
    with progress(f"pruning {folder}") as step:

        def report(name: str) -> None:
            click.echo(f"{word} {name}")
            step(note=name)

        found = retention.prune(
            folder.absolute(), keep=keep, oldest=oldest, report=report, dry=dry, progress=lambda _: step(0)
        )
    for text in found.damaged:
        click.echo(f"damaged: {text}")
    for path in found.kept:
        click.echo(f"stays: {path}, since no newer set is whole")
    click.echo(f"{len(found.removed)} {'to remove' if dry else 'removed'}")
    if found.damaged:
        raise SystemExit(1)


VERBS: tuple[Any, ...] = (checkpoint,)
