"""The engine's keys for orders: a folder with ``signing.pem``, and ``*.pub`` of the keys before and after it.

The folder is a Secret's mount: kubelet replaces the files when the Secret changes, and they are read again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from belay.engine.errors import InputError
from belay.engine.kube.lister import Object
from belay.engine.log import get
from belay.engine.model.cluster import Orders
from belay.engine.model.seals import Seal
from belay.engine.wire import seals
from belay.engine.wire.key_folder import KeyFolder
from belay.engine.wire.names import ORDERS_PREFIX
from belay.engine.wire.seals import SigningKey, TrustedKeys

SIGNING: Final = "signing.pem"
_CHECK_SECONDS: Final = 5.0
_log = get("kube")


class OrderKeys:
    """Seals orders and policies. Without ``signing.pem`` nothing is sealed, and everything works as without keys.

    Raises InputError when the folder or a key cannot be read; one that breaks later leaves the last good keys in force.
    """

    def __init__(self, folder: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        path = Path(folder) if folder else None
        if path is not None and not path.is_dir():
            # a mistyped path must not turn signing off
            raise InputError(
                "is not a folder", where=f"BELAY_ORDER_KEYS {folder}", hint="Name the folder with signing.pem."
            )
        self._files = KeyFolder(path, SIGNING)
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._stamp = self._files.stamp()
        self._keys = self._read()
        self._checked: dict[str, tuple[str, bool]] = {}

    @property
    def signing(self) -> SigningKey | None:
        """The key that signs now; None without one."""
        return self._current()[0]

    def problem(self, config_map: Object) -> str:
        """Why a ConfigMap is not sealed by a key of ours; empty when it is, and while we have none."""
        key, trusted = self._current()
        if key is None:
            return ""
        name = str(config_map["metadata"].get("name", ""))
        return trusted.problem(name, seals.digests(seals.covered(config_map)), seals.seal_of(config_map))

    def sealed_now(self, orders: Orders) -> bool:
        """Whether observed orders are sealed by the key that signs now; True while there is none."""
        key, trusted = self._current()
        if key is None:
            return True
        if orders.seal is None or orders.seal.key != key.key_id:
            return False
        version = f"{orders.resource_version} {orders.seal.signature}"
        known = self._checked.get(orders.node)
        if known is None or known[0] != version:
            problem = trusted.problem(ORDERS_PREFIX + orders.node, orders.digests, orders.seal)
            known = self._checked[orders.node] = (version, not problem)
        return known[1]

    def seal(self, config_map: dict[str, Any], now_ms: int, before: Seal | None = None) -> None:
        """Put a seal into a ConfigMap that is about to be written; take out an old one without a key.

        ``before`` is the seal of what it replaces: the new one is later, also when clocks of workers differ.
        """
        config_map["data"].pop(seals.SEAL_KEY, None)
        if (key := self.signing) is None:
            return
        at = max(now_ms, before.signed_at + 1 if before is not None else 0)
        sealed = key.seal(config_map["metadata"]["name"], seals.covered(config_map), at)
        config_map["data"][seals.SEAL_KEY] = seals.text_of(sealed)

    def _current(self) -> tuple[SigningKey | None, TrustedKeys]:
        with self._lock:
            if self._clock() - self._looked >= _CHECK_SECONDS:
                self._looked = self._clock()
                stamp = self._files.stamp()
                if stamp != self._stamp:
                    try:
                        self._keys, self._stamp = self._read(), stamp
                        self._checked = {}
                    except InputError as error:
                        _log.error("keys of orders not usable, the last good ones stay in force", reason=str(error))
            return self._keys

    def _read(self) -> tuple[SigningKey | None, TrustedKeys]:
        key: SigningKey | None = None
        public: list[bytes] = []
        where = ""
        try:
            files = self._files.read()
            for name, pem in files.items():
                where = self._files.place(name)
                if name == SIGNING:
                    key = SigningKey(pem)
                    public.append(key.public_pem())
                else:
                    TrustedKeys([pem])
                    public.append(pem)
        except ValueError as error:
            raise InputError(str(error), where=where, hint="`belay keys create orders` makes keys") from error
        return key, TrustedKeys(public)


__all__ = ["SIGNING", "OrderKeys"]
