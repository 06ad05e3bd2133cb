"""Copies in a peer's memory: a lost host gets its newest set back without a read from any disk."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from tests import needs
from tests.training import checkpoint_world as world

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import peers, sets
from belay.agents.training.checkpoint.client import WriterClient
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged
from belay.agents.training.checkpoint.native import Checkpoints
from belay.agents.training.checkpoint.saver import Saver
from belay.agents.training.checkpoint.tiers import Tiers


def secret(path: Path, text: str = "a secret of some length") -> str:
    path.write_text(text)
    return str(path)


def port(client: WriterClient) -> int:
    return int(client.ask({"do": "status"})[0]["peer_port"])


def held(client: WriterClient) -> int:
    return int(client.ask({"do": "status"})[0]["held"])


def test_a_lost_host_gets_its_newest_set_from_its_peers_memory(tmp_path: Path):
    key, job = secret(tmp_path / "key"), tmp_path / "ssd" / "job"
    with world.writing(tmp_path / "b", peer_listen="127.0.0.1:0", peer_secret=key) as keeper:
        to = f"127.0.0.1:{port(keeper)}"
        with world.writing(tmp_path / "a", peer=to, peer_secret=key) as client:
            for step in (1, 2, 3, 4):
                for rank in range(2):
                    one = Checkpoints(job, rank, 2, through=Saver(client))
                    one.save({"step": step, "w": torch.full((1 << 18,), float(rank))}, step).durable()
            world.until(lambda: client.ask({"do": "status"})[0]["peer_bytes"] > 8 << 20)
            status = client.ask({"do": "status"})[0]
            assert status["peer_skipped"] == 0 and status["peer_seconds"] > 0
            world.kill(tmp_path / "a")
        # two copies of each rank's file stay: bounded, and one is whole while the other arrives
        world.until(lambda: held(keeper) == 4)
        shutil.rmtree(job)
        with world.writing(tmp_path / "new", peer=to, peer_secret=key) as client:
            # the tiers ask the peer themselves
            tiers = Tiers([("local", job)], Saver(client), peer=True)
            found = tiers.newest()
            assert found is not None and found.step == 4
            assert tiers.load(found, 1)["w"].sum() == 1 << 18
            Saver(client).flush()
            assert sets.scan(job)[0].complete and client.restore(job) == 0


def test_a_host_lost_in_the_middle_of_a_save_gets_the_set_before(tmp_path: Path):
    key, job = secret(tmp_path / "key"), tmp_path / "ssd" / "job"
    with world.writing(tmp_path / "b", peer_listen="127.0.0.1:0", peer_secret=key) as keeper:
        to = f"127.0.0.1:{port(keeper)}"
        with world.writing(tmp_path / "a", peer=to, peer_secret=key) as client:
            for step, rank in ((4, 0), (4, 1), (5, 0)):
                Checkpoints(job, rank, 2, through=Saver(client)).save({"step": step}, step).durable()
            world.until(lambda: held(keeper) == 3)
            world.kill(tmp_path / "a")
        shutil.rmtree(job)
        with world.writing(tmp_path / "new", peer=to, peer_secret=key) as client:
            found, state = Tiers([("local", job)], Saver(client), peer=True).load_newest(1)
            assert found.step == 4 and state["step"] == 4


def test_a_peer_with_another_secret_is_disconnected_and_saving_continues(tmp_path: Path):
    ours, theirs = secret(tmp_path / "a-key"), secret(tmp_path / "b-key", "quite another secret")
    with world.writing(tmp_path / "b", peer_listen="127.0.0.1:0", peer_secret=theirs) as keeper:
        to = f"127.0.0.1:{port(keeper)}"
        with world.writing(tmp_path / "a", peer=to, peer_secret=ours) as client:
            pending = Saver(client).save({"step": 1}, tmp_path / "x.pt")
            assert pending.durable()
            world.until(lambda: client.ask({"do": "status"})[0]["peer_skipped"] == 1)
            with pytest.raises(CheckpointError, match="another secret"):
                client.restore(tmp_path)
        assert held(keeper) == 0


def test_nothing_is_read_from_an_unauthenticated_client(tmp_path: Path):
    with world.writing(tmp_path / "b", peer_listen="127.0.0.1:0", peer_secret=secret(tmp_path / "key")) as keeper:
        with socket.create_connection(("127.0.0.1", port(keeper))) as end:
            end.settimeout(60)
            assert len(peers.exactly(end, 32)) == 32
            end.sendall(b"\0" * 64 + b"\xff\xff\xff\x7f" * 10)
            with pytest.raises((EOFError, ConnectionError)):
                peers.exactly(end, 1)
        assert held(keeper) == 0


def test_wrong_settings_are_reported_at_the_start(tmp_path: Path):
    wrong = {"'nowhere' is not an address": ("nowhere", "a secret of some length"), "at least 16": ("h:1", "short")}
    for said, (peer, text) in wrong.items():
        with (
            world.writing(tmp_path / "work", peer=peer, peer_secret=secret(tmp_path / "key", text)) as client,
            pytest.raises(CheckpointError, match=said),
        ):
            client.connect()


def test_bytes_damaged_on_the_way_are_refused():
    data = memoryview(bytearray(b"content"))
    what = peers.SentContent.of("/x", data)
    what.prove(data, "here")
    data[3] ^= 1
    with pytest.raises(Damaged, match="/x came damaged"):
        what.prove(data, "here")
