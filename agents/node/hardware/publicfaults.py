"""Public faults sent to ClusterD (or `belay server`) by gRPC, as NodeD sends those of storage clients.

Service ``PubFault``, rpc ``SendPublicFault``, plaintext; component/noded/pkg/reporter/grpcreporter. `belay server`
learns from the agent's token which node it may speak for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc

from belay.agents.common import caller_token
from belay.agents.drivers.base import DriverError
from belay.engine.wire.clusterd import pubfault_pb2, pubfault_pb2_grpc

CLUSTERD: Final = "clusterd-grpc-svc.mindx-dl.svc.cluster.local:8899"
SECONDS: Final = 5.0
MAX_ANSWER: Final = 65_536


class GrpcPublicFaults:
    """Sends messages over one channel, which reconnects when it breaks."""

    def __init__(self, address: str = CLUSTERD) -> None:
        self.address = address
        self._channel: grpc.aio.Channel | None = None

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message once. Raises DriverError when it did not arrive or was refused."""
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MAX_ANSWER)]
            self._channel = grpc.aio.insecure_channel(self.address, options=options)
        try:
            answer = await pubfault_pb2_grpc.PubFaultStub(self._channel).SendPublicFault(  # type: ignore[no-untyped-call]
                request(message), timeout=SECONDS, metadata=caller_token.metadata()
            )
        except grpc.aio.AioRpcError as error:
            raise DriverError(
                f"public faults did not reach {self.address}: {error.code().name} {(error.details() or '')[:400]}"
            ) from error
        if answer.code:
            raise DriverError(f"{self.address} refuses public faults: {answer.code} {answer.info[:160]}")

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close(None)


def request(message: Mapping[str, Any]) -> pubfault_pb2.PublicFaultRequest:
    """The message of `belay.agents.node.detect.message` on the wire."""
    return pubfault_pb2.PublicFaultRequest(
        id=message["id"],
        timestamp=message["timestamp"],
        version=message["version"],
        resource=message["resource"],
        faults=[
            pubfault_pb2.Fault(
                faultId=fault["faultId"],
                faultType=fault["faultType"],
                faultCode=fault["faultCode"],
                faultTime=fault["faultTime"],
                assertion=fault["assertion"],
                influence=[
                    pubfault_pb2.PubFaultInfo(nodeName=one["nodeName"], deviceIds=one["deviceIds"])
                    for one in fault["influence"]
                ],
            )
            for fault in message["faults"]
        ],
    )
