"""Trees that may not come into force: those that declare nothing, or nothing any more of what a layer declared.

A folder that was renamed, moved or never copied looks as if everything in it had been deleted. To delete it all, keep a
document of the layer, or confirm it in a commit (trailer ``Belay-Confirm``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from belay.engine.errors import SourceError
from belay.engine.model.plan import CONFIRM
from belay.engine.model.wording import counted
from belay.engine.source.tree import ROOTS, may_declare

if TYPE_CHECKING:
    from belay.engine.load.parser import FileResult

_DIGITS: Final = 32

Files = Mapping[str, str]
"""Blob ids by path."""
Read = Callable[[Iterable[str]], Mapping[str, bytes]]


class _EmptiedLayer(NamedTuple):
    """A layer that declares nothing any more, what it declared, and what confirms that."""

    root: str
    declared: str
    digest: str


class EmptyTreeGuard:
    """Refuses trees that declare nothing, and those in which a layer has lost all that it declared.

    ``read`` returns contents of blobs.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: tuple[str, str] = ("", "")

    def check(self, before: Files, files: Files, confirmed: Callable[[], tuple[str, ...]]) -> None:
        """Raise SourceError EmptyTree or EmptyLayer where ``files`` may not follow ``before``.

        ``confirmed`` returns the digests that the commits between the two confirm.
        """
        if not any(map(may_declare, files)):
            raise SourceError(
                "EmptyTree",
                "no YAML or JSON file below desired/ or policies/ that could declare anything",
                hint="To remove everything, keep one document; a big deletion then asks for its confirmation",
            )

        for root in ROOTS:
            emptied = self._emptied(root, _within(root, before), _within(root, files))
            if emptied is not None and emptied.digest not in confirmed():
                raise _refusal(emptied)

    def _emptied(self, root: str, before: Files, files: Files) -> _EmptiedLayer | None:
        """The layer below ``root``, if it declared something and declares nothing now."""
        if not before or before == files or self._declares(files):
            return None
        digest = _digest(root, before)
        if self._known[0] != digest:  # the same refused tree is looked at again with every poll
            self._known = (digest, self._count(before))
        declared = self._known[1]
        return _EmptiedLayer(root, declared, digest) if declared else None

    def _declares(self, files: Files) -> bool:
        """Whether any file declares something, or cannot be read and so may; reads no further than the first."""
        for path, blob in sorted(files.items()):
            result = _parsed(path, self._read([blob])[blob])
            if result.entries or not result.good:
                return True
        return False

    def _count(self, before: Files) -> str:
        """How much these files declared, in words; empty for nothing."""
        try:
            contents = self._read(before.values())
        except SourceError:  # the folder that held them is gone
            return f"objects in {counted(len(before), 'file')}"
        count = sum(len(_parsed(path, contents[blob]).entries) for path, blob in before.items())
        return counted(count, "object") if count else ""


def _parsed(path: str, content: bytes) -> FileResult:
    """A file's documents. Their kinds cost a controller a third of its memory, and only trees that change need them."""
    from belay.engine.load.parser import read_file

    return read_file(path, content)


def _within(root: str, files: Files) -> Files:
    """The files of a layer that can declare anything."""
    return {path: blob for path, blob in files.items() if path.startswith(f"{root}/") and may_declare(path)}


def _digest(root: str, before: Files) -> str:
    """Names exactly this layer with these contents."""
    lines = (f"{path} {blob}" for path, blob in sorted(before.items()))
    return hashlib.sha256("\n".join(("belay-layer", root, *lines)).encode()).hexdigest()[:_DIGITS]


def _refusal(layer: _EmptiedLayer) -> SourceError:
    return SourceError(
        "EmptyLayer",
        f"layer {layer.root}/ declared {layer.declared} and declares none now",
        hint="Was the folder renamed? Restore it, or keep one document in it; if all of it shall go, push a commit "
        f"whose message ends with the trailer '{CONFIRM}: {layer.digest}'",
    )
