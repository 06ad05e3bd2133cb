"""Certificates that a test makes for itself, with openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(*arguments: str) -> None:
    """Run openssl. Raises CalledProcessError."""
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


def authority(folder: Path, name: str) -> Path:
    """A certificate authority of its own."""
    file = folder / f"{name}.crt"
    openssl(
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key"), "-out", str(file),
    )  # fmt: skip
    return file


def certificate(folder: Path, name: str, ca: str) -> tuple[Path, Path, Path]:
    """A certificate for loopback, signed by ``ca``: (certificate, key, authority)."""
    key, request, signed = folder / f"{name}.key", folder / f"{name}.csr", folder / f"{name}.crt"
    extra = folder / f"{name}.ext"
    extra.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(
        "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
        "-keyout", str(key), "-out", str(request),
    )  # fmt: skip
    openssl(
        "x509", "-req", "-in", str(request), "-CA", str(folder / f"{ca}.crt"), "-CAkey", str(folder / f"{ca}.key"),
        "-CAcreateserial", "-days", "2", "-extfile", str(extra), "-out", str(signed),
    )  # fmt: skip
    return signed, key, folder / f"{ca}.crt"


__all__ = ["authority", "certificate", "openssl"]
