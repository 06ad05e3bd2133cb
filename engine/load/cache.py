"""Results of files that earlier loads read and checked."""

from __future__ import annotations

import hashlib

from belay.engine.load.parser import FileResult, read_file


class LoadCache:
    """Results by path and content, kept from one load to the next; bounded by what the last load used.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._results: dict[tuple[str, str], FileResult] = {}
        self._used: dict[tuple[str, str], FileResult] = {}

    def __len__(self) -> int:
        return len(self._results)

    def get(self, path: str, version: str) -> FileResult | None:
        """The result of a file version read before; a hit keeps it for the next load."""
        known = (path, version)
        found = self._used.get(known) or self._results.get(known)
        if found is not None:
            self._used[known] = found
        return found

    def put(self, path: str, version: str, result: FileResult) -> FileResult:
        """Keep a result for this load and the next."""
        self._used[path, version] = result
        return result

    def read(self, path: str, data: bytes, version: str | None = None) -> FileResult:
        """Read a file unless its result is cached; ``version`` names the content, by default its hash."""
        known = version or content_id(data)
        return self.get(path, known) or self.put(path, known, read_file(path, data))

    def end_load(self) -> None:
        """End a load: drop results that it did not use."""
        self._results, self._used = self._used, {}


def content_id(data: bytes) -> str:
    """A key for content without a Git blob id."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()
