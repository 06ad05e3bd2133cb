"""The API server's address and the agent's identity: a kubeconfig file, or the service account of its pod.

Formats: Kubernetes documentation, "Organizing Cluster Access Using kubeconfig Files" and "Accessing the API from a
Pod".
Exec plugins are not supported: an agent has a service account, or a file made for it.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from belay.agents.common.log import Log
from belay.engine.wire import yamltext

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_LIFE: Final = 60.0
_log = Log("credentials")


class CredentialsError(Exception):
    """The credentials cannot be used; the text names the file and the field, and never their content."""


class ClientCertificate:
    """Certificate and key of the agent as files, in the TLS context of its connections."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self._context, self._certificate, self._key = context, certificate, key
        self._held = (b"", b"")

    def renew(self) -> None:
        """Give new connections the pair that the files hold now. One that cannot be used leaves the former in place: it
        is read again, or the API server says what it lacks."""
        try:
            pair = self._certificate.read_bytes(), self._key.read_bytes()
            if pair != self._held:
                _load_pair(self._context, *pair)
                self._held = pair
        except (OSError, ValueError) as error:
            _log.warning("certificate not read again", file=str(self._certificate), error=type(error).__name__)


class Access:
    """An API server's address, its certificate authority, and the agent's credentials."""

    def __init__(
        self,
        server: str,
        *,
        tls: ssl.SSLContext | bool = True,
        token: str = "",
        token_file: Path | None = None,
        basic: str = "",
        certificate: ClientCertificate | None = None,
    ) -> None:
        self._server = server.rstrip("/")
        self.tls: ssl.SSLContext | bool = tls
        self._token, self._token_file, self._basic = token, token_file, basic
        self._certificate = certificate
        self._read_at = -_TOKEN_LIFE

    def url(self, path: str) -> str:
        """Return the address of an API path."""
        return self._server + path

    def headers(self) -> dict[str, str]:
        """Return the authorization; files are read again every minute: Kubernetes renews tokens, kubelet its
        certificate."""
        if time.monotonic() - self._read_at >= _TOKEN_LIFE:
            if self._token_file is not None:
                try:
                    self._token = self._token_file.read_text().strip()
                except OSError as error:
                    raise CredentialsError(f"{self._token_file} cannot be read: {error.strerror}") from error
            if self._certificate is not None:
                self._certificate.renew()
            self._read_at = time.monotonic()
        if self._token:
            return {"Authorization": f"Bearer {self._token}"}
        return {"Authorization": f"Basic {self._basic}"} if self._basic else {}


def load(kubeconfig: str | None = None) -> Access:
    """Return the access of a kubeconfig: the given one, else $KUBECONFIG, else the pod's service account, else
    ~/.kube/config.

    Raises CredentialsError.
    """
    path = kubeconfig or os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if not path and (SERVICE_ACCOUNT / "token").exists():
        return _in_cluster()
    return _from_file(Path(path) if path else Path.home() / ".kube" / "config")


def _in_cluster() -> Access:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsError("KUBERNETES_SERVICE_HOST is not set although a service account is mounted")
    host = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt"))
    return Access(f"https://{host}:{port}", tls=tls, token_file=SERVICE_ACCOUNT / "token")


def _from_file(path: Path) -> Access:
    try:
        config = yamltext.load(path.read_text())
    except OSError as error:
        raise CredentialsError(f"{path} cannot be read: {error.strerror}; set KUBECONFIG or --kubeconfig") from error
    except ValueError as error:
        raise CredentialsError(f"{path} is not YAML: {str(error)[:200]}") from error
    if not isinstance(config, dict):
        raise CredentialsError(f"{path} is not a kubeconfig")
    context = _mapping(_named(path, config, "contexts", str(config.get("current-context") or "")).get("context"))
    cluster = _mapping(_named(path, config, "clusters", str(context.get("cluster", ""))).get("cluster"))
    user = _mapping(_named(path, config, "users", str(context.get("user", ""))).get("user"))
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise CredentialsError(f"{path}: clusters.cluster.server is missing")
    if "exec" in user or "auth-provider" in user:
        raise CredentialsError(
            f"{path}: exec and auth-provider users are not supported; give the agent a service account"
        )
    basic = ""
    if user.get("username"):
        basic = base64.b64encode(f"{user['username']}:{user.get('password', '')}".encode()).decode()
    token_file = Path(str(user["tokenFile"])) if user.get("tokenFile") else None
    tls = _tls(path, cluster, user)
    certificate = None
    if user.get("client-certificate") and user.get("client-key"):
        files = (path.parent / str(user[field]) for field in ("client-certificate", "client-key"))
        certificate = ClientCertificate(tls, *files)
    return Access(
        server, tls=tls, token=str(user.get("token") or ""), token_file=token_file, basic=basic, certificate=certificate
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _named(path: Path, config: Mapping[str, Any], section: str, name: str) -> dict[str, Any]:
    entries = config.get(section)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry
    raise CredentialsError(f"{path}: {section} has no entry {name!r}")


def _tls(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    try:
        authority = _content(path, cluster, "certificate-authority")
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = _content(path, user, "client-certificate"), _content(path, user, "client-key")
        if certificate and key:
            _load_pair(context, certificate, key)
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{path}: a certificate or key cannot be used: {type(error).__name__}") from error
    return context


def _content(path: Path, section: Mapping[str, Any], field: str) -> bytes | None:
    if data := section.get(f"{field}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error as error:
            raise CredentialsError(f"{path}: {field}-data is not base64") from error
    if name := section.get(field):
        return (path.parent / str(name)).read_bytes()
    return None


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """The ssl module reads client keys from files only; this one is private and gone when the call returns."""
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)
