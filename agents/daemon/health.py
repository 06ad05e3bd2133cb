"""The agent's health probe for kubelet, with the flags of all MindCluster agents.

Rules: component/ascend-common/common-utils/healthz. An agent is unhealthy if a restart may help: it has not reached the
driver for long, or its loop is stuck. Failures of the API server or a chip are no reason to restart.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from belay.agents.common import ticks
from belay.agents.common.log import Log

if TYPE_CHECKING:
    from belay.agents.serving.tls import Certificate

PORT: Final = 11_251
#: Longest time the driver may take to answer for the first time (seconds); chips are slow to start.
START_SECONDS: Final = 900.0
BEAT: Final = 1.0
STUCK_SECONDS: Final = 60.0
ANY: Final = "0.0.0.0"
_log = Log("health")


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the probe listens; certificate and key both or neither. The address 127.0.0.1 serves exec probes."""

    address: str = ANY
    port: int = PORT
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if self.port != 0 and not 1025 <= self.port <= 65_535:
            raise ValueError(f"--healthz-address {self.port} is out of range; use 1025 to 65535")
        if bool(self.certificate) != bool(self.key):
            raise ValueError("--tls-cert-file and --tls-private-key-file are given together, or neither is")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("health probe")
    group.add_argument("--enable-healthz", action="store_true", help="answer GET / on the probe's port")
    group.add_argument("--healthz-address", type=int, default=PORT, metavar="PORT", help="the probe's port")
    group.add_argument("--tls-cert-file", default="", metavar="FILE", help="its certificate: answers then come by TLS")
    group.add_argument("--tls-private-key-file", default="", metavar="FILE", help="the certificate's key")


def chosen(options: argparse.Namespace) -> HealthSettings | None:
    """The settings that the flags give; None without ``--enable-healthz``. Raises ValueError naming flag or file."""
    if not options.enable_healthz:
        return None
    settings = HealthSettings(
        port=options.healthz_address, certificate=options.tls_cert_file, key=options.tls_private_key_file
    )
    _certificate(settings)
    return settings


def _certificate(settings: HealthSettings) -> Certificate | None:
    from belay.agents.serving.tls import Certificate

    return Certificate(settings.certificate, settings.key) if settings.certificate else None


class Liveness:
    """Whether the agent is alive. ``known``: whether the driver has answered once."""

    def __init__(self, known: Callable[[], bool], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._known, self._monotonic = known, monotonic
        self._begun = self._beaten = monotonic()

    def beat(self) -> None:
        """Record a round of the loop."""
        self._beaten = self._monotonic()

    def trouble(self) -> str:
        """The problem; empty without one."""
        now = self._monotonic()
        if now - self._beaten > STUCK_SECONDS:
            return f"the agent has been stuck for {now - self._beaten:.0f} s"
        if not self._known() and now - self._begun > START_SECONDS:
            return f"the driver has not answered in {now - self._begun:.0f} s"
        return ""


async def serve(settings: HealthSettings, known: Callable[[], bool]) -> None:
    """Answer until cancelled; a port that is taken is tried again. Raises ValueError for a bad certificate."""
    from belay.agents.serving import probe
    from belay.agents.serving.tls import CHECK_SECONDS

    certificate = _certificate(settings)
    pulse, due = Liveness(known), 0.0
    server = probe.server(pulse.trouble, certificate)
    while True:
        try:
            port = await server.start(settings.address, settings.port)
            break
        except OSError as error:
            _log.error("the health probe cannot listen", port=settings.port, error=error.strerror)
            await asyncio.sleep(5.0)
    _log.info("health probe listens", port=port)
    try:
        while True:
            pulse.beat()
            if certificate is not None and time.monotonic() >= due:
                due = time.monotonic() + CHECK_SECONDS
                certificate.renew()
            await asyncio.sleep(ticks.due(time.monotonic(), BEAT) - time.monotonic())
    finally:
        await server.close()
