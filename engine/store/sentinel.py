"""Redis behind Sentinels, which say where its primary is at the moment.

URL: ``redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT].../NAME[/DB]``, with TLS ``rediss+sentinel://``; NAME is
what the Sentinels call the primary. ``?sentinel_auth=1`` gives Sentinels the same user and password, which many
installations ask for; the ``ssl_...`` parameters are those of redis-py and hold for both.

Source: Redis documentation, "High availability with Redis Sentinel" and "Sentinel client spec".
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from belay.engine.errors import BelayError
from belay.engine.log import redact
from belay.engine.store.redis_library import redis

SCHEMES: Final = ("redis+sentinel", "rediss+sentinel")
DEFAULT_PORT: Final = 26379
MOST_SENTINELS: Final = 32
_HOST: Final = re.compile(r"(\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(:(?P<port>[0-9]{1,5}))?\Z")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")
_WORD: Final = re.compile(r"[a-z_]{1,40}\Z")
_TLS: Final = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_check_hostname", "ssl_certfile", "ssl_keyfile")
_SHAPE: Final = "Write redis+sentinel://HOST:26379,HOST:26379/NAME/0, NAME being what the Sentinels call the primary."


class Sentinels(NamedTuple):
    """Where to ask for the primary, and how to log in. ``tls`` holds redis-py's ``ssl_...`` arguments; None: no TLS."""

    hosts: tuple[tuple[str, int], ...]
    name: str
    db: int
    user: str
    password: str
    tls: dict[str, Any] | None
    sentinel_auth: bool

    def login(self) -> dict[str, Any]:
        """redis-py's arguments for user, password and TLS of the primary."""
        given: dict[str, Any] = {"username": self.user or None, "password": self.password or None}
        return {key: value for key, value in given.items() if value} | self._secure()

    def asking(self) -> dict[str, Any]:
        """The same for the Sentinels themselves."""
        return self.login() if self.sentinel_auth else self._secure()

    def _secure(self) -> dict[str, Any]:
        return {} if self.tls is None else {"ssl": True, **self.tls}

    def broker_url(self) -> str:
        """kombu's form: one URL for each Sentinel, user and password being those of the primary."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@" if self.password or self.user else ""
        places = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return ";".join(f"sentinel://{login}{place}/{self.db}" for place in places)


def patience(retry: Any) -> dict[str, Any]:
    """redis-py's arguments with which a Sentinel is asked: once and for a second, so that the next one gets its turn.

    ``retry`` is redis-py's class for blocking or for asyncio clients; its default would try ten times, for seconds.
    """
    return {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": retry(redis.backoff.NoBackoff(), 0)}


def is_sentinel(url: str) -> bool:
    """Whether a Redis URL names Sentinels."""
    return url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def parse(url: str) -> Sentinels:
    """What a ``redis+sentinel://`` URL says. Raises BelayError, without the password, where it is not understood."""
    if not url.isprintable():
        raise _refused(url, "it holds what is not text; in a password write % and hexadecimal digits for it")
    try:
        parts = urlsplit(url)
    except ValueError:  # its text holds what stands before the hosts, a password with it
        raise _refused(url, "it is no URL; in a password write / as %2F, [ as %5B and @ as %40") from None
    login, _, places = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    hosts = tuple(_host(text, number, url) for number, text in enumerate(places.split(","), 1))
    if parts.scheme not in SCHEMES or len(hosts) > MOST_SENTINELS:
        raise _refused(url, f"at most {MOST_SENTINELS} Sentinels")
    name, _, db = parts.path.removeprefix("/").partition("/")
    if not _NAME.match(name):
        raise _refused(url, "the name of the primary is missing, or no name")
    if db and not (db.isascii() and db.isdigit() and len(db) <= 4):
        raise _refused(url, "after the name stands the number of a database, or nothing")
    query = dict(parse_qsl(parts.query))
    if unknown := sorted(set(query) - {*_TLS, "sentinel_auth"}):
        # a ? in a password makes the rest of it a parameter
        shown = repr(unknown[0]) if _WORD.match(unknown[0]) else "of this name (in a password write ? as %3F)"
        raise _refused(url, f"it has no parameter {shown}")
    tls: dict[str, Any] = {key: text for key, text in query.items() if key in _TLS}
    if "ssl_check_hostname" in tls:
        tls["ssl_check_hostname"] = tls["ssl_check_hostname"].lower() == "true"
    if tls and parts.scheme == "redis+sentinel":
        raise _refused(url, "TLS is rediss+sentinel://")
    encrypted = tls if parts.scheme == "rediss+sentinel" else None
    auth = query.get("sentinel_auth", "0") in ("1", "true")
    return Sentinels(hosts, name, int(db or 0), unquote(user), unquote(password), encrypted, auth)


def _host(text: str, number: int, url: str) -> tuple[str, int]:
    found = _HOST.match(text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        # not shown: where a password holds a / as it is, this is a part of it
        raise _refused(url, f"host {number} is no HOST:PORT of a Sentinel (in a password write / as %2F, @ as %40)")
    return found["six"] or found["name"], port


def _refused(url: str, why: str) -> BelayError:
    """``url`` is shown from its hosts on: whatever stands before the last @ may be a password."""
    _, at, places = url.rpartition("@")
    shown = f"{'rediss' if url.startswith('rediss') else 'redis'}+sentinel://***@{places}" if at else url
    text = f"{ascii(redact(shown)[:200])[:300]} is not a usable Redis URL: {why}"
    return BelayError(text, where="BELAY_REDIS_URL", hint=_SHAPE)
