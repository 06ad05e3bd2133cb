"""Settings of a process: from the environment (``BELAY_…``), overridden by options of the command line."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from belay.engine.errors import InputError
from belay.engine.log import Log
from belay.engine.setting_meanings import OTHERS

PREFIX: Final = "BELAY_"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds, sizes in bytes. What each one means: ``belay.engine.setting_meanings``.

    ``redis_password_file`` and ``redis_ca_file`` become part of ``redis_url`` when the environment is read, so that the
    password stands in no variable. ``identity`` must be the same after a restart of the process.
    """

    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_password_file: str = ""
    redis_ca_file: str = ""
    batch_key_file: str = ""
    kubeconfig: str = ""
    context: str = ""
    identity: str = ""
    shard: str = "main"
    data: str = "/var/lib/belay"
    source_file: str = ""
    source_url: str = ""
    source_branch: str = "main"
    source_path: str = ""
    source_interval: float = 30.0
    source_verify: Literal["none", "ssh", "gpg"] = "none"
    source_signers: str = ""
    source_anchor: str = ""
    source_repository: str = ""
    source_trailer: bool = False
    source_rewrite: str = ""
    source_suspend: bool = False
    resync: float = 10.0
    debounce: float = 0.05
    claim: float = 30.0
    lease: float = 15.0
    silence: float = 2.0
    expiry: float = 30.0
    patience: float = 5.0
    order_life: float = 900.0
    order_keys: str = ""
    batch: int = 100
    batch_bytes: int = 512 * 1024
    in_flight: int = 64
    recordings: bool = True
    foreign_consumers: bool = False
    visibility: float = 60.0
    stall: float = 20.0
    health_port: int = 0
    grpc_listen: str = "auto"
    grpc_health_port: int = 11253
    grpc_plaintext: bool = False
    grpc_tls_cert: str = ""
    grpc_tls_key: str = ""
    grpc_tls_ca: str = ""
    grpc_callers: Literal["auto", "known", "address", "any"] = "auto"
    grpc_operators: str = ""
    grpc_fault_senders: str = ""
    recovery_namespace: Literal["belay-system", "belay-recovery"] = "belay-system"
    console_hosts: str = ""
    console_proxy_header: str = ""
    console_proxies: str = ""
    console_url: str = ""
    oidc_issuer: str = ""
    oidc_client: str = ""
    oidc_secret_file: str = ""
    oidc_user_claim: str = "email"
    oidc_groups_claim: str = "groups"
    oidc_viewers: str = ""
    oidc_changers: str = ""
    session_key_file: str = ""
    history_url: str = ""
    history_password_file: str = ""
    history_days: int = 400
    history_megabytes: int = 1024
    notify_hosts: str = ""
    notify_secrets: str = "/etc/belay/notify"
    log_level: str = "INFO"

    @property
    def data_folder(self) -> Path:
        return Path(self.data)


_DAY: Final = 86400.0
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "source_interval": (1.0, _DAY),
    "resync": (0.001, _DAY),
    "debounce": (0.0, 60.0),
    "claim": (0.001, 3600.0),
    "lease": (0.001, 3600.0),
    "silence": (0.001, 3600.0),
    "expiry": (0.001, 3600.0),
    "patience": (0.001, 3600.0),
    "order_life": (0.001, _DAY),
    "batch": (1, 10_000),
    "batch_bytes": (1024, 64 * 1024 * 1024),
    "in_flight": (1, 10_000),
    "visibility": (0.001, _DAY),
    "stall": (0.001, _DAY),
    "health_port": (0, 65535),
    "grpc_health_port": (0, 65535),
    "history_days": (1, 36_500),
    "history_megabytes": (1, 1_048_576),
}
_NEVER_EMPTY: Final = (
    "redis_url", "identity", "shard", "data", "source_branch", "log_level", "oidc_user_claim", "oidc_groups_claim",
)  # fmt: skip
_LONGEST_PASSWORD: Final = 512
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_EXPECTED: Final = {"float": "a number", "int": "a whole number", "bool": "0, 1, true or false"}
#: Variables with this prefix that are not settings of these processes.
_OTHERS: Final = frozenset(PREFIX + name for name in OTHERS)
#: Secrets of receivers, whose names a NotificationPolicy chooses.
_NOTIFY: Final = re.compile(r"BELAY_NOTIFY_(?!HOSTS?$|SECRETS?$)[A-Z0-9_]+")
#: Variables that Kubernetes sets in every container for the Services of its namespace.
_SERVICE: Final = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def from_environment(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings of this process; overrides that are None are ignored.

    Raises:
        InputError: a value cannot be read or is out of range; the text names the variable.
    """
    given = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        variable = PREFIX + field.name.upper()
        if variable in given:
            text = given[variable]
            values[field.name] = text == "1" if isinstance(field.default, bool) and text in "01" else text
    values.update({name: value for name, value in overrides.items() if value is not None})
    values.setdefault("identity", socket.gethostname())
    settings = _convert(values)
    if settings.source_file:
        with naming(*variables_of(settings, "source_file", environ=given)):
            settings = with_source_file(settings)
    _check(settings)
    settings = with_redis_access(settings)
    if settings.expiry + settings.claim > 3600:
        raise InputError("claims and messages must not outlive an hour", where="BELAY_CLAIM, BELAY_EXPIRY")
    return settings


def variables_of(settings: Settings, *fields: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The variables from which these fields have their values; none where options or defaults gave them."""
    given = os.environ if environ is None else environ
    names = {PREFIX + field.upper(): str(getattr(settings, field)) for field in fields}
    return tuple(name for name, value in names.items() if value and given.get(name) == value)


def kube_variables(settings: Settings) -> tuple[str, ...]:
    """The variables that name the cluster's kubeconfig and its context."""
    return variables_of(settings, "kubeconfig", "context")


@contextlib.contextmanager
def naming(*variables: str) -> Iterator[None]:
    """Errors about what these variables name say so; without variables they stay as they are."""
    try:
        yield
    except InputError as error:
        if not variables:
            raise
        where = f"{', '.join(variables)} {error.where}".rstrip()
        raise InputError(error.message, where=where, hint=error.hint) from error


def misspelt(environ: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """(variable, similar setting) for variables that look like misspelt settings."""
    given = os.environ if environ is None else environ
    known = [PREFIX + field.name.upper() for field in msgspec.structs.fields(Settings)]
    strange = [
        name
        for name in sorted(given)
        if name.startswith(PREFIX)
        and name not in known
        and name not in _OTHERS
        and not _SERVICE.fullmatch(name)
        and not _NOTIFY.fullmatch(name)
    ]
    near = [(name, difflib.get_close_matches(name[:80], known, n=1, cutoff=0.85)) for name in strange[:100]]
    return [(name, found[0]) for name, found in near if found]


def warn(log: Log) -> None:
    """Log variables of the environment that look like misspelt settings."""
    for name, meant in misspelt():
        log.warning(f"{name} is not a setting: did you mean {meant}?")


def with_source_file(settings: Settings) -> Settings:
    """The settings with the repository that the ``Source`` document names now.

    Raises:
        InputError: the document cannot be read or is not valid.
    """
    from belay.engine.load.source_file import read_source

    spec = read_source(Path(settings.source_file)).spec
    return msgspec.structs.replace(
        settings,
        source_url=spec.url,
        source_branch=spec.branch,
        source_path=spec.path,
        source_interval=spec.interval,
        source_verify=spec.verify.mode,
        source_signers=spec.verify.allowed_signers or "",
        source_anchor=spec.verify.anchor or "",
        source_repository=spec.verify.repository or "",
        source_trailer=spec.verify.require_trailer,
        source_rewrite=spec.verify.allow_rewrite_to or "",
        source_suspend=spec.suspend,
    )


def with_redis_access(settings: Settings) -> Settings:
    """The settings with the password and the certificate authority of Redis in ``redis_url``.

    Raises:
        InputError: a file cannot be read, holds no password, or an authority is given without TLS.
    """
    parts = urlsplit(settings.redis_url)
    place, query = parts.netloc, dict(parse_qsl(parts.query))
    if settings.redis_password_file:
        user, _, host = place.rpartition("@")
        password = password_in(settings.redis_password_file, "REDIS_PASSWORD_FILE")
        place = f"{user.partition(':')[0]}:{quote(password, safe='')}@{host}"
    if settings.redis_ca_file:
        variable = f"{PREFIX}REDIS_CA_FILE {settings.redis_ca_file}"
        if parts.scheme not in ("rediss", "rediss+sentinel"):
            raise InputError("needs TLS: write rediss:// (or rediss+sentinel://) in BELAY_REDIS_URL", where=variable)
        if not os.access(settings.redis_ca_file, os.R_OK):
            raise InputError("cannot be read", where=variable)
        query |= {"ssl_ca_certs": settings.redis_ca_file, "ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
    url = urlunsplit((parts.scheme, place, parts.path, urlencode(query), ""))
    return msgspec.structs.replace(settings, redis_url=url) if (place, query) != (parts.netloc, {}) else settings


def password_in(path: str, setting: str) -> str:
    """The password in a file that a setting names.

    Raises:
        InputError: the file cannot be read, or does not hold one line.
    """
    where = f"{PREFIX}{setting} {path}"
    try:
        if not Path(path).is_file():
            raise InputError("is not a file", where=where, hint="Make one: openssl rand -hex 32 > FILE")
        with open(path, encoding="utf-8") as file:
            found = file.read(_LONGEST_PASSWORD + 2).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {type(error).__name__}", where=where) from error
    if not found or len(found) > _LONGEST_PASSWORD or "\n" in found:
        raise InputError(f"must hold one line of 1 to {_LONGEST_PASSWORD} characters", where=where)
    return found


def to_environment(settings: Settings) -> dict[str, str]:
    """The variables that make another process read the same settings."""
    return {
        PREFIX + name.upper(): str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in msgspec.structs.asdict(settings).items()
    }


def _check(settings: Settings) -> None:
    for name, (least, most) in _BOUNDS.items():
        value = getattr(settings, name)
        if not least <= value <= most:  # NaN is in no bounds
            given = f"{value:.12g}" if isinstance(value, float) or abs(value) < 1e15 else "far beyond"
            text = f"must be from {least:.12g} to {most:.12g}, but is {given}"
            raise InputError(text, where=PREFIX + name.upper())
    for name in _NEVER_EMPTY:
        if not getattr(settings, name):
            raise InputError("is empty: give a value, or unset it", where=PREFIX + name.upper())
    if not _LABEL.fullmatch(settings.shard):
        text = f"{settings.shard[:80]!r} is not a shard: lower-case letters, digits and '-', at most 63 characters"
        raise InputError(text, where=PREFIX + "SHARD")
    if settings.log_level.upper() not in _LEVELS:
        text = f"{settings.log_level[:40]!r} is not a log level: write {', '.join(_LEVELS[:-1])} or {_LEVELS[-1]}"
        raise InputError(text, where=PREFIX + "LOG_LEVEL")


def _convert(values: dict[str, Any]) -> Settings:
    for name, value in values.items():
        if (
            isinstance(value, str) and not value.isprintable()
        ):  # also bytes that are no UTF-8, which msgspec cannot read
            raise InputError(f"holds characters that are no text: {value[:40]!r}", where=PREFIX + name.upper())
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("$.")[2].rstrip("`")
        field = next(field for field in msgspec.structs.fields(Settings) if field.name == name)
        choices = get_args(field.type)
        wanted = " or ".join(choices) or _EXPECTED.get(getattr(field.type, "__name__", ""), "something else")
        text = f"must be {wanted}, but is {str(values[name])[:40]!r}"
        raise InputError(text, where=PREFIX + name.upper()) from error
