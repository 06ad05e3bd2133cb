"""Addresses and credentials that need no library: a pod's service account, a kubeconfig with tokens and files only.

The official client (`belay.engine.kube.credentials`) reads every kubeconfig and runs plugins, but costs each process 10
MiB and a third of a second. So what most installations have is read here, and all else, bad files included, is left to
it.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

_CLUSTER: Final = frozenset({
    "server", "certificate-authority", "certificate-authority-data", "insecure-skip-tls-verify", "tls-server-name",
    "extensions",
})  # fmt: skip
_USER: Final = frozenset({
    "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
})  # fmt: skip
_LARGEST: Final = 1024 * 1024
"""Bytes of a kubeconfig beyond which the library decides."""


class PlainAccess(NamedTuple):
    """A server's address as written, and what is needed to talk to it; ``rotates``: the token is in a file."""

    host: str
    token: str
    tls: ssl.SSLContext | None
    server_name: str | None
    rotates: bool


class _NotPlain(Exception):
    """Something that the library has to read, or to complain of."""


def in_cluster(folder: Path) -> PlainAccess | None:
    """The access of a pod's service account, whose files lie in ``folder``; None if something is missing."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "")
    try:
        token = (folder / "token").read_text().strip()
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except (OSError, ValueError):
        return None
    if not host or not port.isdecimal() or not token:
        return None
    place = f"[{host}]" if ":" in host else host
    return PlainAccess(f"https://{place}:{port}", token, tls, None, rotates=True)


def from_file(where: str, context: str | None) -> PlainAccess | None:
    """The access that a kubeconfig's context names; None where anything in it needs the library."""
    try:
        return _access(Path(where).expanduser().absolute().parent, _config(where), context)
    except (_NotPlain, yaml.YAMLError, OSError, ValueError, RecursionError):
        return None


def plain_extension(where: str, context: str | None, name: str) -> Mapping[str, Any] | None:
    """What an extension of the context's cluster holds, empty without one; None if the library has to look."""
    try:
        whole = _mapping(_config(where))
        chosen = _entry(whole, "contexts", context or whole.get("current-context"), "context")
        cluster = _entry(whole, "clusters", chosen.get("cluster"), "cluster")
        listed = cluster.get("extensions")
        named = [_mapping(row) for row in (listed if isinstance(listed, list) else ())]
        return next((_mapping(row.get("extension")) for row in named if row.get("name") == name), {})
    except (_NotPlain, yaml.YAMLError, OSError, ValueError, RecursionError):
        return None


def _config(where: str) -> object:
    """The content of the only file that is named."""
    path = Path(where).expanduser()
    if os.pathsep in where or not path.is_file() or path.stat().st_size > _LARGEST:
        raise _NotPlain
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _access(folder: Path, config: object, context: str | None) -> PlainAccess:
    whole = _mapping(config)
    chosen = _entry(whole, "contexts", context or whole.get("current-context"), "context")
    cluster = _entry(whole, "clusters", chosen.get("cluster"), "cluster")
    user = _entry(whole, "users", chosen.get("user"), "user")
    if not _CLUSTER.issuperset(cluster) or not _USER.issuperset(user) or {"token", "tokenFile"} <= set(user):
        raise _NotPlain

    host = _text(cluster, "server") or ""
    token, token_file = _text(user, "token"), _text(user, "tokenFile")
    if token_file:
        token = (folder / token_file).read_text()
    tls = _tls(folder, cluster, user) if host.startswith("https://") else None
    return PlainAccess(host, (token or "").strip(), tls, _text(cluster, "tls-server-name"), rotates=bool(token_file))


def _tls(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _content(folder, cluster, "certificate-authority")
    made = ssl.create_default_context(cadata=authority.decode() if authority else None)
    skip = cluster.get("insecure-skip-tls-verify", False)
    if not isinstance(skip, bool):
        raise _NotPlain
    if skip:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE

    certificate, key = _content(folder, user, "client-certificate"), _content(folder, user, "client-key")
    if bool(certificate) != bool(key):
        raise _NotPlain
    if certificate and key:
        import tempfile

        with tempfile.NamedTemporaryFile() as file:  # the ssl module reads files only; this one has mode 0600
            file.write(certificate + b"\n" + key)
            file.flush()
            made.load_cert_chain(file.name)
    return made


def _content(folder: Path, section: Mapping[str, Any], field: str) -> bytes | None:
    """What a field names as a file, or holds itself; the latter counts."""
    if data := _text(section, f"{field}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise _NotPlain from error
    name = _text(section, field)
    return (folder / name).read_bytes() if name else None


def _entry(config: Mapping[str, Any], section: str, name: object, part: str) -> Mapping[str, Any]:
    """What the entry of this name holds; exactly one must have it."""
    rows = config.get(section)
    found = [row for row in (rows if isinstance(rows, list) else ()) if _mapping(row).get("name") == name]
    if not isinstance(name, str) or len(found) != 1:
        raise _NotPlain
    return _mapping(_mapping(found[0]).get(part))


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _NotPlain
    return value


def _text(section: Mapping[str, Any], field: str) -> str | None:
    value = section.get(field)
    if value is not None and not isinstance(value, str):
        raise _NotPlain
    return value
