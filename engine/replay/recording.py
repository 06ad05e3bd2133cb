"""Recorded passes: all inputs of a pass, so that its plan can be derived again byte for byte.

A recording is one gzip JSON file: the documents of the revision, the raw cluster objects, ``now``, the shard and
the digest of the plan. The folder is bounded by count and size; the oldest recordings go first.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from belay.engine import versions
from belay.engine.errors import InputError
from belay.engine.load import UNKNOWN, Loaded, PriorState, load
from belay.engine.load.cluster import foreign_documents, with_places
from belay.engine.load.earlier_manifests import manifests_of_files, with_earlier
from belay.engine.model.last_changes import LastChange
from belay.engine.observe.observed import observe
from belay.engine.plan import plan
from belay.engine.replay.cluster_file import checked
from belay.engine.replay.summary import RECORDING_SUFFIX, path_of

FORMAT: Final = "belay-recording/1"
MAX_FILES: Final = 200
MAX_TOTAL_BYTES: Final = 512 * 1024 * 1024
MAX_ONE_BYTES: Final = 1024 * 1024 * 1024
LATEST: Final = 253370764800.0
"""9999-01-01: later times could not be written."""
_HINT: Final = "`belay up --data DIR` keeps recordings in DIR/engine/passes."
NOTHING: Final[Mapping[str, bytes]] = MappingProxyType({})
UNCHANGED: Final[Mapping[str, LastChange]] = MappingProxyType({})


class Recording(msgspec.Struct, frozen=True):
    """What one pass was made from. ``before`` and ``refused_files`` are what ``load`` was given of earlier contents;
    recordings of older versions have ``previous`` instead, older contents of broken files, newest first.
    ``confirmed`` are the digests of deletions that commits confirmed, ``earlier`` files as they were before one that
    waits. ``last_changes`` are the commits that last changed the files; recordings of older versions have none.
    """

    format: str
    version: str
    shard: str
    now: float
    revision: str
    files: dict[str, str]
    objects: list[dict[str, Any]]
    digest: str
    has_git: bool = True
    confirmed: tuple[str, ...] = ()
    earlier: dict[str, str] = {}
    before: PriorState | None = None
    refused_files: tuple[str, ...] = ()
    previous: dict[str, list[str]] = {}
    last_changes: dict[str, LastChange] = {}


class _Head(msgspec.Struct, frozen=True):
    """What recordings of every format begin with."""

    format: str
    version: str = ""


class Replayed(msgspec.Struct, frozen=True):
    """The comparison of a recorded pass with its derivation now."""

    file: str
    now: float
    recorded: str
    derived: str
    same: bool
    version: str = ""
    why: str = ""
    """Why the derivation may differ: another version of Belay recorded the pass. Empty where it is the same."""


def write(
    folder: Path,
    *,
    version: str,
    shard: str,
    now: float,
    revision: str,
    files: Mapping[str, bytes],
    objects: Iterable[Mapping[str, Any]],
    digest: str,
    has_git: bool = True,
    confirmed: Sequence[str] = (),
    earlier: Mapping[str, bytes] = NOTHING,
    before: PriorState = UNKNOWN,
    refused_files: Iterable[str] = (),
    last_changes: Mapping[str, LastChange] = UNCHANGED,
) -> Path:
    """Write one recording atomically and keep the folder within its bounds; returns the file."""
    recording = Recording(
        format=FORMAT,
        version=version,
        shard=shard,
        now=now,
        revision=revision,
        files={path: data.decode("utf-8", "surrogateescape") for path, data in sorted(files.items())},
        objects=[dict(obj) for obj in objects],
        digest=digest,
        has_git=has_git,
        confirmed=tuple(confirmed),
        earlier={path: data.decode("utf-8", "surrogateescape") for path, data in sorted(earlier.items())},
        before=before,
        refused_files=tuple(sorted(refused_files)),
        last_changes=dict(sorted(last_changes.items())),
    )
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{shard}-{int(now * 1000):014d}-{digest[:12]}{RECORDING_SUFFIX}"
    partial = target.with_suffix(f".{os.getpid()}.part")
    partial.write_bytes(gzip.compress(msgspec.json.encode(recording), compresslevel=1, mtime=0))
    partial.replace(target)
    _trim(folder)
    return target


def read(path: Path) -> Recording:
    """One recording.

    Raises:
        InputError: not readable, too big, or no recording of this format.
    """
    try:
        with gzip.open(path, "rb") as stream:
            data = stream.read(MAX_ONE_BYTES + 1)
    except gzip.BadGzipFile as error:
        raise InputError("is not a recording: recordings are gzip files", where=str(path), hint=_HINT) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), hint="Is the file complete?") from error
    if len(data) > MAX_ONE_BYTES:
        raise InputError(f"is larger than {MAX_ONE_BYTES >> 20} MiB unpacked", where=str(path))
    try:
        # the format first: what another one holds need not fit this one's fields
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise InputError(
                f"was recorded by Belay {_short(head.version) or 'of an unknown version'} as {_short(head.format)!r}, "
                f"and this version ({versions.version()}) reads {FORMAT}",
                where=str(path),
                hint="Replay it with the version that recorded it.",
            )
        recording = msgspec.json.decode(data, type=Recording)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InputError(f"is not a recording: {error}", where=str(path), hint=_HINT) from error
    if not 0 <= recording.now < LATEST:
        raise InputError("is not a recording: its time is out of range", where=str(path))
    objects = [checked(item, f"{path}: objects[{index}]") for index, item in enumerate(recording.objects)]
    return msgspec.structs.replace(recording, objects=objects)


def replay(path: Path) -> Replayed:
    """Derive a recorded pass again and compare digests.

    Raises:
        InputError: as ``read``.
    """
    recording = read(path)
    derived = plan(
        declared(recording).desired, observe(recording.objects, recording.shard), recording.now, shard=recording.shard
    ).digest()
    same, here = derived == recording.digest, versions.version()
    why = (
        ""
        if same or recording.version == here
        else (
            f"recorded by Belay {_short(recording.version)}, derived by {here}: where a version decides otherwise, "
            "its changelog says so"
        )
    )
    return Replayed(str(path), recording.now, recording.digest, derived, same, recording.version, why)


def declared(recording: Recording, overlays: Sequence[Mapping[str, bytes]] = ()) -> Loaded:
    """The desired state of a recorded pass, with documents laid over it."""
    previous = {n: [t.encode("utf-8", "surrogateescape") for t in older] for n, older in recording.previous.items()}
    loaded = load(
        {name: text.encode("utf-8", "surrogateescape") for name, text in recording.files.items()},
        before=recording.before or PriorState.of(previous),
        refused_files=recording.refused_files,
        revision=recording.revision,
        has_git=recording.has_git,
        overlays=list(overlays),
        foreign=foreign_documents(recording.objects),
    )
    earlier = {path: text.encode("utf-8", "surrogateescape") for path, text in recording.earlier.items()}
    desired = with_earlier(loaded.desired, manifests_of_files(earlier))
    if not recording.has_git:
        desired = with_places(desired, recording.objects)
    changes = {**desired.last_changes, **recording.last_changes}
    return replace(loaded, desired=replace(desired, confirmed=recording.confirmed, last_changes=changes))


def _short(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60])


def _trim(folder: Path) -> None:
    kept, used = 0, 0
    for file in sorted(folder.glob(f"*{RECORDING_SUFFIX}"), key=lambda f: f.name.split("-", 1)[-1], reverse=True):
        try:
            used += file.stat().st_size
            kept += 1
            if kept > MAX_FILES or used > MAX_TOTAL_BYTES:
                file.unlink()
                path_of(file).unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # another worker trimmed it
