"""Ports of the sandbox: the same after a restart, and never one that another sandbox or program has."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from belay.engine.sandbox.ports import GRPC, Ports
from belay.engine.sandbox.up import Sandbox, SandboxOptions, own_folder


def free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def folder(path: Path, name: str) -> Path:
    (path / name).mkdir()
    return path / name


def test_a_port_stays_after_a_restart(tmp_path: Path) -> None:
    first = Ports(tmp_path)
    found = first.choose("console-port", free())
    first.release()
    second = Ports(tmp_path)
    assert second.choose("console-port", free()) == found
    second.release()


def test_two_sandboxes_at_one_time_do_not_choose_the_same(tmp_path: Path) -> None:
    usual, one, other = free(), Ports(folder(tmp_path, "a")), Ports(folder(tmp_path, "b"))
    assert one.choose("console-port", usual) == usual
    assert other.choose("console-port", usual) != usual
    one.release()
    again = Ports(folder(tmp_path, "c"))
    assert again.choose("console-port", usual) == usual
    for ports in (other, again):
        ports.release()


def test_any_port_that_one_sandbox_took_is_no_other_ones(tmp_path: Path) -> None:
    one, other = Ports(folder(tmp_path, "a")), Ports(folder(tmp_path, "b"))
    found = one.choose("port")
    assert other.choose("port", found) != found
    for ports in (one, other):
        ports.release()


def test_a_port_that_a_program_has_is_not_chosen(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        taken = int(listening.getsockname()[1])
        ports = Ports(tmp_path)
        assert ports.choose("console-port", taken) != taken
        ports.release()


def test_a_file_that_a_person_spoilt_is_no_port(tmp_path: Path) -> None:
    for text in ("", "99999", "-1", "x", "1" * 400):
        (tmp_path / "port").write_text(text)
        ports = Ports(tmp_path)
        assert 0 < ports.choose("port") < 65536
        ports.release()


def test_a_sandbox_whose_grpc_port_is_taken_serves_on_a_free_one_and_keeps_it(tmp_path: Path) -> None:
    with socket.socket() as listening:
        with contextlib.suppress(OSError):  # taken by another program of this machine: as good
            listening.bind(("127.0.0.1", GRPC))
            listening.listen()
        first = Sandbox(SandboxOptions(data=str(tmp_path)), lambda _: None)
        first.folder.open()
        first.choose_grpc_ports()
        host, _, port = first.grpc_address.partition(":")
        assert host == "127.0.0.1" and int(port) not in (0, GRPC)
        first.stop()
    again = Sandbox(SandboxOptions(data=str(tmp_path)), lambda _: None)
    again.folder.open()
    again.choose_grpc_ports()
    assert again.grpc_address == first.grpc_address
    again.stop()


def test_the_folder_of_belay_is_printed_whatever_the_first_terminal_has_on_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = own_folder()
    monkeypatch.setenv("PATH", f"{expected}:/usr/bin")
    assert own_folder() == expected and (expected / "belay").is_file()
