"""Keeps the redacted end of the logs of failed pods on their node, for people: small files, the oldest go first."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from belay.agents.node.diagnosis.matching import LogText
from belay.agents.node.diagnosis.redaction import redacted

#: Bytes of text of one file, of one pod, and of all compressed archives of a node.
FILE_BYTES: Final = 128 << 10
POD_BYTES: Final = 4 << 20
NODE_BYTES: Final = 128 << 20
MAX_ARCHIVES: Final = 64
_LINE: Final = 2048
_NAME: Final = re.compile(r"[^A-Za-z0-9.-]")


class LogArchive:
    """One gzip file per failed pod. ``addresses``: also hide IP addresses."""

    def __init__(self, folder: Path, *, addresses: bool = False) -> None:
        self._folder, self._addresses = folder, addresses

    def keep(self, name: str, at_ms: int, logs: Iterable[LogText]) -> Path:
        """Write the archive of a pod and remove what exceeds the node's share. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{at_ms:015d}-{_NAME.sub('_', name)[:180]}.log.gz"
        fresh = path.with_suffix(".new")
        left = POD_BYTES
        with gzip.open(fresh, "wb", compresslevel=6) as stream:
            for log in logs:
                text = self._text(log)[: max(0, left)]
                left -= len(text)
                stream.write(text)
                if left <= 0:
                    break
        os.chmod(fresh, 0o600)
        os.replace(fresh, path)
        self._rotate()
        return path

    def _text(self, log: LogText) -> bytes:
        head = f"==> {log.source.value} {redacted(log.name)} <==\n"
        lines = log.data[-FILE_BYTES:].splitlines()
        body = (redacted(line[:_LINE].decode(errors="replace"), addresses=self._addresses) for line in lines)
        return (head + "\n".join(body) + "\n").encode()

    def _rotate(self) -> None:
        files = sorted(self._folder.glob("*.log.gz"), reverse=True)
        total = 0
        for number, path in enumerate(files):
            total += path.stat().st_size
            if number >= MAX_ARCHIVES or (total > NODE_BYTES and number):
                path.unlink(missing_ok=True)
