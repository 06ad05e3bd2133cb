"""Mistakes in an NFS server's /etc/exports, for folders of training data and checkpoints.

Source: exports(5) of nfs-utils.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from belay.agents.storage.findings import Finding

MOST_BYTES = 256 * 1024
_WORD = re.compile(r'"[^"]*"|\S+')
_CLIENT = re.compile(r"(?P<host>[^()\s]*)(\((?P<options>[^()]*)\))?\Z")


def check_exports(text: str) -> list[Finding]:
    """Findings for every line that exports something; one that says so when none does.

    Lines continue after a backslash, ``#`` begins a comment.
    """
    found: list[Finding] = []
    exported = 0
    for number, line in _lines(text[:MOST_BYTES]):
        path, *clients = _WORD.findall(line)
        exported += 1
        where = f"line {number}, {path.strip(chr(34))[:80]}"
        if not path.strip('"').startswith("/"):
            found.append(_error(where, "the path is not absolute", "Write the folder's full path first."))
            continue
        if all(client.startswith("-") for client in clients):
            found.append(
                _error(
                    where,
                    "it names no client, so everybody may mount it",
                    "Name the cluster's network, as 10.0.0.0/16(rw,sync).",
                )
            )
        defaults = ""
        for client in clients:
            if client.startswith("-"):
                defaults = client[1:]
                continue
            found += _client(where, client, defaults)
    if not exported:
        found.append(_error("exports", "no folder is exported", "Add one line for each folder, then run exportfs -ra."))
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each entry."""
    held, begin = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].rstrip()
        begin = begin if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
            continue
        if (held + line).strip():
            yield begin, held + line
        held = ""
    if held.strip():
        yield begin, held


def _client(where: str, client: str, defaults: str) -> Iterator[Finding]:
    """Findings for one client of a line; one that is ok when there is no other."""
    found = list(_mistakes(where, client, defaults))
    yield from found or [Finding("export", "ok", f"{where}: {client[:80]}")]


def _mistakes(where: str, client: str, defaults: str) -> Iterator[Finding]:
    parsed = _CLIENT.match(client)
    if parsed is None:
        yield _error(where, f"{client[:60]!r} is no CLIENT(OPTIONS)", "Write no blanks inside the brackets.")
        return
    host = parsed["host"] or "*"
    options = [one.strip() for one in f"{defaults},{parsed['options'] or ''}".split(",") if one.strip()]
    where = f"{where} for {host[:60]}"
    if not parsed["host"]:
        # "host (rw)": the blank makes two clients of it, host with defaults and everybody with rw
        yield _error(
            where,
            "options stand alone, so they are for everybody",
            "Remove the blank between the client and its bracket.",
        )
    elif host == "*":
        yield Finding(
            "export",
            "warning",
            f"{where}: every host may mount it",
            "'*' is any address",
            "Name the cluster's network, as 10.0.0.0/16.",
        )
    if "rw" not in options:
        yield _error(
            where, "it is read-only, which is the default", "Add rw (data sets that no job writes may stay ro).", "note"
        )
    if "async" in options:
        yield _error(
            where, "async: a server that loses power loses what it had confirmed, checkpoints too", "Write sync."
        )
    if "all_squash" in options and not any(one.startswith("anonuid=") for one in options):
        yield _error(
            where,
            "all_squash without anonuid: every file belongs to the anonymous user",
            "Add anonuid= and anongid= of the folder's owner, or remove all_squash.",
        )
    if "no_root_squash" in options:
        yield Finding(
            "export",
            "warning",
            f"{where}: root of every client is root on the server",
            "no_root_squash",
            "Prefer root_squash and pods with a user of their own; else name the hosts one by one.",
        )
    if "insecure" in options:
        yield Finding("export", "warning", f"{where}: any process of a client may speak NFS", "insecure", "Remove it.")


def _error(where: str, found: str, step: str, state: str = "error") -> Finding:
    return Finding(
        "export",
        "note" if state == "note" else "error",
        f"{where}: {found}",
        "/etc/exports says so",
        f"{step} Then: exportfs -ra.",
    )
