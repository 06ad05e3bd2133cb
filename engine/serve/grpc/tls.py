"""Mutual TLS with certificates that may be renewed while the server runs, and when plaintext is allowed.

Clients of ClusterD speak plaintext only. So the server does on a loopback address, or with ``BELAY_GRPC_PLAINTEXT=1``,
which the shipped manifests set: existing jobs then work unchanged inside the cluster's network. With certificates set,
every client must present one of the same authority.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from belay.engine.errors import InputError
from belay.engine.log import get
from belay.engine.settings import Settings

_log = get("grpc.tls")
_MAX_BYTES = 1024 * 1024


class Files(NamedTuple):
    """PEM files: our certificate chain, its key, and the authority that signs clients' certificates."""

    certificate: Path
    key: Path
    authority: Path


def files_of(settings: Settings) -> Files | None:
    """The files that are set; None when none is.

    Raises:
        InputError: some are set and some are not.
    """
    given = (settings.grpc_tls_cert, settings.grpc_tls_key, settings.grpc_tls_ca)
    if not any(given):
        return None
    if not all(given):
        raise InputError(
            "certificate, key and authority go together",
            where="BELAY_GRPC_TLS_CERT, BELAY_GRPC_TLS_KEY, BELAY_GRPC_TLS_CA",
        )
    return Files(*(Path(name) for name in given))


def allowed_plaintext(settings: Settings, host: str) -> bool:
    """Whether the address may be served without TLS."""
    return settings.grpc_plaintext or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Certificates:
    """Certificates that are read again when their files change; unreadable files leave the last good ones in force."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._seen: tuple[tuple[int, int], ...] = ()
        self._before = b""
        self._last = self._read()
        self._shown: tuple[tuple[int, int], ...] = self._seen  # as of the server's last handshake

    def server(self) -> grpc.ServerCredentials:
        """Credentials of a server that accepts only clients with a certificate of the authority."""
        newest: Any = self._newest  # None is a legal answer, whatever the stubs say
        return grpc.dynamic_ssl_server_credentials(self._configured(), newest, True)

    def client(self) -> grpc.ChannelCredentials:
        """Credentials for calls to other servers, from the current files."""
        self._renew()
        key, certificate, authority = self._last
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def shared(self) -> bytes:
        """The certificate chain in PEM, the newest and the one before: what the servers show each other."""
        self._renew()
        return self._last[1] + self._before

    def _newest(self) -> grpc.ServerCertificateConfiguration | None:
        """The configuration when the files have changed; None while they have not. Called at every handshake."""
        self._renew()
        if self._shown == self._seen:
            return None
        self._shown = self._seen
        return self._configured()

    def _renew(self) -> None:
        try:
            if self._stamps() == self._seen:
                return
            before = self._last[1]
            self._last = self._read()
            self._before = before
        except (OSError, InputError) as error:
            _log.warning("certificates not read again; the last ones stay in force", reason=str(error))
            return
        _log.info("certificates renewed")

    def _configured(self) -> grpc.ServerCertificateConfiguration:
        key, certificate, authority = self._last
        return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)

    def _read(self) -> tuple[bytes, bytes, bytes]:
        stamps = self._stamps()
        found = []
        named = (
            ("BELAY_GRPC_TLS_KEY", self._files.key),
            ("BELAY_GRPC_TLS_CERT", self._files.certificate),
            ("BELAY_GRPC_TLS_CA", self._files.authority),
        )
        for variable, file in named:
            where = f"{variable} {file}"
            try:
                with file.open("rb") as source:
                    data = source.read(_MAX_BYTES)
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror or error}", where=where) from error
            if b"-----BEGIN " not in data:
                raise InputError("is not a PEM file", where=where)
            found.append(data)
        self._seen = stamps
        return found[0], found[1], found[2]

    def _stamps(self) -> tuple[tuple[int, int], ...]:
        try:
            found = [file.stat() for file in self._files]
        except OSError as error:
            where = f"BELAY_GRPC_TLS_CERT, BELAY_GRPC_TLS_KEY, BELAY_GRPC_TLS_CA {error.filename}"
            raise InputError(f"cannot be read: {error.strerror or error}", where=where) from error
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in found)


__all__ = ["Certificates", "allowed_plaintext", "files_of", "is_loopback"]
