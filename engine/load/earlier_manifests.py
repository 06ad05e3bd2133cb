"""What an earlier revision declared of objects that are no longer declared and whose deletion waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from belay.engine.documents import Desired, Manifest
from belay.engine.load import load


def manifests_of_files(files: Mapping[str, bytes]) -> tuple[Manifest, ...]:
    """The readable manifests in files of an earlier revision, sorted by key."""
    return load(files, shipped={}, has_git=False).desired.manifests if files else ()


def with_earlier(desired: Desired, earlier: tuple[Manifest, ...]) -> Desired:
    """``desired`` with earlier manifests of objects that it does not declare; itself if they are unchanged."""
    kept = tuple(manifest for manifest in earlier if manifest.key not in desired.manifest_index)
    return desired if desired.earlier == kept else replace(desired, earlier=kept)
