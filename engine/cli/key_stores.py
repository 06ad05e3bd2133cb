"""Where keys are kept: a folder of files, or the Secrets that the manifests mount.

Private parts are written with mode 0600, or into a Secret, and never printed but as the Secret that was asked for.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from belay.engine.errors import BelayError, InputError
from belay.engine.kube import Conflict, Kube, Object, resource_for
from belay.engine.model.labels import PART_OF
from belay.engine.wire.names import NODES, SYSTEM
from belay.engine.wire.seals import MAX_PEM

ENGINE: Final = "order-keys"
TRUST: Final = "order-trust"
BATCH: Final = "batch-keys"
PARTS: Final = (ENGINE, TRUST, BATCH)
"""Folders below DIR, and the names of the Secrets behind `belay-`."""
_SECRET: Final = resource_for("v1", "Secret")
_MAX_FILES: Final = 64


class KeyStore(Protocol):
    """A place that holds the parts. Reading gives None for a part that is not there."""

    def read(self, part: str) -> dict[str, bytes] | None:
        """The files of a part. Raises BelayError when they cannot be read."""

    def write(self, part: str, files: Mapping[str, bytes], new: bool = False) -> str:
        """Replace a part, and say where it is; ``new``: it must not be there. Raises BelayError."""


class KeyDirectory:
    """A folder with a folder for each part."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, part: str) -> dict[str, bytes] | None:
        """The files of a part; None without its folder."""
        folder = self._folder / part
        if not folder.is_dir():
            return None
        found: dict[str, bytes] = {}
        try:
            for path in sorted(folder.iterdir()):
                if path.name.startswith(".") or not path.is_file():
                    continue
                if len(found) >= _MAX_FILES or path.stat().st_size > MAX_PEM:
                    raise InputError(
                        f"is not a folder of keys: at most {_MAX_FILES} files of {MAX_PEM} bytes", where=str(folder)
                    )
                found[path.name] = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(folder)) from error
        return found

    def write(self, part: str, files: Mapping[str, bytes], new: bool = False) -> str:
        """Write each file that differs at once and whole, and remove what is not among them."""
        folder = self._folder / part
        before = self.read(part)
        if new and before:
            raise InputError(
                "holds keys already", where=str(folder), hint="`belay keys rotate` replaces them step by step"
            )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            for name, content in files.items():
                if (before or {}).get(name) != content:
                    _write(folder / name, content, public=part == TRUST or name.endswith(".pub"))
            for name in set(before or ()) - set(files):
                (folder / name).unlink()
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(error.filename or folder)) from error
        return str(folder)


class ClusterSecrets:
    """The Secrets ``belay-<part>``, where the pods that mount them run. One that another wrote meanwhile is kept."""

    def __init__(self, kubeconfig: str | None) -> None:
        self._kubeconfig = kubeconfig
        self._seen: dict[str, Object] = {}

    def read(self, part: str) -> dict[str, bytes] | None:
        """The data of a Secret; None without it."""
        from belay.engine.observe.live import with_kube

        async def get(kube: Kube) -> Object | None:
            return await kube.get(_SECRET, f"belay-{part}", namespace(part))

        found = with_kube(self._kubeconfig, get)
        if found is None:
            return None
        self._seen[part] = found
        return _data(found, part)

    def write(self, part: str, files: Mapping[str, bytes], new: bool = False) -> str:
        """Create or replace a Secret."""
        from belay.engine.observe.live import with_kube

        body, where = secret(part, files), f"Secret {namespace(part)}/belay-{part}"
        before = self._seen.get(part)

        async def put(kube: Kube) -> Object:
            if before is None or new:
                return await kube.create(_SECRET, body)
            metadata = {**before["metadata"], "labels": {**(before["metadata"].get("labels") or {}), **_LABELS}}
            metadata.pop("managedFields", None)
            return await kube.replace(_SECRET, body | {"metadata": metadata})

        try:
            self._seen[part] = with_kube(self._kubeconfig, put)
        except BelayError as error:
            if isinstance(error.__cause__, Conflict):
                hint = "`belay keys rotate` replaces keys step by step" if before is None or new else "Run it again"
                said = "is there already" if before is None or new else "was changed meanwhile"
                raise InputError(said, where=where, hint=hint) from error
            raise
        return where


_LABELS: Final = {PART_OF: "belay"}


def namespace(part: str) -> str:
    """The namespace of a part's Secret: agents, who mount what they trust, have one of their own."""
    return NODES if part == TRUST else SYSTEM


def secret(part: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """The Secret of a part, as `kubectl apply` takes it."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"belay-{part}", "namespace": namespace(part), "labels": dict(_LABELS)},
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in sorted(files.items())},
    }


def read_list(path: Path) -> bytes:
    """A list of signers, as large as agents read one. Raises InputError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_PEM + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if len(content) > MAX_PEM:
        raise InputError(f"is larger than {MAX_PEM} bytes, the most that agents read", where=str(path))
    return content


def print_secret(part: str, files: Mapping[str, bytes]) -> None:
    """Print a Secret as YAML. Raises InputError where private parts would stand on a terminal."""
    from belay.engine.cli import output

    if part != TRUST and sys.stdout.isatty():
        raise InputError("private keys are not printed on a terminal", hint="Pipe them: … --yaml | kubectl apply -f -")
    sys.stdout.write("---\n")
    output.document(secret(part, files), "yaml")


def _data(found: Object, part: str) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in (found.get("data") or {}).items()}
    except (binascii.Error, ValueError, TypeError) as error:
        raise InputError("holds data that is not base64", where=f"Secret {namespace(part)}/belay-{part}") from error


def _write(path: Path, content: bytes, public: bool) -> None:
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".new-")  # with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if public:
            os.chmod(fresh, 0o644)
        os.replace(fresh, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has its name already
            os.unlink(fresh)


__all__ = [
    "BATCH",
    "ENGINE",
    "PARTS",
    "TRUST",
    "ClusterSecrets",
    "KeyDirectory",
    "KeyStore",
    "print_secret",
    "read_list",
    "secret",
]
