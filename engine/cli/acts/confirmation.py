"""Which deletions wait for a person, as the engine publishes them: what `belay confirm` may confirm."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from belay.engine.errors import BelayError, InputError
from belay.engine.model.labels import ABOUT_LABEL
from belay.engine.model.wording import counted
from belay.engine.wire import names, sync

_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_BEGUN: Final = re.compile(r"[0-9a-f]{6,32}")
_SHOWN: Final = 5
_LISTED: Final = 20


class Confirmed(NamedTuple):
    """The whole digest that is meant, what it deletes in lines, the revision that still declared it, and a note where
    no cluster could be asked."""

    digest: str
    deleted: Sequence[str]
    base: str = ""
    note: str = ""


def confirmed(text: str, cluster: str | None, kubeconfig: str | None) -> Confirmed:
    """What a digest, or how it begins, confirms.

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
        return Confirmed(given, (), note=f"not checked whether it waits, nor what it deletes: {why}")

    found = [one for one in waiting if one.startswith(given)]
    if len(found) == 1:
        return waiting[found[0]]
    if not waiting:
        raise InputError("no deletion waits for a person", where=given, hint="belay status shows those that do")
    several = ", ".join(sorted(waiting)[:_SHOWN])
    raise InputError(
        f"no deletion with this digest waits: what waits is {several}", where=given,
        hint="A deletion of other objects has another digest: read belay status again",
    )  # fmt: skip


def waiting_deletions(config_maps: Sequence[Mapping[str, Any]]) -> dict[str, Confirmed]:
    """By digest: the deletions that ``belay-sync`` of any shard holds back."""
    from belay.engine.status.status_reader import read_status

    found: dict[str, Confirmed] = {}
    for one in config_maps:
        name = str((one.get("metadata") or {}).get("name"))
        if name.split(".")[0] != names.SYNC:
            continue
        status = read_status([{**one, "metadata": {"name": names.SYNC}}])
        base = sync.prune_base(one)
        if digest := str(status.held_prune.get("digest") or ""):
            found[digest] = Confirmed(digest, _held(status.held_prune), base)
        for digest, rows in _deferred(status.deferred).items():
            found.setdefault(digest, Confirmed(digest, rows, base))
    return found


def _held(held: Mapping[str, Any]) -> list[str]:
    """Every object of a held set, the largest first, as far as they are published and a screen holds them."""
    rows = [row for row in held.get("list") or () if isinstance(row, Mapping)]
    total = _number(held.get("objects")) or len(rows)
    per_pool = held.get("chips")
    chips = sum(map(_number, per_pool.values())) if isinstance(per_pool, Mapping) else 0
    jobs = counted(_number(held.get("jobs")), "job")
    lines = [f"this deletes {counted(total, 'object')} ({jobs} on {counted(chips, 'chip')}):"]

    for row in rows[:_LISTED]:
        running = _number(row.get("chips"))
        lines.append(f"  {row.get('object')}" + (f", whose pods hold {counted(running, 'chip')}" if running else ""))
    if (rest := total - min(len(rows), _LISTED)) > 0:
        lines.append(f"  and {rest} more: belay status")
    return lines


def _deferred(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Deletions that wait for a window: all that one digest confirms."""
    by_digest: dict[str, list[str]] = {}
    for row in rows:
        if digest := str(row.get("confirm") or ""):
            by_digest.setdefault(digest, []).append(f"  {row.get('what') or 'an object'}")
    found = {}
    for digest, lines in by_digest.items():
        rest = [f"  and {len(lines) - _LISTED} more: belay status"] if len(lines) > _LISTED else []
        found[digest] = [f"this deletes {counted(len(lines), 'object')} now:", *lines[:_LISTED], *rest]
    return found


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _waiting(cluster: str | None, kubeconfig: str | None) -> tuple[dict[str, Confirmed] | None, str]:
    from belay.engine.cli.acts.effects import NO_CLUSTER
    from belay.engine.cli.inputs import LIVE
    from belay.engine.kube.credentials import names_cluster

    if cluster == NO_CLUSTER or (cluster is None and not names_cluster(kubeconfig)):
        return None, "no cluster is named (--cluster FILE|live)"
    try:
        if cluster in (None, LIVE):
            return waiting_deletions(_live(kubeconfig)), ""
        from belay.engine.replay.cluster_file import read_cluster

        return waiting_deletions(read_cluster(str(cluster))), ""
    except BelayError as error:
        if cluster is not None:
            raise
        return None, str(error).splitlines()[0]


def _live(kubeconfig: str | None) -> Sequence[Mapping[str, Any]]:
    from belay.engine.kube import CONFIGMAP, Kube
    from belay.engine.observe.live import with_kube

    async def read(kube: Kube) -> Sequence[Mapping[str, Any]]:
        return (await kube.list(CONFIGMAP, names.SYSTEM, f"{ABOUT_LABEL}=sync")).items

    return with_kube(kubeconfig, read)
