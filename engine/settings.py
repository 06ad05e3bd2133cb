"""What an operator tells a process: from the environment (``BELAY_…``), overridden by options of the command line."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from engine.errors import InputError

PREFIX: Final = "BELAY_"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in seconds, sizes in bytes.

    ``identity`` names the process in Leases and must be the same after its restart. ``source_*`` say where the desired
    state lives (empty ``source_url``: no repository, only what the cluster holds); ``source_file`` is a ``Source``
    document that says so instead, and that the controller follows while it runs. ``recordings`` is how many passes
    are kept for replay. ``foreign_consumers``: components of MindCluster read ``cluster-info-*``, so it is
    published again every five seconds (a live Volcano counts as one by itself). A worker that takes nothing for
    ``stall`` although there is work starts again; on ``health_port`` (0: nowhere) it answers ``/healthz`` and
    ``/readyz``. ``grpc_*`` say where `belay server` serves ClusterD's gRPC services: ``grpc_listen`` is HOST:PORT,
    ``off`` or ``auto`` ($POD_IP:8899, without it 127.0.0.1:8899 if that is free); its probe is on ``grpc_health_port``
    (0: nowhere); beyond loopback it needs the three ``grpc_tls_*`` files (mutual TLS) or ``grpc_plaintext``.
    """

    redis_url: str = "redis://127.0.0.1:6379/0"
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
    source_suspend: bool = False
    resync: float = 10.0
    debounce: float = 0.05
    claim: float = 30.0
    lease: float = 15.0
    expiry: float = 30.0
    patience: float = 5.0
    order_life: float = 900.0
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
    log_level: str = "INFO"

    @property
    def data_folder(self) -> Path:
        return Path(self.data)


_POSITIVE: Final = (
    "source_interval",
    "resync",
    "claim",
    "lease",
    "expiry",
    "patience",
    "order_life",
    "batch",
    "in_flight",
    "visibility",
    "stall",
)


def from_environment(environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
    """Settings of this process; an override that is None counts as not given.

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
        settings = with_source_file(settings)
    for name in _POSITIVE:
        if getattr(settings, name) <= 0:
            raise InputError("must be greater than 0", where=PREFIX + name.upper())
    if not 0 <= settings.health_port <= 65535:
        raise InputError("must be a port, or 0 for none", where=PREFIX + "HEALTH_PORT")
    if not 0 <= settings.grpc_health_port <= 65535:
        raise InputError("must be a port, or 0 for none", where=PREFIX + "GRPC_HEALTH_PORT")
    if settings.expiry + settings.claim > 3600:
        raise InputError("claims and messages must not outlive an hour", where="BELAY_CLAIM, BELAY_EXPIRY")
    return settings


def with_source_file(settings: Settings) -> Settings:
    """The same settings with the repository as its ``Source`` document names it now.

    Raises:
        InputError: the document cannot be read or is not valid.
    """
    from engine.load.given import read_source

    spec = read_source(Path(settings.source_file)).spec
    return msgspec.structs.replace(
        settings,
        source_url=spec.url,
        source_branch=spec.branch,
        source_path=spec.path,
        source_interval=spec.interval,
        source_verify=spec.verify.mode,
        source_signers=spec.verify.allowed_signers or "",
        source_suspend=spec.suspend,
    )


def to_environment(settings: Settings) -> dict[str, str]:
    """The variables that make another process read the same settings."""
    return {
        PREFIX + name.upper(): str(int(value)) if isinstance(value, bool) else str(value)
        for name, value in msgspec.structs.asdict(settings).items()
    }


def _convert(values: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("$.")[2].rstrip("`")
        raise InputError(str(error).split(" - ")[0], where=PREFIX + field.upper()) from error
