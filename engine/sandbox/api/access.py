"""Authentication: the server's token, and the kubeconfig that contains it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import yaml

from belay.engine.kube.credentials import SERVER_EXTENSION
from belay.engine.sandbox.api.kinds import JSON

NAME = "belay-sandbox"


def kubeconfig(url: str, token: str, console: str = "") -> str:
    """Return a kubeconfig (YAML) for the server at `url`; `console` is where `belay server` listens, if known."""
    user: JSON = {"token": token} if token else {}
    cluster: JSON = {"server": url}
    if console:
        cluster["extensions"] = [{"name": SERVER_EXTENSION, "extension": {"url": console}}]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": NAME,
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": user}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
    }
    return str(yaml.safe_dump(config, sort_keys=False))


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, replacing an older one atomically."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    temporary.replace(path)


def stored_token(given: str | None, folder: Path | None) -> str:
    """Return the token to use: the given one, else the one stored in `folder`, else a new one, stored there."""
    if given is not None:
        return given
    path = folder / "token" if folder is not None else None
    if path is not None and path.exists():
        return path.read_text().strip()
    token = secrets.token_hex(16)
    if path is not None:
        write_secret(path, token)
    return token
