"""TLS between controller and processors, from MindIO's ``tls_info``: lines of ``key: value;`` (tlsCert, tlsCaPath,
tlsCaFile, tlsCrlPath, tlsCrlFile, tlsPk, tlsPkPwd, packagePath). Both sides show certificates of the same authority.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

KEYS = {"tlsCert", "tlsCaPath", "tlsCaFile", "tlsCrlPath", "tlsCrlFile", "tlsPk", "tlsPkPwd", "packagePath"}
MAX_TEXT = 64 * 1024


class TLSError(ValueError):
    """``tls_info`` cannot be used; the text names the key and the reason, never a secret."""


def parse(text: str) -> dict[str, str]:
    """The keys of ``tls_info``. Raises TLSError."""
    if len(text) > MAX_TEXT:
        raise TLSError(f"tls_info is {len(text)} characters long, at most {MAX_TEXT}")
    found: dict[str, str] = {}
    for part in text.strip().strip("()").split(";"):
        key, colon, value = part.partition(":")
        key = key.strip()
        if not key and not colon:
            continue
        if key not in KEYS:
            raise TLSError(f"tls_info names {key[:40]!r}; known are {', '.join(sorted(KEYS))}")
        found[key] = value.strip()
    for needed in ("tlsCert", "tlsPk", "tlsCaFile"):
        if not found.get(needed):
            raise TLSError(f"tls_info lacks {needed}; with enable_tls=False the connection is not protected")
    return found


def context(server: bool, text: str, decrypt: Callable[[str], str] | None = None) -> ssl.SSLContext:
    """The TLS context of a server or a client; ``decrypt`` turns tlsPkPwd into the key's password. Raises TLSError."""
    keys = parse(text)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    password = keys.get("tlsPkPwd", "")
    if password and decrypt is not None:
        try:
            password = decrypt(password)
        except Exception as error:
            raise TLSError(f"the decrypt handler failed: {type(error).__name__}") from error
    try:
        made.load_cert_chain(keys["tlsCert"], keys["tlsPk"], (lambda: password) if password else None)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise TLSError(f"tlsCert {keys['tlsCert']} with tlsPk cannot be loaded: {type(error).__name__}") from error
    for folder, files, flag in (("tlsCaPath", "tlsCaFile", False), ("tlsCrlPath", "tlsCrlFile", True)):
        for name in filter(None, (part.strip() for part in keys.get(files, "").split(","))):
            path = Path(keys.get(folder, "")) / name
            try:
                made.load_verify_locations(path)
            except (OSError, ssl.SSLError) as error:
                raise TLSError(f"{files} {path} cannot be loaded: {type(error).__name__}") from error
            if flag:
                made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return made
