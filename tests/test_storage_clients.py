"""State files of storage clients: what is read, what is refused, and how it reaches ClusterD by gRPC."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from belay.agents.drivers.base import DriverError
from belay.agents.drivers.surroundings import Client
from belay.agents.node import detect
from belay.agents.node.hardware.publicfaults import GrpcPublicFaults
from belay.agents.node.hardware.storage import DPC, DTFS, Clients, StorageError, parse, read
from belay.engine.wire.clusterd import pubfault_pb2, pubfault_pb2_grpc
from tests.test_surveyor import Survey

ME = os.getuid()


def stanza(index: int, internal: int = 0, process: int = 0) -> str:
    return f"[instidx={index}]\nDPC_INTERNAL_ERROR: {internal}\nDPC_PROCESS_ERROR: {process}\n"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", Client()),
        (stanza(0), Client()),
        (stanza(0, -12), Client(memory=True, short=("0",))),
        (stanza(0) + stanza(1, process=-1), Client(process=True)),
        (stanza(0, -12, -1) + stanza(7, -12), Client(process=True, memory=True, short=("0", "7"))),
        # the 22nd instance is not looked at, whatever it says
        ("".join(stanza(n) for n in range(21)) + "nonsense", Client()),
        ("".join(stanza(n) for n in range(20)) + stanza(20, -12), Client(memory=True, short=("20",))),
    ],
)
def test_what_dpc_says(text: str, wanted: Client) -> None:
    assert parse(DPC, text) == wanted


@pytest.mark.parametrize(
    ("process", "link", "wanted"),
    [(0, 0, Client()), (-1, 0, Client(process=True)), (0, -1, Client(memory=True, short=("3",)))],
)
def test_what_dtfs_says(process: int, link: int, wanted: Client) -> None:
    assert parse(DTFS, f"[instidx=3]\nDTFS_PROCESS_ERROR: {process}\nDTFS_LINK_ERROR: {link}\n") == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[instidx=x]\n", "line 1 is"),
        ("[instidx=0]\n", "ends after line 1; DPC_INTERNAL_ERROR is missing"),
        ("[instidx=0]\nDPC_INTERNAL_ERROR: 0\n", "DPC_PROCESS_ERROR is missing"),
        (stanza(0, -1), "line 2 is 'DPC_INTERNAL_ERROR: -1', not DPC_INTERNAL_ERROR: 0 or -12"),
        (stanza(0, 0, 1), "0 or -1"),
        (stanza(0) + "\n" + stanza(1), "line 4 is ''"),
        ("[instidx=0]\nDPC_PROCESS_ERROR: 0\nDPC_INTERNAL_ERROR: 0\n", "line 2"),
        ("[instidx=0]\nDPC_INTERNAL_ERROR 0\nDPC_PROCESS_ERROR: 0\n", "line 2"),
    ],
)
def test_one_bad_line_spoils_the_reading(text: str, said: str) -> None:
    with pytest.raises(StorageError, match=said.replace("[", r"\[")):
        parse(DPC, text)
    with pytest.raises(StorageError, match="empty"):
        parse(DTFS, "\n")


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader(text: str) -> None:
    for kind in (DPC, DTFS):
        try:
            assert isinstance(parse(kind, text), Client)
        except StorageError as error:
            assert len(str(error)) < 200


def test_files_of_others_links_and_writable_ones_are_not_trusted(tmp_path: Path) -> None:
    file = tmp_path / "dpc_status_check"
    assert read(DPC, file, ME) is None
    file.write_text(stanza(0, -12))
    for mode in (0o644, 0o600, 0o444):
        file.chmod(mode)
        assert read(DPC, file, ME) == Client(memory=True, short=("0",))
    for mode in (0o664, 0o646, 0o744, 0o645):
        file.chmod(mode)
        with pytest.raises(StorageError, match=f"mode {mode:04o}; it is not trusted"):
            read(DPC, file, ME)
    file.chmod(0o644)
    with pytest.raises(StorageError, match="belongs to user"):
        read(DPC, file, ME + 1)
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(StorageError, match="cannot be opened"):
        read(DPC, tmp_path / "link", ME)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(StorageError, match="not a regular file"):
        read(DPC, tmp_path / "pipe", ME)
    file.write_text("x" * 70_000)
    with pytest.raises(StorageError, match="longer than 65536"):
        read(DPC, file, ME)


def test_a_file_that_spoils_or_goes_keeps_the_last_state_and_the_other_client(tmp_path: Path) -> None:
    dpc, dtfs = tmp_path / "dpc", tmp_path / "dtfs"
    clients = Clients(dpc, dtfs, owner=ME)
    assert clients.refresh() is None
    dpc.write_text(stanza(0, process=-1))
    dtfs.write_text("[instidx=0]\nDTFS_PROCESS_ERROR: 0\nDTFS_LINK_ERROR: -1\n")
    both = {"dpc": Client(process=True), "dtfs": Client(memory=True, short=("0",))}
    assert clients.refresh() == both
    dpc.write_text("rubbish")
    assert clients.refresh() == both
    dpc.unlink()
    dtfs.write_text("[instidx=0]\nDTFS_PROCESS_ERROR: 0\nDTFS_LINK_ERROR: 0\n")
    assert clients.refresh() == {"dpc": Client(process=True), "dtfs": Client()}


class ClusterD(pubfault_pb2_grpc.PubFaultServicer):
    def __init__(self) -> None:
        self.heard: list[pubfault_pb2.PublicFaultRequest] = []
        self.code = 0

    async def SendPublicFault(self, request: Any, context: Any) -> Any:
        self.heard.append(request)
        return pubfault_pb2.RespStatus(code=self.code, info="too many" if self.code else "")


def test_storage_faults_are_sent_to_clusterd_with_recoveries_first() -> None:
    async def main() -> None:
        server, clusterd = grpc.aio.server(), ClusterD()
        pubfault_pb2_grpc.add_PubFaultServicer_to_server(clusterd, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        sender = GrpcPublicFaults(f"127.0.0.1:{port}")
        survey = Survey(super_pod=False)
        survey.surveyor._publish = sender.send
        try:
            # a client without any report is reported as well: an earlier life may have reported otherwise
            await survey.surveyor.storage()
            first = {m.resource: m for m in clusterd.heard}
            assert {(f.faultCode, f.assertion) for f in first["dpcStorage"].faults} == {
                ("110001020", "recover"), ("110001021", "recover"),
            }  # fmt: skip
            assert {f.faultCode for f in first["dtfsStorage"].faults} == {"110001022", "110001023"}
            clusterd.heard.clear()
            survey.around.apply({"storage": {"dtfs": {"memory": True}}})
            await survey.surveyor.storage()
            (message,) = clusterd.heard
            (fault,) = message.faults
            assert (message.version, message.resource, message.timestamp) == ("1.0", "dtfsStorage", fault.faultTime)
            assert (fault.faultType, fault.faultCode, fault.assertion) == ("Node", "110001023", "occur")
            assert fault.faultId == hashlib.sha256(b"n0/DTFS_LINK").hexdigest()
            assert (fault.influence[0].nodeName, list(fault.influence[0].deviceIds)) == ("n0", list(range(8)))
            assert not survey.api.maps
            # refused or away: the next look says it again
            clusterd.code = 410
            survey.around.apply({})
            with pytest.raises(DriverError, match="410 too many"):
                await survey.surveyor.storage()
            await server.stop(None)
            with pytest.raises(DriverError, match=r"did not reach 127\.0\.0\.1"):
                await survey.surveyor.storage()
        finally:
            await sender.close()
            await server.stop(None)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_memory_of_a_client_has_its_own_code() -> None:
    assert [f.code for f in detect.storage_faults("n0", "dpcStorage", 0)] == ["110001020", "110001021"]
    assert detect.storage_faults("n0", "dpcStorage", 0)[0].chips == (0,)
