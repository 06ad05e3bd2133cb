"""``belay-source``: the repository that a shard's controller follows, for workers and operators.

Stored in Kubernetes, because Redis may lose its data at any time. It never holds credentials: the caller removes them
from the URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.wire import names


class FollowedRepository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository that the controller reads; an empty ``url`` means none. ``path`` is the folder in the repository,
    ``verify`` the mode of signature checks (none, ssh or gpg).
    """

    url: str = ""
    branch: str = ""
    path: str = ""
    verify: str = ""
    suspend: bool = False


def build(following: FollowedRepository, shard: str) -> dict[str, Any]:
    """Return the ConfigMap ``belay-source`` of a shard."""
    data = {
        "url": following.url,
        "branch": following.branch,
        "path": following.path,
        "verify": following.verify,
        "suspend": str(following.suspend).lower(),
    }
    metadata = {
        "name": names.source_config_map(shard),
        "namespace": names.SYSTEM,
        "labels": {ABOUT_LABEL: "source"},
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def parse(config_map: Mapping[str, Any]) -> FollowedRepository | None:
    """Parse the ConfigMap; None if it names no repository (after a manual edit)."""
    data = config_map.get("data")
    if not isinstance(data, Mapping) or not isinstance(data.get("url"), str):
        return None
    texts = {key: data[key] if isinstance(data.get(key), str) else "" for key in ("url", "branch", "path", "verify")}
    return FollowedRepository(**texts, suspend=data.get("suspend") == "true")
