"""The repository that settings name, and a Source document that is followed while it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from engine import log
from engine.errors import InputError
from engine.settings import Settings, with_source_file
from engine.source.records import SourceConfig
from engine.source.repository import Source

FILE_SECONDS: Final = 1.0
"""How often the file of the document is looked at."""
_log = log.get("controller")


def source_of(settings: Settings) -> Source | None:
    """The repository that the settings name, None when they name none. Raises InputError for an impossible one."""
    if not settings.source_url:
        return None
    config = SourceConfig(
        url=settings.source_url,
        branch=settings.source_branch,
        path=settings.source_path,
        interval=settings.source_interval,
        verify_mode=settings.source_verify,
        allowed_signers=Path(settings.source_signers) if settings.source_signers else None,
        suspend=settings.source_suspend,
    )
    return Source(config, settings.data_folder / "git")


async def changed(settings: Settings, config: SourceConfig) -> Source:
    """Wait for a Source document that says something else; a broken one is told once and changes nothing."""
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
            _log.error("the Source document is not usable, the last one stays in force", reason=str(error))
            continue
        if source is not None and source.config != config:
            return source


def _version(file: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced; None while it is away (it then says nothing new)."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


__all__ = ["changed", "source_of"]
