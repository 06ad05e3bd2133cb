"""Which deletions wait for a person, as the engine publishes them: what `belay confirm` may confirm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine.errors import BelayError, InputError
from engine.wire import names

_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_BEGUN: Final = re.compile(r"[0-9a-f]{6,32}")
_SHOWN: Final = 5


def digest_of(text: str, cluster: str | None, kubeconfig: str | None) -> tuple[str, str]:
    """The whole digest that is meant, and a note where no cluster could be asked whether it waits.

    Raises:
        InputError: it is no digest, or no deletion with it waits.
    """
    given = text.removeprefix("Belay-Confirm:").strip()
    if not _BEGUN.fullmatch(given):
        raise InputError(
            "a digest has 32 digits and letters from a to f", where=given[:80], hint="belay status shows it"
        )
    waiting, why = _waiting(cluster, kubeconfig)
    if waiting is None:
        if not _DIGEST.fullmatch(given):
            raise InputError(f"the whole digest is needed, as no cluster can be asked ({why})", where=given)
        return given, f"not checked whether it waits: {why}"
    found = [one for one in waiting if one.startswith(given)]
    if len(found) == 1:
        return found[0], ""
    if not waiting:
        raise InputError("no deletion waits for a person", where=given, hint="belay status shows those that do")
    several = ", ".join(sorted(waiting)[:_SHOWN])
    raise InputError(
        f"no deletion with this digest waits: what waits is {several}", where=given,
        hint="A deletion of other objects has another digest: read belay status again",
    )  # fmt: skip


def waiting_digests(config_maps: Sequence[Mapping[str, Any]]) -> set[str]:
    """The digests of the deletions that ``belay-sync`` of any shard holds back."""
    from engine.status.status_reader import read_status

    found: set[str] = set()
    for one in config_maps:
        name = str((one.get("metadata") or {}).get("name"))
        if name.split(".")[0] != names.SYNC:
            continue
        status = read_status([{**one, "metadata": {"name": names.SYNC}}])
        digests = [status.held_prune.get("digest"), *(row.get("confirm") for row in status.deferred)]
        found |= {str(digest) for digest in digests if digest}
    return found


def _waiting(cluster: str | None, kubeconfig: str | None) -> tuple[set[str] | None, str]:
    from engine.cli.acts.effects import NO_CLUSTER
    from engine.cli.inputs import LIVE
    from engine.kube.credentials import names_cluster

    if cluster == NO_CLUSTER or (cluster is None and not names_cluster(kubeconfig)):
        return None, "no cluster is named (--cluster FILE|live)"
    try:
        if cluster in (None, LIVE):
            return waiting_digests(_live(kubeconfig)), ""
        from engine.replay.cluster_file import read_cluster

        return waiting_digests(read_cluster(str(cluster))), ""
    except BelayError as error:
        if cluster is not None:
            raise
        return None, str(error).splitlines()[0]


def _live(kubeconfig: str | None) -> Sequence[Mapping[str, Any]]:
    from engine.kube import CONFIGMAP, Kube
    from engine.observe.live import with_kube

    async def read(kube: Kube) -> Sequence[Mapping[str, Any]]:
        return (await kube.list(CONFIGMAP, names.SYSTEM, f"{names.ABOUT_LABEL}=sync")).items

    return with_kube(kubeconfig, read)
