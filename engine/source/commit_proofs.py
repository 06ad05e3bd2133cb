"""Reads from Git what proves to others that documents are part of a signed commit (``engine/wire/commitproof.py``)."""

from __future__ import annotations

from belay.engine.source.objects import ObjectStore
from belay.engine.source.records import Revision
from belay.engine.source.tree import REGULAR
from belay.engine.wire import commitproof
from belay.engine.wire.commitproof import ENTITLING, MAX_BETWEEN, MAX_BLOB, MAX_BYTES, MAX_FILES, CommitProof, GitObject

_MAX_REMEMBERED = 20_000


class CommitProver:
    """Makes proofs for one source; ``prefix`` is its folder with a slash at the end, or empty."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._entitling: dict[str, bool] = {}

    def prove(self, objects: ObjectStore, revision: Revision, older: str) -> CommitProof:
        """The proof of a revision's commit, for the files that entitle to resets and partitions, with the commits since
        ``older`` (empty: none). Files that do not fit are counted. Raises SourceError when Git cannot answer.
        """
        store = _Store(objects)
        root = store.tree_of(revision.sha, revision.commit)
        files: list[str] = []
        left_out = 0
        for path, blob in self._files(objects, revision):
            whole = self._prefix + path
            found = objects.file_at(revision.sha, whole)
            fits = found is not None and found.blob == blob and found.mode in REGULAR and len(files) < MAX_FILES
            if fits and store.add_file(root, whole, blob):
                files.append(whole)
            else:
                left_out += 1  # a version that stays in force, a link, or more than a ConfigMap holds
        for name in objects.between(older, revision.sha, MAX_BETWEEN) if older else ():
            store.add("commit", name)
        return CommitProof(
            revision=revision.sha, folder=self._prefix.rstrip("/"), files=tuple(files), left_out=left_out,
            objects=store.found,
        )  # fmt: skip

    def _files(self, objects: ObjectStore, revision: Revision) -> list[tuple[str, str]]:
        new = [blob for blob in set(revision.files.values()) if blob not in self._entitling]
        if len(self._entitling) + len(new) > _MAX_REMEMBERED:
            self._entitling.clear()
            new = list(set(revision.files.values()))
        for blob, content in objects.read(new).items():
            self._entitling[blob] = len(content) <= MAX_BLOB and ENTITLING.search(content) is not None
        return sorted(item for item in revision.files.items() if self._entitling.get(item[1]))


class _Store:
    """Objects by name, as long as they fit together."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._trees: dict[str, dict[str, str]] = {}
        self._left = MAX_BYTES
        self.found: dict[str, GitObject] = {}

    def tree_of(self, sha: str, commit: bytes) -> str:
        content = commit or self._objects.raw("commit", sha)
        self._left -= len(content)
        self.found[sha] = commitproof.git_object("commit", content)
        return content.partition(b"\n")[0].removeprefix(b"tree ").decode()

    def add(self, kind: str, name: str) -> bool:
        if name in self.found:
            return True
        content = self._objects.raw(kind, name)
        if len(content) > self._left:
            return False
        self._left -= len(content)
        self.found[name] = commitproof.git_object(kind, content)
        if kind == "tree":
            rows = commitproof.entries(content, len(name))
            self._trees[name] = {entry.decode("utf-8", "surrogateescape"): target for _, entry, target in rows}
        return True

    def add_file(self, root: str, path: str, blob: str) -> bool:
        tree = root
        for folder in path.split("/")[:-1]:
            if not self.add("tree", tree):
                return False
            tree = self._trees[tree][folder]
        return self.add("tree", tree) and self.add("blob", blob)


__all__ = ["CommitProver"]
