"""Which forge a remote is on, where its API is, whose token is sent there, and the page on which people open a request.

Public forges are known by their host. On another host nothing is guessed, as a token would be sent there: the clone's
own configuration says what it is (``git config belay.forge gitlab``; ``belay.forgeApi``, where the API is elsewhere).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from belay.engine.cli.forge_calls import GITCODE, GITEA, GITEE, GITHUB, GITLAB, checked_address
from belay.engine.errors import InputError

KIND_SETTING: Final = "belay.forge"
API_SETTING: Final = "belay.forgeApi"
FORGES: Final = {name.lower(): name for name in (GITHUB, GITLAB, GITEA, GITEE, GITCODE)} | {"forgejo": GITEA}
"""What ``belay.forge`` may say."""
_HOSTS: Final = {
    "github.com": GITHUB, "ssh.github.com": GITHUB, "gitlab.com": GITLAB, "altssh.gitlab.com": GITLAB,
    "gitea.com": GITEA, "codeberg.org": GITEA, "gitee.com": GITEE, "gitcode.com": GITCODE,
}  # fmt: skip
_SAME_HOST: Final = {"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com"}
"""Hosts that take SSH on port 443, and the host whose pages people open."""
_APIS: Final = {"github.com": "https://api.github.com", "gitcode.com": "https://api.gitcode.com/api/v5"}
_BELOW: Final = {GITHUB: "/api/v3", GITLAB: "/api/v4", GITEA: "/api/v1", GITEE: "/api/v5", GITCODE: "/api/v5"}
"""Where the API lies on a host of one's own."""
TOKENS: Final = {
    GITHUB: ("BELAY_FORGE_TOKEN", "GITHUB_TOKEN", "GH_TOKEN"),
    GITLAB: ("BELAY_FORGE_TOKEN", "GITLAB_TOKEN"),
    GITEA: ("BELAY_FORGE_TOKEN", "GITEA_TOKEN", "FORGEJO_TOKEN"),
    GITEE: ("BELAY_FORGE_TOKEN", "GITEE_TOKEN", "GITEE_ACCESS_TOKEN"),
    GITCODE: ("BELAY_FORGE_TOKEN", "GITCODE_TOKEN"),
}
"""Variables that may hold the token, in the order in which they are looked at."""
_SCP: Final = re.compile(r"(?:[^@/\s]+@)?([A-Za-z0-9.-]+):(?!//)(.+)")


class Remote(NamedTuple):
    """A remote on a forge. ``forge`` is empty if it is not known, ``web`` where the remote is a folder."""

    forge: str
    web: str
    project: str
    api: str

    @property
    def owner(self) -> str:
        """The user or group."""
        return self.project.rpartition("/")[0]


def remote_of(url: str, kind: str, api: str) -> Remote:
    """What the address of a remote says, with the clone's settings ``belay.forge`` and ``belay.forgeApi``.

    Raises:
        InputError: a setting names no forge, or no address of an API that a token may be sent to; or the remote is no
            project of the forge that a setting names.
    """
    if kind and kind.lower() not in FORGES:
        raise InputError(f"{kind[:80]!r} is no forge that is known", where=f"git config {KIND_SETTING}",
                         hint=f"One of {', '.join(sorted(FORGES))}")  # fmt: skip
    host, web, project = _parts(url)
    forge = FORGES[kind.lower()] if kind else _HOSTS.get(host, "")
    if forge and not (host and project):
        raise InputError(f"the remote's address names no project on {forge}", where=url[:200],
                         hint=f"git remote set-url, or git config --unset {KIND_SETTING}")  # fmt: skip
    if forge and api and (below := _path_of_forge(api, forge, host)):
        web += below
        # by SSH the forge's path is no part of the project's
        if url.startswith(("https://", "http://")):
            project = project.removeprefix(f"{below[1:]}/")
    if forge and not api:
        api = _APIS.get(_SAME_HOST.get(host, host), f"{web}{_BELOW[forge]}")
    if forge:
        api = checked_address(api, plain=False, where=f"git config {API_SETTING}", allow=f"set {API_SETTING} to https")
    return Remote(forge, web, project, api if forge else "")


def _path_of_forge(api: str, forge: str, host: str) -> str:
    """The path below which a forge on a host of one's own lies (``/git``), as the address of its API says."""
    try:
        parts = urlsplit(api)
        own = parts.hostname == host
    except ValueError:
        return ""
    path = parts.path.rstrip("/")
    return path.removesuffix(_BELOW[forge]) if own and path.endswith(_BELOW[forge]) else ""


def token(env: Mapping[str, str], forge: str) -> str:
    """The token of the forge, empty if none is set.

    Raises:
        InputError: a variable holds what cannot be a token; the message holds nothing of it.
    """
    for name in TOKENS[forge]:
        value = env.get(name, "").strip()
        if value:
            if not re.fullmatch(r"[\x21-\x7e]{1,4096}", value):
                raise InputError("holds no token: a token is one word of ASCII letters", where=f"${name}")
            return value
    return ""


def page(remote: Remote, branch: str, base: str) -> str:
    """The page on which a person opens the request; empty if the forge is not known."""
    project, head, target = f"{remote.web}/{remote.project}", quote(branch), quote(base)
    match remote.forge:
        case "GitHub":
            return f"{project}/compare/{target}...{head}?expand=1"
        case "GitLab":
            source, into = quote(branch, safe=""), quote(base, safe="")
            return (
                f"{project}/-/merge_requests/new?merge_request%5Bsource_branch%5D={source}"
                f"&merge_request%5Btarget_branch%5D={into}"
            )
        case "Gitea":
            return f"{project}/compare/{target}...{head}"
        case "Gitee":
            return f"{project}/pull/new/{remote.owner}:{head}...{remote.owner}:{target}"
        case "GitCode":
            return f"{project}/pulls"
    return ""


def _parts(url: str) -> tuple[str, str, str]:
    """Host, address of the pages, and project of a remote; empty if it is a folder."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        found = _SCP.fullmatch(url)
        if found is None:
            return "", "", ""
        return _named(found[1], "", found[2], "https")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", "", ""
    # the port of SSH says nothing of the pages
    own_port = f":{port}" if port and scheme in ("http", "https") else ""
    return _named(host, own_port, parts.path, "http" if scheme == "http" else "https")


def _named(host: str, port: str, path: str, scheme: str) -> tuple[str, str, str]:
    host = host.lower()
    project = path.strip("/").removesuffix(".git")
    return host, f"{scheme}://{_SAME_HOST.get(host, host)}{port}" if host else "", project
