"""Which orders for links are believed: those that a pinned key of the engine signed, none older than the last."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from belay.agents.common.log import Log
from belay.agents.node.trust import OrderTrust
from belay.engine.wire.seals import seal_of

_KEPT: Final = "link-orders.json"
_log = Log("links")


class LinkTrust:
    """Checks the orders for links of one node with the keys that the agent pins. ``state`` is a folder that survives
    restarts: it keeps the time of the newest orders that were believed, so that older ones never come back."""

    def __init__(self, trust: OrderTrust, state: Path) -> None:
        self._trust = trust
        self._file = state / _KEPT
        self._signed_at = self._read()

    def problem(self, body: Mapping[str, Any] | None) -> str:
        """Why orders are not believed; empty when they are, and while no key is pinned."""
        if not self._trust.required:
            return ""
        if body is None:
            # the engine withdraws links by orders without any: it does not delete
            return "the ConfigMap is gone" if self._signed_at else ""
        if problem := self._trust.seal_problem(body):
            return f"the ConfigMap {problem}"
        seal = seal_of(body)
        assert seal is not None
        if seal.signed_at < self._signed_at:
            return "the ConfigMap is older than the one that was accepted last"
        if seal.signed_at > self._signed_at:
            self._keep(seal.signed_at)
        return ""

    def _read(self) -> int:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=int)
        except FileNotFoundError:
            return 0
        except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
            _log.warning("the age of orders for links is not known", file=self._file, reason=error)
            return 0

    def _keep(self, signed_at: int) -> None:
        self._signed_at = signed_at
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = self._file.with_suffix(".new")
            fresh.write_bytes(msgspec.json.encode(signed_at))
            os.replace(fresh, self._file)
        except OSError as error:
            _log.warning("the age of orders for links cannot be kept on disk", reason=error)
