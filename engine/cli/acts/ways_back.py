"""How an act is taken back: the commands, to be typed as they stand."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from belay.engine.cli.acts.clone import is_state_repository

if TYPE_CHECKING:
    from belay.engine.cli.acts.clone import Clone
    from belay.engine.cli.acts.edits import RepositoryEdit

_UNKNOWN = "COMMIT"


def way_back(edit: RepositoryEdit, commit: str, *, pushed: bool, clone: Clone | None = None) -> str:
    """The commands that undo this act and nothing else, whatever is committed after it.

    ``commit`` is the act's own as it lies in the branch; empty if it is not known yet which one it becomes.
    Without a ``clone`` they are for readers who have one of their own.
    """
    place = shlex.quote(str(clone.folder)) if clone is not None and not _is_found_from_here(clone) else ""

    undo = edit.undo() if callable(edit.undo) else edit.undo
    steps = [_there(step, place) if place else step for step in undo]
    if edit.reverted:
        git = f"git -C {place}" if place else "git"
        steps.append(f"{git} revert --no-edit {commit[:12] or _UNKNOWN}")
        if pushed:
            steps.append(f"{git} push")
    # a comment of the shell, so that the line can be typed as it stands
    return " && ".join(steps) + (f"  # while {edit.only_while}" if edit.only_while else "")


def _there(step: str, place: str) -> str:
    """A step that is done in the clone from wherever it is typed."""
    if step.startswith("git "):
        return f"git -C {place} {step.removeprefix('git ')}"
    return f"{step} --repo {place}" if step.startswith("belay ") else step


def _is_found_from_here(clone: Clone) -> bool:
    """Whether an act without --repo finds the same state repository; one clone may hold several."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if is_state_repository(folder):
            return folder == clone.folder
    return False
