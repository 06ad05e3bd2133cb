"""TLS for /metrics and for the probe: TLS 1.2 or newer, certificates read again when their files change."""

from __future__ import annotations

import os
import ssl
import stat
from pathlib import Path
from typing import Final

from belay.agents.common.log import Log

CHECK_SECONDS: Final = 30.0
_log = Log("exporter")


class TlsError(ValueError):
    """A certificate or key cannot be used; the text names the file and the next step."""


class Certificate:
    """A server certificate with its key; ``client_ca`` requires clients to present a certificate that it signed."""

    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        self._certificate, self._key, self._ca = Path(certificate), Path(key), client_ca
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load()
        if client_ca:
            try:
                self.context.load_verify_locations(cafile=client_ca)
            except (OSError, ssl.SSLError) as error:
                raise TlsError(f"{client_ca}: no certificates of an authority: {error}") from error
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._seen = self._signature()

    def _load(self) -> None:
        try:
            mode = self._key.stat().st_mode
            if mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise TlsError(f"{self._key}: mode {stat.S_IMODE(mode):04o} lets others at the key; chmod 0600")
            # a key with a passphrase must fail here and not ask on a terminal
            self.context.load_cert_chain(self._certificate, self._key, password="")
        except (OSError, ssl.SSLError) as error:
            raise TlsError(f"{self._certificate} with {self._key}: {error}") from error

    def renew(self) -> bool:
        """Load the files again if they changed; new connections get the new certificate. Errors are logged."""
        now = self._signature()
        if now == self._seen:
            return False
        try:
            self._load()
        except TlsError as error:
            _log.error("a new certificate cannot be used, the old one stays", error=error)
            return False
        self._seen = now
        _log.info("the certificate was renewed", path=str(self._certificate))
        return True

    def _signature(self) -> tuple[tuple[int, int], ...]:
        found = []
        for path in (self._certificate, self._key):
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_ino))
            except OSError:
                found.append((0, 0))
        return tuple(found)
