"""One connection to the recovery service (gRPC `Recover` of ClusterD, served by `belay server` or ClusterD itself)."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import grpc

from belay.agents.common import caller_token
from belay.engine.wire.clusterd import recover_pb2, recover_pb2_grpc

KEEPALIVE_MS: Final = 3000
KEEPALIVE_TIMEOUT_MS: Final = 1000
CALL_SECONDS: Final = 60.0
MAX_MESSAGE: Final = 8 << 20
MAX_RANKS: Final = 100_000
ROLE: Final = "master agent"
"""Role of every client of this library (component/taskd recover module)."""
CERTIFICATES: Final = ("ca.crt", "tls.crt", "tls.key")


@dataclasses.dataclass(frozen=True)
class ClientInfo:
    """Job and role of a client."""

    job_id: str
    role: str = ROLE


@dataclasses.dataclass(frozen=True)
class Status:
    """The answer of a call: a status code of ClusterD, and a text."""

    code: int
    info: str


class RecoverClient:
    """Calls of one job; safe for threads, each call bounded by ``CALL_SECONDS``.

    ``info`` may also be the service's own message `ClientInfo`, which scripts written for MindCluster give.
    ``cert_path`` is a folder with ca.crt, tls.crt and tls.key, needed when ``secure``. Raises ValueError when a file is
    missing, naming it; TypeError when ``info`` names no job.
    """

    def __init__(self, info: Any, address: str, *, secure: bool = False, cert_path: str = "") -> None:
        self.info, self._address = _client(info), address
        self._credentials = _credentials(cert_path) if secure else None
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._stub: Any = None

    @property
    def stub(self) -> Any:
        """The open stub; a dropped channel is opened again."""
        with self._lock:
            if self._stub is None:
                options = [
                    ("grpc.keepalive_time_ms", KEEPALIVE_MS), ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                    ("grpc.keepalive_permit_without_calls", 1), ("grpc.max_receive_message_length", MAX_MESSAGE),
                ]  # fmt: skip
                self._channel = caller_token.with_token(
                    grpc.insecure_channel(self._address, options)
                    if self._credentials is None
                    else grpc.secure_channel(self._address, self._credentials, options)
                )
                self._stub = recover_pb2_grpc.RecoverStub(self._channel)  # type: ignore[no-untyped-call]
            return self._stub

    def drop(self) -> None:
        """Close the channel; the next call opens another."""
        with self._lock:
            channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            channel.close()

    @property
    def channel(self) -> grpc.Channel:
        """The open channel, for another service of the same server."""
        assert self.stub is not None and self._channel is not None
        return self._channel

    def info_message(self) -> Any:
        """Job and role as the service's message."""
        return recover_pb2.ClientInfo(jobId=self.info.job_id, role=self.info.role)

    def status(self, name: str, message: Any) -> Status:
        """Call a method by its name. Raises grpc.RpcError."""
        answer = getattr(self.stub, name)(message, timeout=CALL_SECONDS)
        return Status(answer.code, answer.info)

    def init(self) -> Status:
        """Announce that the job has recovery. Raises grpc.RpcError, as all calls."""
        return self.status("Init", self.info_message())

    def register(self) -> Status:
        """Open a session."""
        return self.status("Register", self.info_message())

    def health_check(self) -> Status:
        """Whether the server answers."""
        return self.status("HealthCheck", self.info_message())

    def signals(self) -> Iterator[Any]:
        """Every ProcessManageSignal from now on, until the stream breaks (grpc.RpcError) or ends."""
        yield from self.stub.SubscribeProcessManageSignal(self.info_message())

    def stop_complete(self, code: int, msg: str, fault_ranks: Mapping[Any, Any]) -> Status:
        """Call ReportStopComplete: whether the processes have stopped."""
        return self.status(
            "ReportStopComplete",
            recover_pb2.StopCompleteRequest(
                jobId=self.info.job_id, status=recover_pb2.Status(code=code, info=msg), faultRanks=ranks(fault_ranks)
            ),
        )

    def recover_strategy(self, fault_ranks: Mapping[Any, Any], strategies: list[str]) -> Status:
        """Call ReportRecoverStrategy with the possible strategies."""
        return self.status(
            "ReportRecoverStrategy",
            recover_pb2.RecoverStrategyRequest(
                jobId=self.info.job_id, faultRanks=ranks(fault_ranks), strategies=strategies
            ),
        )

    def recover_status(self, code: int, msg: str, strategy: str, isolate: list[str]) -> Status:
        """ReportRecoverStatus; fault ranks are not put on the wire."""
        return self.status(
            "ReportRecoverStatus",
            recover_pb2.RecoverStatusRequest(
                jobId=self.info.job_id, status=recover_pb2.Status(code=code, info=msg), strategy=strategy,
                isolateRankIds=isolate,
            ),
        )  # fmt: skip

    def process_fault(self, fault_ranks: Mapping[Any, Any]) -> Status:
        """Call ReportProcessFault with the failed ranks."""
        return self.status(
            "ReportProcessFault",
            recover_pb2.ProcessFaultRequest(jobId=self.info.job_id, faultRanks=ranks(fault_ranks)),
        )


def ranks(faults: Mapping[Any, Any]) -> list[Any]:
    """A dict of rank to fault type as messages, ascending by rank.

    Raises TypeError for anything else, ValueError for more than 100,000 ranks.
    """
    if not isinstance(faults, Mapping):
        raise TypeError(f"fault_ranks must be a dict of rank to fault type, not {type(faults).__name__}")
    if len(faults) > MAX_RANKS:
        raise ValueError(f"fault_ranks names {len(faults)} ranks, at most {MAX_RANKS} are taken")
    pairs = sorted(((str(rank), str(kind)) for rank, kind in faults.items()), key=lambda pair: (len(pair[0]), pair))
    return [recover_pb2.FaultRank(rankId=rank, faultType=kind) for rank, kind in pairs]


def server_address(environ: Mapping[str, str] | None = None) -> str:
    """The address of the service: this host with LOCAL_PROXY_ENABLE=on, else MINDX_SERVER_IP; port 8899 by default.

    Raises ValueError when neither is set.
    """
    environ = os.environ if environ is None else environ
    host = "127.0.0.1" if environ.get("LOCAL_PROXY_ENABLE") == "on" else environ.get("MINDX_SERVER_IP", "")
    if not host:
        raise ValueError("MINDX_SERVER_IP is not set: it names the recovery service (clusterd-grpc-svc)")
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    return host if host.rpartition(":")[2].isdigit() and not host.endswith("]") else f"{host}:8899"


def _client(info: Any) -> ClientInfo:
    if isinstance(info, ClientInfo):
        return info
    # the Elastic Agent's interface calls the job a task
    job, role = getattr(info, "jobId", None) or getattr(info, "taskId", None), getattr(info, "role", "")
    if not isinstance(job, str) or not isinstance(role, str):
        raise TypeError(f"info must be a ClientInfo with jobId and role, not {type(info).__name__}")
    return ClientInfo(job, role or ROLE)


def _credentials(folder: str) -> grpc.ChannelCredentials:
    contents = []
    for name in CERTIFICATES:
        try:
            contents.append((Path(folder) / name).read_bytes())
        except OSError as error:
            raise ValueError(f"cert_path: {Path(folder) / name} cannot be read: {error.strerror}") from error
    authority, certificate, key = contents
    return grpc.ssl_channel_credentials(authority, key, certificate)
