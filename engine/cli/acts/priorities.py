"""Whether the PriorityClass that an act names exists: in the repository, or in the cluster that it is planned for."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from belay.engine.cli.acts.placed_documents import documents
from belay.engine.errors import BelayError, InputError

_KIND: Final = "PriorityClass"
_API: Final = "scheduling.k8s.io/v1"
_OF_KUBERNETES: Final = frozenset({"system-cluster-critical", "system-node-critical"})
_SHOWN: Final = 10


def check_priority_class(name: str, files: Mapping[str, bytes], cluster: str | None, kubeconfig: str | None) -> None:
    """Refuse a PriorityClass that neither the repository nor the cluster has: the API server refuses pods that name it.

    Without a cluster nothing is refused, nor by a file that holds no PriorityClass: it may have been made without them.

    Raises:
        InputError: no such PriorityClass. BelayError: a cluster that was named cannot be read.
    """
    declared = {one.name.rpartition("/")[2] for one in documents(files, _KIND)}
    if name in declared | _OF_KUBERNETES:
        return
    existing = _existing(cluster, kubeconfig)
    if existing is None or name in existing:
        return

    known = sorted(declared | existing)
    near = difflib.get_close_matches(name, known, 1)
    meant = f": did you mean {near[0]}?" if near else ""
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    those = f"There are {', '.join(known[:_SHOWN])}{more}" if known else "There is none yet"
    raise InputError(
        f"neither this repository nor the cluster has PriorityClass {name!r:.80}{meant}",
        where=name[:80],
        hint=f"{those}; declare it in desired/ first, or write it all the same with --cluster none",
        code="NoSuchObject",
    )


def _existing(cluster: str | None, kubeconfig: str | None) -> set[str] | None:
    """The PriorityClasses of the cluster; None where that cannot be known."""
    from belay.engine.cli.acts.effects import NO_CLUSTER
    from belay.engine.cli.inputs import LIVE
    from belay.engine.kube.credentials import names_cluster

    if cluster == NO_CLUSTER or (cluster is None and not names_cluster(kubeconfig)):
        return None
    try:
        if cluster in (None, LIVE):
            return _names(_live(kubeconfig))
        from belay.engine.replay.cluster_file import read_cluster

        return _names(read_cluster(str(cluster))) or None
    except BelayError:
        if cluster is not None:
            raise
        return None  # the plan of the change says that the cluster does not answer


def _names(items: Sequence[Mapping[str, Any]]) -> set[str]:
    return {str(one["metadata"]["name"]) for one in items if one.get("kind") == _KIND}


def _live(kubeconfig: str | None) -> Sequence[Mapping[str, Any]]:
    from belay.engine.kube import Kube
    from belay.engine.kube.resources import resource_for
    from belay.engine.observe.live import with_kube

    async def read(kube: Kube) -> Sequence[Mapping[str, Any]]:
        # items of a list may leave their kind out
        found = (await kube.list(resource_for(_API, _KIND))).items
        return [{**one, "kind": _KIND} for one in found]

    return with_kube(kubeconfig, read)
