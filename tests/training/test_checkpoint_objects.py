"""Sets in object storage: complete by their mark, proven on the way back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs

try:
    import fsspec
    import torch
except ImportError:
    needs.lacking("PyTorch or fsspec is not installed: make test installs them, see requirements-training.lock")

from belay.agents.training.checkpoint import objects, sets
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged, Incomplete, Unsupported
from belay.agents.training.checkpoint.native import Checkpoints
from belay.agents.training.checkpoint.saver import Saver


def save(folder: Path, step: int, only: tuple[int, ...] = (0, 1)) -> sets.CheckpointSet:
    for rank in only:
        Checkpoints(folder, rank, 2, through=Saver(None)).save({"step": step, "w": torch.ones(3000)}, step)
    return next(one for one in sets.scan(folder) if one.step == step)


@pytest.fixture
def bucket() -> str:
    return f"memory://bucket-{uuid.uuid4().hex}/job"


def store() -> Any:
    return fsspec.filesystem("memory")


def test_the_newest_set_is_downloaded_completely(tmp_path: Path, bucket: str):
    assert objects.newest(bucket) is None
    for step in (10, 20):
        objects.put(bucket, save(tmp_path / "a", step))
    assert objects.newest(bucket) == 20 and objects.newest(bucket, at_most=19) == 10
    objects.get(bucket, 20, tmp_path / "b")
    assert Checkpoints(tmp_path / "b", 1, 2, through=Saver(None)).load_newest()[0] == 20


def test_saves_reach_the_bucket_and_a_new_host_loads_from_it(tmp_path: Path, bucket: str):
    writers = [Checkpoints(tmp_path / "a", rank, 2, through=Saver(None), objects=bucket) for rank in range(2)]
    for step in (10, 20):
        for rank in (1, 0):
            writers[rank].save({"step": step, "rank": rank}, step)
    writers[0].flush(30)
    assert objects.newest(bucket) == 20
    for rank in range(2):
        one = Checkpoints(tmp_path / "new-host", rank, 2, through=Saver(None), objects=bucket)
        assert one.load_newest() == (20, {"step": 20, "rank": rank})
    # what a host has itself is not downloaded again
    damaged = next((tmp_path / "a/step-000000020").glob("rank-00001*"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    step, _ = Checkpoints(tmp_path / "a", 0, 2, through=Saver(None), objects=bucket).load_newest()
    assert step == 20


def test_a_bucket_that_does_not_answer_is_a_warning_while_a_folder_has_a_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    save(tmp_path / "a", 10)
    one = Checkpoints(tmp_path / "a", 0, 2, through=Saver(None), objects="nosuch://bucket/job")
    assert one.load_newest()[0] == 10 and "nosuch://bucket/job" in caplog.text


def test_an_unfinished_upload_is_not_a_set(tmp_path: Path, bucket: str):
    for step in (10, 20):
        objects.put(bucket, save(tmp_path / "a", step))
    root = bucket.removeprefix("memory:/")
    store().rm_file(f"{root}/step-000000020/{objects.MARK}")
    assert objects.newest(bucket) == 10
    with pytest.raises(Incomplete, match="was not finished"):
        objects.get(bucket, 20, tmp_path / "b")
    store().rm_file(f"{root}/step-000000010/rank-00001-of-00002.mindio")
    assert objects.newest(bucket) is None
    with pytest.raises(Incomplete, match="only complete sets"):
        objects.put(bucket, save(tmp_path / "a", 30, only=(0,)))


def test_a_damaged_object_is_named_and_gets_no_name_here(tmp_path: Path, bucket: str):
    objects.put(bucket, save(tmp_path / "a", 10))
    name = f"{bucket.removeprefix('memory:/')}/step-000000010/rank-00001-of-00002.mindio"
    data = bytearray(store().cat_file(name))
    data[5000] ^= 1
    store().pipe_file(name, bytes(data))
    with pytest.raises(Damaged, match=r"rank-00001-of-00002\.mindio is damaged"):
        objects.get(bucket, 10, tmp_path / "b")
    assert not sets.rank_file(tmp_path / "b", 10, 1, 2).exists()


def test_a_mark_cannot_lead_out_of_its_set(tmp_path: Path, bucket: str):
    mark = b'{"files": {"../../x": {"size": 0, "sums": null}}}'
    store().pipe_file(f"{bucket.removeprefix('memory:/')}/step-000000010/{objects.MARK}", mark)
    with pytest.raises(CheckpointError, match="outside its set"):
        objects.get(bucket, 10, tmp_path / "b")


def test_an_unreachable_address_is_named(tmp_path: Path):
    with pytest.raises(Unsupported, match="nosuch"):
        objects.newest("nosuch://bucket/job")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of moto's S3 server, through s3fs; neither is in the lock, since S3 is optional: pip install s3fs
    moto[server].
    """
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("checkpoints")
        yield "s3://checkpoints/job"
    finally:
        server.stop()


def test_s3_keeps_sets_and_finds_damage(tmp_path: Path, s3: str):
    for step in (10, 20):
        objects.put(s3, save(tmp_path / "a", step))
    assert objects.newest(s3) == 20
    new_host = Checkpoints(tmp_path / "b", 1, 2, through=Saver(None), objects=s3)
    assert new_host.load_newest()[0] == 20
    files, base = fsspec.filesystem("s3"), "checkpoints/job/step-000000020"
    data = bytearray(files.cat_file(f"{base}/rank-00001-of-00002.mindio"))
    data[5000] ^= 1
    files.pipe_file(f"{base}/rank-00001-of-00002.mindio", bytes(data))
    with pytest.raises(Damaged, match="rank-00001-of-00002"):
        objects.get(s3, 20, tmp_path / "c")
    files.rm_file(f"{base}/{objects.MARK}")
    assert objects.newest(s3) == 10
