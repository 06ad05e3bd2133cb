"""Where the ledger lies: one ConfigMap, ``belay-notify``, written only over the version that was read."""

from __future__ import annotations

from typing import Any, Final, Protocol

import msgspec

from belay.engine.kube import CONFIGMAP, Conflict, Kube, NotFound
from belay.engine.log import get
from belay.engine.model.labels import ABOUT_LABEL, MANAGED_BY
from belay.engine.serve.notify.ledger import Ledger, LedgerState, problems
from belay.engine.wire import names

LEDGER_KEY: Final = "ledger.json"
PROBLEMS_KEY: Final = "problems.json"
_log = get("notify")


class LedgerPlace(Protocol):
    """Where ledgers are kept."""

    async def read(self) -> tuple[Ledger, str]:
        """The ledger and its version; an empty one with version "" where there is none."""

    async def write(self, ledger: Ledger, version: str) -> str | None:
        """Write over a version; the new version, or None where another server wrote meanwhile."""


class LedgerMap:
    """The ledger in the cluster."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def read(self) -> tuple[Ledger, str]:
        """The ledger and its version. Raises KubeError."""
        found = await self._kube.get(CONFIGMAP, names.NOTIFY, names.SYSTEM)
        if found is None:
            return Ledger(), ""
        version = str((found.get("metadata") or {}).get("resourceVersion") or "")
        return Ledger(read_state(found.get("data"))), version

    async def write(self, ledger: Ledger, version: str) -> str | None:
        """Write over a version; None where another server wrote meanwhile. Raises KubeError."""
        body = config_map(ledger)
        try:
            if not version:
                made = await self._kube.create(CONFIGMAP, body)
            else:
                body["metadata"]["resourceVersion"] = version
                made = await self._kube.replace(CONFIGMAP, body)
        except (Conflict, NotFound):
            return None
        return str((made.get("metadata") or {}).get("resourceVersion") or "")


def config_map(ledger: Ledger) -> dict[str, Any]:
    """The ConfigMap of a ledger."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.NOTIFY, "namespace": names.SYSTEM,
            "labels": {ABOUT_LABEL: "notify", MANAGED_BY: "belay"},
        },
        "data": {
            LEDGER_KEY: msgspec.json.encode(ledger.state()).decode(),
            PROBLEMS_KEY: msgspec.json.encode(problems(ledger.failing)).decode(),
        },
    }  # fmt: skip


def read_state(data: Any) -> LedgerState:
    """The ledger in a ConfigMap's data; an empty one where a person broke it: then what lasts is reported once more."""
    text = data.get(LEDGER_KEY) if isinstance(data, dict) else None
    try:
        return msgspec.json.decode(text if isinstance(text, str) else "{}", type=LedgerState)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError) as error:
        _log.warning("the ledger of notifications cannot be read and begins again", reason=str(error)[:200])
        return LedgerState()
