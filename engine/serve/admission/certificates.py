"""The certificate with which the webhook answers the API server: made by the process itself, or read from a folder.

A process that makes its own needs no Secret and no rights to one: the authority that signed the certificate is made
with it, its key is forgotten at once, and the API server learns the authority through ``caBundle`` of our webhook
configuration, which holds one authority for each process that serves.
"""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from belay.engine.errors import InputError, bounded

FILES: Final = ("tls.crt", "tls.key", "ca.crt")
SERVICE: Final = "belay-admission.belay-system.svc"
LIFETIME: Final = datetime.timedelta(days=7)
"""Of a certificate that a process makes for itself; it makes the next one after half of it."""
SKEW: Final = datetime.timedelta(minutes=10)
"""How far the API server's clock may be behind."""
MOST_AUTHORITIES: Final = 16
"""In a bundle: more processes than anybody runs, and fewer than processes that end at once would leave."""
_ISSUER: Final = "belay-admission"
_MAX_FILE: Final = 1024 * 1024


class Certificate(Protocol):
    """A certificate that a server can be started with, and renewed while it runs."""

    context: ssl.SSLContext

    def renew(self) -> None:
        """Load or make a new certificate where that is due; raises InputError, and the last good one stays."""
        ...

    def bundle(self, live: bytes) -> bytes:
        """The authorities in PEM that the API server must trust, from those that it trusts now."""
        ...


class ServingCertificate:
    """The certificate in a folder (a Secret of type kubernetes.io/tls with ca.crt), loaded again when it changes.

    Raises:
        InputError: a file cannot be used; a changed one that cannot be used leaves the last one in force.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.context = _server_context()
        self.authority = b""
        self._seen: tuple[int, ...] = ()
        self.renew()

    def renew(self) -> None:
        """Load the files if they changed."""
        try:
            seen = tuple((self._folder / name).stat().st_mtime_ns for name in FILES)
            if seen == self._seen:
                return
            with (self._folder / "ca.crt").open("rb") as source:
                authority = source.read(_MAX_FILE)
            ssl.create_default_context(cadata=authority.decode("ascii"))
            self.context.load_cert_chain(self._folder / "tls.crt", self._folder / "tls.key", password=lambda: "")
        except (OSError, ValueError) as error:
            text = error.strerror or str(error) if isinstance(error, OSError) else "ca.crt is no certificate"
            raise InputError(
                f"the certificate cannot be used: {bounded(text, 200)}",
                where=str(self._folder),
                hint="It needs tls.crt, tls.key and ca.crt in PEM (docs/access.md, Admission), "
                "or leave --certificates out: the process then makes a certificate for itself.",
            ) from error
        self.authority, self._seen = authority, seen

    def bundle(self, live: bytes) -> bytes:
        """The authority of the folder, whatever was trusted before."""
        return self.authority


class SelfMadeCertificate:
    """A certificate that this process made for itself. ``names`` are the DNS names or addresses of the webhook;
    ``identity`` distinguishes processes, and stands in the authority's name.
    """

    def __init__(
        self,
        identity: str,
        names: Sequence[x509.GeneralName] = (x509.DNSName(SERVICE),),
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self._identity = identity
        self._names = names
        self._now = now
        self.context = _server_context()
        self._own: list[bytes] = []
        self._renew_at = now()
        self.renew()

    def renew(self) -> None:
        """Make the next certificate once half of the last one's life is over."""
        now = self._now()
        if now < self._renew_at:
            return
        authority, chain = _make(self._identity, self._names, now)
        _load(self.context, chain)

        # Connections that were made before go on with the last one, so the API server has to trust both.
        self._own = [*self._own[-1:], authority]
        self._renew_at = now + LIFETIME / 2

    def bundle(self, live: bytes) -> bytes:
        """The authorities of other processes that are still valid, and those of this one; oldest first. Where these
        are there already, in whatever order, the bundle as it is: two processes would else write theirs in turn.
        """
        own = {_subject(x509.load_pem_x509_certificate(pem)) for pem in self._own}
        others = [cert for cert in _certificates(live) if self._still_serves(cert) and _subject(cert) not in own]
        others.sort(key=lambda cert: cert.not_valid_before_utc)
        kept = others[-(MOST_AUTHORITIES - len(self._own)) :]
        wanted = [*(_pem(cert) for cert in kept), *self._own]
        there = [_pem(cert) for cert in _certificates(live)]
        return live if sorted(there) == sorted(wanted) else b"".join(wanted)

    def _still_serves(self, cert: x509.Certificate) -> bool:
        return _subject(cert).startswith(_ISSUER) and cert.not_valid_after_utc > self._now()


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _make(identity: str, names: Sequence[x509.GeneralName], now: datetime.datetime) -> tuple[bytes, bytes]:
    """An authority, and a certificate that it signed with its key, both in PEM; the authority.s key is forgotten."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    # Its serial number makes two authorities of one process different: names decide which is which in a bundle.
    serial = x509.random_serial_number()
    issuer = _name(f"{_ISSUER} {identity[:24]} {serial % 10**12:012d}")

    def builder(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + LIFETIME)
        )

    authority = (
        builder(issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    signed = (
        builder(_name(_ISSUER), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return _pem(authority), _pem(signed) + private


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """Load a certificate with its key; ssl reads them from files only, which exist for that moment."""
    handle, path = tempfile.mkstemp(prefix="belay-admission-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(chain)
        context.load_cert_chain(path)
    finally:
        Path(path).unlink()


def _certificates(bundle: bytes) -> list[x509.Certificate]:
    """The certificates of a bundle in PEM; none where something else was written into it."""
    try:
        return x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except (ValueError, UnsupportedAlgorithm):
        return []


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _subject(cert: x509.Certificate) -> str:
    names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


__all__ = ["Certificate", "SelfMadeCertificate", "ServingCertificate"]
