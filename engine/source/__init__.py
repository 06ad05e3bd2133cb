"""Git as the source of desired state: fetch, verify, choose files, read blobs.

    source = Source(SourceConfig(url="/srv/state.git"), Path("/var/lib/belay/git"))
    result = source.fetch(previous)          # never raises for what a repository or a network can do
    if result.revision and result.changed_ref:
        contents = source.read(result.revision.files[path] for path in result.revision.changed if path in
        result.revision.files)

The revision in force only moves to a commit that was fetched, verified and accepted. Whatever fails, the last good one
stays and a condition says why.
"""

from engine.source.records import Condition, FetchResult, Limits, Problem, Revision, SourceConfig, VerifyMode
from engine.source.repository import Source
from engine.source.worktree import blob_id

__all__ = [
    "Condition",
    "FetchResult",
    "Limits",
    "Problem",
    "Revision",
    "Source",
    "SourceConfig",
    "VerifyMode",
    "blob_id",
]
