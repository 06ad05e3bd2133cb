"""Git as the source of desired state: fetch, verify, choose files, read blobs.

    source = GitSource(SourceConfig(url="/srv/state.git"), Path("/var/lib/belay/git"))
    result = source.fetch(previous)          # never raises for errors of a repository or a network
    if result.revision and result.changed_ref:
        contents = source.read(result.revision.files[path] for path in result.revision.changed if path in
        result.revision.files)

The revision in force moves only to a commit that was fetched, verified and accepted. When a step fails, the last good
revision stays in force and a condition says why.
"""

from belay.engine.source.records import (
    FetchResult,
    Limits,
    RefusedFile,
    Revision,
    SourceCondition,
    SourceConfig,
    VerifyMode,
)
from belay.engine.source.repository import GitSource
from belay.engine.source.worktree import blob_id

__all__ = [
    "SourceCondition",
    "FetchResult",
    "Limits",
    "RefusedFile",
    "Revision",
    "GitSource",
    "SourceConfig",
    "VerifyMode",
    "blob_id",
]
