"""No secret in any log: after each end-to-end test the secrets that it used are looked for in the logs that it left.

Planted: a webhook secret in the environment of every process. Found in the test's folders: private keys, tokens of
kubeconfig files, and files named as Secrets are mounted (password, keys, token, secret).
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

WEBHOOK = "BELAY_WEBHOOK_SECRET"
#: Shorter texts are no secrets of this project's tests, and would be found by chance.
LEAST = 16
_MOUNTED = frozenset({"password", "keys", "token", "secret", "signing.pem", "ssh-privatekey"})
_LOGS = re.compile(r"(^|[._-])(log|out|err|stdout|stderr)([._-]\d+)?$")
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)-----END", re.DOTALL)
_TOKEN = re.compile(rb"[\"']?token[\"']?\s*:\s*[\"']?([A-Za-z0-9._-]{16,})")
_SKIPPED = frozenset({"etcd", "objects", ".git", ".venv", "node_modules", "site-packages"})
_MOST_FILE = 1024 * 1024
_MOST_LOG = 64 * 1024 * 1024
_MOST_FILES = 20_000

_folders: dict[str, list[Path]] = defaultdict(list)
"""Folders that end-to-end tests were given, by module: fixtures may live as long as their module."""


def harvest(folders: Iterable[Path]) -> dict[bytes, str]:
    """The secrets in files of these folders, each with where it was found."""
    found: dict[bytes, str] = {}
    for file in _files(folders):
        if is_log(file) or file.stat().st_size > _MOST_FILE:
            continue
        content = file.read_bytes()
        texts: list[bytes] = []
        for body in _KEY.findall(content):
            texts += [line.strip() for line in body.splitlines() if len(line.strip()) > 40]
        if b"apiVersion" in content and b"users" in content:
            texts += _TOKEN.findall(content)
        if file.name in _MOUNTED and b"-----" not in content:
            texts += content.split()
        for text in texts:
            if len(text) >= LEAST:
                found.setdefault(text, str(file))
    return found


def leaks(folders: Iterable[Path], known: Mapping[bytes, str]) -> list[str]:
    """Each log that holds a secret, with what the secret is; never the secret itself."""
    found = []
    for file in _files(folders):
        if not is_log(file):
            continue
        with file.open("rb") as log:
            content = log.read(_MOST_LOG)
        found += [f"{file}: holds the secret of {place}" for text, place in known.items() if text in content]
    return found


def is_log(file: Path) -> bool:
    """Whether a file is what a process printed or logged, by its name."""
    return _LOGS.search(file.name) is not None


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    left, waiting = _MOST_FILES, list(dict.fromkeys(folders))
    while waiting and left > 0:
        try:
            entries = list(waiting.pop().iterdir())
        except OSError:
            continue  # gone meanwhile, or not ours to read
        for entry in entries:
            if entry.is_symlink():
                continue
            if entry.is_dir():
                if entry.name not in _SKIPPED:
                    waiting.append(entry)
            elif entry.is_file():
                left -= 1
                yield entry


@pytest.fixture(autouse=True)
def planted_secrets(request: pytest.FixtureRequest) -> Iterator[None]:
    """Plant a secret for an end-to-end test, and look for every secret in its logs when it ends."""
    if request.node.get_closest_marker("e2e") is None:
        yield
        return
    planted = f"planted-{secrets.token_hex(16)}"
    patch = request.getfixturevalue("monkeypatch")
    patch.setenv(WEBHOOK, planted)
    yield
    folders = _folders[request.node.module.__name__]
    found = leaks(folders, {planted.encode(): WEBHOOK, **harvest(folders)})
    assert not found, "\n".join(found[:20])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the folders that the factory makes for an end-to-end test and for the fixtures that it needs."""
    if item.get_closest_marker("e2e") is None:
        return (yield)
    factory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    original = factory.mktemp
    kept = _folders[item.module.__name__]  # type: ignore[attr-defined]

    def mktemp(*arguments: Any, **named: Any) -> Path:
        made: Path = original(*arguments, **named)
        kept.append(made)
        return made

    object.__setattr__(factory, "mktemp", mktemp)
    try:
        return (yield)
    finally:
        object.__delattr__(factory, "mktemp")
