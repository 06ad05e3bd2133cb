"""How people sign in, as the settings say it, and which role a person has."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from belay.engine.errors import InputError
from belay.engine.settings import Settings, password_in

EVERYONE: Final = "*"
PERSON: Final = "user:"


class Role(StrEnum):
    """What a person may do. Nothing in the console writes; ``changes`` may also have changes played forward."""

    VIEWER = "viewer"
    CHANGES = "changes"


class LoginRules(msgspec.Struct, frozen=True, kw_only=True):
    """``site`` is the server's address as browsers see it, without a slash at its end. ``viewers`` and ``changers`` are
    groups, or people as ``user:NAME``; ``*`` is everyone whom the issuer knows.
    """

    site: str
    issuer: str
    client: str
    secret: str = ""
    user_claim: str = "email"
    groups_claim: str = "groups"
    viewers: frozenset[str] = frozenset()
    changers: frozenset[str] = frozenset()

    @property
    def redirect(self) -> str:
        """Where the issuer sends a browser back to."""
        return f"{self.site}/login/callback"

    @property
    def origin(self) -> str:
        """The origin of the server's own pages."""
        parts = urlsplit(self.site)
        return f"{parts.scheme}://{parts.netloc}"

    def role_of(self, user: str, groups: Collection[str]) -> Role | None:
        """The role of a person; None where that person may not look."""
        # a person who may choose a name must not get the rights of a group of that name, nor a group those of a person
        names = {EVERYONE, f"{PERSON}{user}", *(group for group in groups if not group.startswith(PERSON))}
        if names & self.changers:
            return Role.CHANGES
        return Role.VIEWER if names & self.viewers else None


def login_rules(settings: Settings) -> LoginRules | None:
    """The rules in settings; None if no issuer is named.

    Raises:
        InputError: a setting that the others need is missing, or an address is not safe.
    """
    if not settings.oidc_issuer:
        return None
    for name in ("console_url", "oidc_client"):
        if not getattr(settings, name):
            raise InputError("sign-in by OIDC needs it", where=f"BELAY_{name.upper()}", hint="See docs/console.md.")
    viewers, changers = _listed(settings.oidc_viewers), _listed(settings.oidc_changers)
    if not viewers and not changers:
        raise InputError(
            "it is not said who may look", where="BELAY_OIDC_VIEWERS",
            hint="Name groups, or people as user:NAME, by commas; * is everyone whom the issuer knows.",
        )  # fmt: skip
    secret = password_in(settings.oidc_secret_file, "OIDC_SECRET_FILE") if settings.oidc_secret_file else ""
    return LoginRules(
        site=safe_address(settings.console_url, "BELAY_CONSOLE_URL").rstrip("/"),
        issuer=safe_address(settings.oidc_issuer, "BELAY_OIDC_ISSUER"),
        client=settings.oidc_client,
        secret=secret,
        user_claim=settings.oidc_user_claim,
        groups_claim=settings.oidc_groups_claim,
        viewers=viewers,
        changers=changers,
    )


def safe_address(text: str, where: str) -> str:
    """An https address, or an http address of this machine.

    Raises:
        InputError: it is neither.
    """
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError as error:
        raise InputError(f"{text[:200]!r} is not an address", where=where) from error
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if host and is_plain and (parts.scheme == "https" or (parts.scheme == "http" and _is_local(host))):
        return text
    raise InputError(f"{text[:200]!r} is not an https address", where=where, hint="Write https://HOST[:PORT][/PATH].")


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listed(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())
