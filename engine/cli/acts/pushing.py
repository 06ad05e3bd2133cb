"""How a commit reaches the remote: onto the branch that is followed, or onto a branch of its own to be merged there.

Nothing is forced. A push that lost a race is made again on top of what came before it. A proposal is made in a work
tree beside the clone's and holds the act alone: other commits that are not pushed yet stay where they are. A branch of
an earlier proposal is continued: its commits stay in the history, and its content becomes that of the new commit.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from belay.engine.cli.acts.clone import Clone, said
from belay.engine.errors import BelayError, InputError

_TRIES: Final = 3
_MOST_BETWEEN: Final = 50
_RACES: Final = ("cannot lock", "failed to update", "incorrect old value")
"""Refusals of a server that another push was faster than this one by an instant."""


class RefusedError(BelayError):
    """The server itself refused the push to this branch: it is protected, or a hook declined."""

    code = "PushRefused"


class Upstream(NamedTuple):
    """What the checked-out branch follows: a remote, and the branch there."""

    remote: str
    branch: str

    @property
    def ref(self) -> str:
        """The branch's full name."""
        return f"refs/heads/{self.branch}"

    @property
    def name(self) -> str:
        """``origin/main``."""
        return f"{self.remote}/{self.branch}"


class CommitBetween(NamedTuple):
    """A commit beside that of an act: others pushed it meanwhile, or the push of the act takes it along."""

    commit: str
    author: str
    subject: str
    documents: tuple[str, ...]


class Pushed(NamedTuple):
    """Where a proposal's commit lies, where it is to be merged, and the address that the server itself printed."""

    upstream: Upstream
    branch: str
    printed: str


def upstream(clone: Clone) -> Upstream:
    """What the checked-out branch follows.

    Raises:
        InputError: no branch is checked out.
    """
    branch = clone.git("symbolic-ref", "--short", "HEAD", check=False).stdout.strip()
    if not branch:
        raise InputError("no branch is checked out", where=str(clone.root), hint="git switch BRANCH")
    merge = clone.setting(f"branch.{branch}.merge") or f"refs/heads/{branch}"
    return Upstream(clone.setting(f"branch.{branch}.remote") or "origin", merge.removeprefix("refs/heads/"))


def unpushed(clone: Clone) -> list[CommitBetween]:
    """The commits of the branch that what it follows has not, as last seen here: a push takes them along.

    Raises:
        InputError: no branch is checked out.
    """
    place = upstream(clone)
    if clone.git("rev-parse", "--verify", "--quiet", "HEAD", check=False).returncode:
        return []  # the branch has no commit at all
    for known in ("@{upstream}", f"refs/remotes/{place.name}"):
        if not clone.git("rev-parse", "--verify", "--quiet", known, check=False).returncode:
            return _commits(clone, f"{known}..HEAD")
    return _commits(clone, "HEAD", "--not", f"--remotes={place.remote}")


def push(clone: Clone, again: Callable[[Sequence[CommitBetween]], None]) -> Upstream | None:
    """Push the branch to where it follows; where others pushed first, put the commit on top and push again.

    ``again`` is called with what others pushed, newest first, before each further push: what it raises keeps the commit
    here. Returns what was pushed to, or None where others pushed the same change, so that there is no commit left.
    Never forced.

    Raises:
        RefusedError: the server takes no push to this branch.
        BelayError: the remote refuses otherwise, or the commit does not apply on top of what others pushed.
    """
    place = upstream(clone)
    for _ in range(_TRIES):
        done = clone.git("push", "--porcelain", place.remote, f"HEAD:{place.ref}", check=False)
        if not done.returncode:
            return place
        _check_lost_race(done, place.remote)
        before = clone.head()
        if not _rebase(clone, place):
            return None
        again(_commits(clone, f"{before}..FETCH_HEAD"))
    raise BelayError(f"others pushed first {_TRIES} times", where=place.remote, hint="Run git push")


def propose(clone: Clone, branch: str) -> Pushed | None:
    """Push the newest commit, and no other, to a branch of its own; the clone is as it was before the commit.

    Returns None if the branch that is followed has this change already: there is nothing to propose.

    Raises:
        BelayError: the remote refuses, or other people have committed to the branch. The commit is still there.
    """
    place, made = upstream(clone), clone.head()
    former = clone.resolve(f"{made}~1")
    clone.git("fetch", "--quiet", place.remote, place.ref)
    with _tree_beside(clone, "FETCH_HEAD") as tree:
        pushed = _push_alone(clone, tree, place, branch) if _picked(clone, tree, place, made) else None

    # to the commit that was there before, never to one counted from the end: work of the person's own lies below
    if clone.head() == made:
        clone.git("reset", "--quiet", "--keep", former)
    return pushed


@contextmanager
def _tree_beside(clone: Clone, commit: str) -> Iterator[Path]:
    """A work tree of the clone for a while, with a commit checked out, so that the person's own is never touched."""
    with tempfile.TemporaryDirectory(prefix="belay-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        clone.git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            clone.git("worktree", "remove", "--force", str(tree), check=False)


def _picked(clone: Clone, tree: Path, place: Upstream, made: str) -> bool:
    """Put a commit on top of what is checked out in ``tree``; False where that has the same change already."""
    done = clone.git("cherry-pick", "--keep-redundant-commits", made, check=False, at=tree)
    if done.returncode and clone.git("ls-files", "--unmerged", at=tree).stdout:
        raise _conflict(place)
    if done.returncode:
        raise BelayError(f"git cherry-pick failed: {said(done)}", where=str(clone.folder), hint=_DROP)
    return _changes(clone, "HEAD", at=tree) or not _changes(clone, made, at=tree)


def _changes(clone: Clone, commit: str, *, at: Path) -> bool:
    """Whether a commit changes any file; that of some acts holds a message alone."""
    return clone.git("diff", "--quiet", f"{commit}~1", commit, check=False, at=at).returncode != 0


def _push_alone(clone: Clone, tree: Path, place: Upstream, branch: str) -> Pushed:
    for _ in range(_TRIES):
        _continue_earlier(clone, tree, place, branch)
        done = clone.git("push", "--porcelain", place.remote, f"HEAD:refs/heads/{branch}", check=False, at=tree)
        if not done.returncode:
            return Pushed(place, branch, _printed(done.stderr))
        _check_lost_race(done, place.remote)
    raise BelayError(f"others pushed to {branch} first {_TRIES} times", where=place.remote, hint=_DROP)


def _continue_earlier(clone: Clone, tree: Path, place: Upstream, branch: str) -> None:
    """Let the commit follow that of an earlier proposal on this branch, if there is one with another content."""
    if clone.git("fetch", "--quiet", place.remote, f"refs/heads/{branch}", check=False, at=tree).returncode:
        return
    earlier = clone.git("rev-parse", "FETCH_HEAD", at=tree).stdout.strip()
    made = clone.git("rev-parse", "HEAD", at=tree).stdout.strip()
    if clone.contains(made, earlier):
        return

    me = re.sub(r".*<(.*)>.*", r"\1", clone.git("var", "GIT_AUTHOR_IDENT").stdout.strip())
    authors = set(clone.git("log", "--format=%ae", f"{made}..{earlier}").stdout.split())
    if others := sorted(authors - {me}):
        raise BelayError(
            f"{branch} has commits of {', '.join(others[:3])}, which this act would undo", where=place.remote,
            hint=f"Merge its request first, or delete the branch; {_DROP}",
        )  # fmt: skip
    clone.git("merge", "--quiet", "--strategy", "ours", "--message", "Replace the earlier proposal", earlier, at=tree)


_DROP: Final = "git reset --keep HEAD~1 drops the commit that was made here"


def _check_lost_race(done: subprocess.CompletedProcess[str], remote: str) -> None:
    """Returns where others were faster; otherwise raises what the push failed by."""
    refusal = _refusal(done.stdout)
    by_server = refusal.startswith("[remote rejected]")
    if refusal.startswith("[rejected]") or (by_server and any(word in refusal for word in _RACES)):
        return
    if by_server:
        why = refusal.removeprefix("[remote rejected]").strip(" ()")
        raise RefusedError(f"the server refuses pushes to this branch: {why}; {said(done)}", where=remote, hint=_DROP)
    raise BelayError(
        f"the commit is made, but the push was refused: {said(done)}",
        where=remote,
        hint="git push when it is mended, or git reset --keep HEAD~1 to drop it",
    )


def _refusal(porcelain: str) -> str:
    """What `git push --porcelain` says of the branch: ``!``, the names, and the summary, with tabs between."""
    for line in porcelain.splitlines():
        parts = line.split("\t")
        if parts[0] == "!" and len(parts) == 3:
            return parts[2]
    return ""


def _printed(stderr: str) -> str:
    """The address that the server printed for people who want to open a request, or nothing."""
    for line in stderr.splitlines():
        found = re.match(r"remote:.*?(https?://\S{1,2000})", line)
        if found:
            return found[1]
    return ""


def _rebase(clone: Clone, place: Upstream) -> bool:
    """Put the branch on top of what others pushed; False where that has the change of the newest commit already."""
    clone.git("fetch", "--quiet", place.remote, place.ref)
    newest = clone.words()
    done = clone.git("rebase", "--quiet", "--autostash", "FETCH_HEAD", check=False)
    if done.returncode:
        clone.git("rebase", "--abort", check=False)
        raise _conflict(place)
    return clone.words() == newest


def _commits(clone: Clone, *which: str) -> list[CommitBetween]:
    """The newest of some commits, newest first."""
    listed = clone.git("log", "-z", f"--max-count={_MOST_BETWEEN}", "--format=%H%x00%an%x00%s", *which).stdout
    # not by lines: whatever ends one may stand in a name or subject
    fields = listed.split("\0")
    return [
        CommitBetween(commit, author, subject, clone.documents_of(commit))
        for commit, author, subject in zip(fields[::3], fields[1::3], fields[2::3], strict=False)
    ]


def _conflict(place: Upstream) -> BelayError:
    return BelayError("others changed the same lines meanwhile, so the commit was not pushed", where=place.remote,
                      hint="git reset --keep HEAD~1, then git pull --rebase, and give the command again")  # fmt: skip
