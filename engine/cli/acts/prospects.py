"""What a change is checked for and planned as: before it is committed, and again on top of what others pushed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.cli.acts.edits import RepositoryEdit
    from belay.engine.cli.acts.pushing import CommitBetween

Changes = Mapping[str, bytes | None]
_SHOWN: Final = 10
_PATHS: Final = 3


@dataclass(frozen=True)
class Prospect:
    """How an act is looked at.

    ``promise`` says what the files after the change are sure to bring about, or raises what forbids it; ``refused`` are
    codes of findings against the cluster with which nothing is committed.
    """

    options: Mapping[str, Any]
    promise: Callable[[Mapping[str, bytes]], str] | None = None
    refused: Collection[str] = ()

    def check(self, files: Mapping[str, bytes], changed: Changes) -> None:
        """Raises InputError where the changed repository has an error that it had not before; warnings are printed."""
        from belay.engine.cli import output as show
        from belay.engine.errors import InputError
        from belay.engine.load import load

        before = {(found.object, found.field, found.message) for found in load(files).diagnostics}
        for found in load(_merged(files, changed)).diagnostics:
            if (found.object, found.field, found.message) in before:
                continue
            if found.severity == "error":
                raise InputError(found.message, where=f"{found.file}:{found.line}:{found.column}",
                                 hint="Nothing was written")  # fmt: skip
            click.echo(show.plain(str(found)), err=True)

    def plan(self, files: Mapping[str, bytes], changed: Changes) -> list[str]:
        """What the change does, in lines.

        Raises:
            InputError: what is refused, or a promise that does not hold. BelayError: the cluster cannot be read.
        """
        from belay.engine.cli.acts.effects import effect

        after = _merged(files, changed)
        cluster, kubeconfig = self.options["cluster"], self.options["kubeconfig"]
        lines = effect(files, after, cluster, kubeconfig, self.refused) if changed else []
        said = self.promise(after) if self.promise is not None else ""
        return [*lines, said] if said else lines

    def again(self, clone: Clone, edit: RepositoryEdit, shown: Sequence[str], between: Sequence[CommitBetween]) -> None:
        """Say what others pushed first, and look at the commit on top of it: it has not been pushed yet.

        Raises:
            BelayError: on top of theirs the change is an error, or is refused.
        """
        from belay.engine.cli import output as show
        from belay.engine.errors import BelayError, InputError

        commit = clone.head()
        click.echo(f"others pushed first; the commit is now {commit[:12]}, on top of:")
        show_commits(between)

        present = clone.files()
        before = {**_merged(present, dict.fromkeys(edit.files)), **clone.contents(f"{commit}~1", edit.files)}
        changed = {path: present.get(path) for path in edit.files}
        try:
            self.check(before, changed)
            plan = self.plan(before, changed)
        except InputError as error:
            dropped = "The commit is dropped" if clone.drop(commit) else "git reset --keep HEAD~1 drops the commit"
            raise BelayError(
                f"on top of what others pushed: {error.message}; so the commit was not pushed",
                where=error.where, hint=dropped,
            ) from error  # fmt: skip
        if plan == list(shown):
            return
        click.echo("what it does on top of theirs is different:")
        for line in plan:
            click.echo(show.plain(line))


def show_commits(commits: Sequence[CommitBetween]) -> None:
    """The newest of some commits, one in a line."""
    from belay.engine.cli import output as show

    for one in commits[:_SHOWN]:
        click.echo(show.plain(f"  {_line(one)}"))
    if len(commits) > _SHOWN:
        click.echo(f"  and {len(commits) - _SHOWN} more: git log")


def _merged(files: Mapping[str, bytes], changed: Changes) -> dict[str, bytes]:
    return {path: data for path, data in {**files, **changed}.items() if data is not None}


def _line(one: CommitBetween) -> str:
    """One commit: who, what, and which documents it changed."""
    more = f" and {len(one.documents) - _PATHS} more" if len(one.documents) > _PATHS else ""
    documents = ", ".join(one.documents[:_PATHS]) + more
    return f"{one.commit[:12]} {one.author}: {one.subject[:120]} ({documents or 'no document'})"
