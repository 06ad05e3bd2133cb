"""What Git and its helpers print, and the files beside it."""

from __future__ import annotations

from typing import Any, Final

from belay.engine.errors import SourceError
from belay.engine.source.git import GitFailed
from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Limits
from belay.engine.source.tree import resolve_link, select
from belay.engine.wire import committext as commit_text
from tests.fuzz.harness import Form, Harness

_SHA: Final = "a" * 40
_COMMIT_WORDS: Final = (
    b"tree " + b"a" * 40 + b"\n",
    b"gpgsig -----BEGIN SSH SIGNATURE-----\n",
    b" -----END SSH SIGNATURE-----\n",
    b"gpgsig-sha256 x\n",
    b"committer a <b> 1788249600 +0000\n",
    b"parent " + b"b" * 40 + b"\n",
    b"mergetag object\n",
    b"Belay-Source: a b c\n",
    b"encoding latin1\n",
)


def _commit(data: bytes) -> None:
    for length in (40, 64):
        found = commit_text.parse(data, length)
        assert len(found.refusal) < 300
        assert found.refusal or (found.payload and found.signature)
        commit_text.trailers(found.payload, "Belay-Source")


class _Answer:
    def __init__(self, data: bytes) -> None:
        self.data, self.code = data, 0


class _Git:
    """Answers every command with the same bytes, as a damaged or hostile repository might."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def run(self, *_: Any, **__: Any) -> _Answer:
        return _Answer(self._data)


def _objects(data: bytes) -> None:
    """Git's plumbing separates what it prints by NUL and line ends; names inside are the repository's."""
    store = ObjectStore(_Git(data), Limits())  # type: ignore[arg-type]
    for look in (
        lambda: store.commit(_SHA),
        lambda: store.trailers(_SHA, _SHA, "Belay-Source"),
        lambda: store.resolve("main"),
        lambda: store.first_parents(_SHA, 5),
    ):
        try:
            look()
        except (GitFailed, SourceError):
            continue


def _tree(data: bytes) -> None:
    """Names of files and targets of links, which a pusher chooses freely."""
    name, _, target = data.replace(b"\0", b"").partition(b"\n")
    record = b"100644 blob " + _SHA.encode() + b"      12\tdesired/" + name
    link = b"120000 blob " + _SHA.encode() + b"       3\tdesired/l" + name
    store = ObjectStore(_Git(b"\0".join([record, link, record + b".yaml"]) + b"\0"), Limits())  # type: ignore[arg-type]
    try:
        entries = store.entries(_SHA, "")
        found = select(entries, "", Limits(), lambda entry: store.follow(_SHA, entry))
    except (GitFailed, SourceError):
        return
    assert all(len(problem.message) < 2000 for problem in found.problems)
    resolve_link("desired/a", target.decode("utf-8", "replace"))


HARNESSES: Final = (
    Harness("commit", _commit, ("engine/wire/committext.py",), form=Form.TEXT, words=_COMMIT_WORDS),
    Harness("git-output", _objects, ("engine/source/objects.py",), form=Form.BYTES),
    Harness(
        "git-tree",
        _tree,
        ("engine/source/tree.py", "engine/source/objects.py"),
        form=Form.BYTES,
        words=(b"../", b".yaml", b".git/"),
    ),
)
