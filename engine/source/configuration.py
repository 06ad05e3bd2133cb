"""The source that settings name, and following changes of its Source document."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from belay.engine import log
from belay.engine.errors import InputError
from belay.engine.settings import Settings, with_source_file
from belay.engine.source.records import SourceConfig
from belay.engine.source.repository import GitSource
from belay.engine.wire.sourceinfo import FollowedRepository

FILE_SECONDS: Final = 1.0
"""Seconds between checks of the document's file."""
_log = log.get("controller")
#: The variable that holds a field of the Source document where no document is given.
_VARIABLES: Final = {
    "Source spec.url": "BELAY_SOURCE_URL",
    "Source spec.branch": "BELAY_SOURCE_BRANCH",
    "Source spec.path": "BELAY_SOURCE_PATH",
    "Source spec.interval": "BELAY_SOURCE_INTERVAL",
    "Source spec.verify": "BELAY_SOURCE_VERIFY, BELAY_SOURCE_SIGNERS",
    "Source spec.verify.anchor": "BELAY_SOURCE_ANCHOR",
    "Source spec.verify.repository": "BELAY_SOURCE_REPOSITORY",
    "Source spec.verify.allowRewriteTo": "BELAY_SOURCE_REWRITE",
}


def source_of(settings: Settings) -> GitSource | None:
    """The source that the settings name, None when they name none. Raises InputError for an invalid one."""
    if not settings.source_url:
        return None
    try:
        return GitSource(_config_of(settings), settings.data_folder / "git")
    except InputError as error:
        if settings.source_file or error.where not in _VARIABLES:
            raise
        raise InputError(error.message, where=_VARIABLES[error.where], hint=error.hint) from error


def _config_of(settings: Settings) -> SourceConfig:
    return SourceConfig(
        url=settings.source_url,
        branch=settings.source_branch,
        path=settings.source_path,
        interval=settings.source_interval,
        verify_mode=settings.source_verify,
        allowed_signers=Path(settings.source_signers) if settings.source_signers else None,
        suspend=settings.source_suspend,
        anchor=settings.source_anchor,
        repository=settings.source_repository,
        require_trailer=settings.source_trailer,
        allow_rewrite_to=settings.source_rewrite,
    )


def source_info(source: GitSource | None) -> FollowedRepository:
    """Description of the source for workers and people, without credentials."""
    if source is None:
        return FollowedRepository()
    config = source.config
    url = log.redact(config.url)
    return FollowedRepository(
        url=url, branch=config.branch, path=config.path, verify=config.verify_mode, suspend=config.suspend
    )


async def changed(settings: Settings, config: SourceConfig) -> GitSource:
    """Wait until the Source document changes, and return the new source; a broken document is logged once."""
    seen, file = None, Path(settings.source_file)
    while True:
        await asyncio.sleep(FILE_SECONDS)
        version = await asyncio.to_thread(_version, file)
        if version is None or version == seen:
            continue
        seen = version
        try:
            source = source_of(await asyncio.to_thread(with_source_file, settings))
        except InputError as error:
            _log.error("Source document not usable, the last one stays in force", reason=str(error))
            continue
        if source is not None and source.config != config:
            return source


def _version(file: Path) -> tuple[int, int, int] | None:
    """A value that changes when a file is written or replaced; None while the file is missing."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


__all__ = ["changed", "source_info", "source_of"]
