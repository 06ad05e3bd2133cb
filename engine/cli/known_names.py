"""Names for the shell's completion: nodes, chips, jobs, queues, pools, revisions and Belay's own documents.

A shell asks at every Tab, so names are kept in a file of the user's cache. What is older than some seconds is still
offered, and read again by a process of its own for the next Tab; only the first time the cluster is asked at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click

from belay.engine.model.labels import ABOUT_LABEL

#: Seconds for which names are taken as they are, and after which they are no longer offered.
FRESH: Final = 20.0
KEPT: Final = 24 * 3600.0
_FIRST_SECONDS: Final = 2.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_MOST_SHOWN: Final = 500

#: Kinds whose rows are asked for by the names of another kind; the plural's last letter is gone.
_NAMED_AS: Final = {"fault": "chip", "vnpu": "chip", "recoverie": "job", "order": "chip", "policie": "policy"}
#: Belay's own documents whose names are asked for, by kind; their places in Git are published.
_DOCUMENTS: Final = {"policy": "FaultPolicy", "isolation": "Isolation", "budget": "SafetyBudget"}

Names = dict[str, list[str]]


def complete_row(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Names for `belay get KIND`, `belay explain KIND` and `belay history SUBJECT`."""
    kind = str(context.params.get("what") or context.params.get("kind") or context.params.get("subject") or "").lower()
    return _offered(context, kind.removesuffix("s"), begun)


def completes(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completion of an argument that names something of one of these kinds: ``node``, ``chip``, ``job``, …

    Chips are offered once their node is written, as a cluster has many.
    """

    def offered(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
        wanted = [kind for kind in kinds if kind != "chip" or len(kinds) == 1 or "/" in begun]
        return [name for kind in wanted for name in _offered(context, kind, begun)]

    return offered


def _offered(context: click.Context, kind: str, begun: str) -> list[str]:
    """The known names that begin like this; none if nothing can be read, since a completion must not complain."""
    with contextlib.suppress(Exception):
        known = known_names(context.params.get("kubeconfig"), context.params.get("context"))
        rows = known.get(_NAMED_AS.get(kind, kind), [])
        if kind == "job" and "/" not in begun:
            # a job is meant by its name alone too
            rows = [*rows, *sorted({one.rpartition("/")[2] for one in rows})]
        return [one for one in rows if one.startswith(begun)][:_MOST_SHOWN]
    return []


def known_names(kubeconfig: str | None, context: str | None) -> Names:
    """The names in the cache, which is filled or renewed as its age says."""
    file = cache_file(kubeconfig, context)
    age = _age(file)
    if age is None or age > KEPT:
        return refresh(kubeconfig, context)
    if age > FRESH:
        _refresh_later(kubeconfig, context)
    return _read(file)


def cache_file(kubeconfig: str | None, context: str | None) -> Path:
    """Where the names of a cluster are kept."""
    import hashlib

    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    where = f"{kubeconfig or os.environ.get('KUBECONFIG') or ''}\n{context or ''}"
    return Path(base) / "belay" / f"names-{hashlib.sha256(where.encode()).hexdigest()[:16]}.json"


def refresh(kubeconfig: str | None, context: str | None) -> Names:
    """Read the names from the cluster and keep them.

    Raises:
        BelayError: the cluster does not answer.
    """
    from belay.engine.cli.published import PublishedCluster
    from belay.engine.kube import CONFIGMAP, Lister, ask_once
    from belay.engine.wire import names

    async def read(kube: Lister) -> list[dict[str, Any]]:
        selector = f"{ABOUT_LABEL} in (sync,pass,job,map,queues,revisions)"
        return (await kube.list(CONFIGMAP, names.SYSTEM, selector)).items

    items = ask_once(kubeconfig, read, _FIRST_SECONDS, context)
    found = names_of(PublishedCluster(items, time.time()))
    _write(cache_file(kubeconfig, context), found)
    return found


def names_of(found: Any) -> Names:
    """The names that a published cluster holds, by kind."""
    from belay.engine.wire import names, sync

    layout = found.layout
    places = sync.parse_places(found.of(names.SYNC).get(names.SYNC) or {})
    documents = {kind: _declared(places, written) for kind, written in _DOCUMENTS.items()}
    prefixes = layout.columns["prefix"]
    chips = [
        f"{node}/{prefixes[at]}{index}" for at, node in enumerate(layout.names) for index in layout.ids[at]
    ]  # fmt: skip
    return documents | {
        "node": list(layout.names),
        "chip": chips,
        "job": [f"{key.split('/')[0]}/{key.split('/')[2]}" for key in found.jobs],
        "pool": sorted(set(layout.columns["pool"])),
        "queue": [str(row["queue"]) for row in found.answer("queues").rows],
        "revision": [str(row["revision"])[:12] for row in found.answer("revisions").rows if row["revision"]],
    }


def _declared(places: Iterable[str], kind: str) -> list[str]:
    """The names of a kind's documents among ``Kind/name``."""
    return sorted(place.partition("/")[2] for place in places if place.startswith(f"{kind}/"))


def _refresh_later(kubeconfig: str | None, context: str | None) -> None:
    """Start a process that reads the names again; only one does."""
    import subprocess

    file = cache_file(kubeconfig, context)
    os.utime(file)  # others that ask in the meantime start no second one
    subprocess.Popen(
        [sys.executable, "-m", "belay.engine.cli.known_names", kubeconfig or "", context or ""],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _age(file: Path) -> float | None:
    try:
        return max(0.0, time.time() - file.stat().st_mtime)
    except OSError:
        return None


def _read(file: Path) -> Names:
    try:
        with file.open(encoding="utf-8") as stream:
            found = json.loads(stream.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    rows = found.items() if isinstance(found, dict) else ()
    return {kind: [str(one) for one in names] for kind, names in rows if isinstance(names, list)}


def _write(file: Path, names: Names) -> None:
    import tempfile

    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as stream:
        json.dump(names, stream)
    os.replace(stream.name, file)


if __name__ == "__main__":
    refresh(sys.argv[1] or None, sys.argv[2] or None)
