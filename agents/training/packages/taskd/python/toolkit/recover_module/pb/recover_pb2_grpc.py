"""Stub and service of the recovery service."""

from belay.engine.wire.clusterd.recover_pb2_grpc import RecoverServicer, RecoverStub, add_RecoverServicer_to_server

__all__ = ["RecoverServicer", "RecoverStub", "add_RecoverServicer_to_server"]
