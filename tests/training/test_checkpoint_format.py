"""Files of checkpoints: byte for byte, every kind of tensor, nothing run on loading, every corrupt byte found."""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import pickletools
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import needs

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import convert, durable, image, layout, pages, reading, sums
from belay.agents.training.checkpoint.errors import CheckpointError, Damaged, NotThisFormat, Unsupported

BASE = torch.arange(24.0).reshape(4, 6)


def encoded(obj: object) -> bytes:
    return b"".join(image.image(obj).chunks())


def saved(path: Path, obj: object) -> Path:
    durable.write(path, memoryview(bytearray(encoded(obj))))
    return path


def written_by_rule(obj: object) -> bytes:
    """The documented layout, made by pickle alone."""
    storages: list[Any] = []
    # torch keeps each key as one object
    names: list[str] = []

    class Writer(pickle.Pickler):
        def persistent_id(self, found: Any) -> Any:
            if not isinstance(found, torch.storage.TypedStorage):
                return None
            raw = found._untyped_storage
            known = [key for key, other in enumerate(storages) if other._cdata == raw._cdata]
            if not known:
                storages.append(raw)
                names.append(str(len(names)))
            key = known[0] if known else len(storages) - 1
            return ("storage", getattr(torch, found._pickle_storage_type()), names[key], "cpu", found._size())

    buffer = io.BytesIO()
    Writer(buffer, protocol=2).dump(obj)
    parts, places = [buffer.getvalue()], {"data.pkl": (0, len(buffer.getvalue()))}
    for key, raw in enumerate(storages):
        places[f"data/{key}"] = (sum(map(len, parts)), raw.nbytes())
        parts.append(bytes(raw.tolist()))
    body, found = b"".join(parts), pickle.dumps(places)
    return body + found + struct.pack("<QQ", len(body), len(found)) + b"mindio\x00"


def test_files_have_the_documented_sizes():
    assert len(encoded(b"plain bytes object")) == 115
    assert len(encoded({"step": 1})) == 75


def test_a_file_agrees_byte_for_byte_with_the_documented_layout():
    state = {"a": BASE, "view": BASE[1:3, ::2], "half": torch.ones(3).half(), "n": torch.tensor([1, 2]),
             "flag": torch.tensor([True]), "empty": torch.empty(0), "step": 7}  # fmt: skip
    assert encoded(state) == written_by_rule(state)


DATA: dict[str, Any] = {
    "bfloat16": torch.randn(5).bfloat16(),
    "float8": torch.randn(7).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.randn(7).to(torch.float8_e5m2),
    "uint16": torch.tensor([1, 2], dtype=torch.uint16),
    "complex": torch.randn(3, dtype=torch.complex64).conj(),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 5),
    "strided": BASE[1:3, ::2],
    "transposed": BASE.t(),
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "quantised": torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, torch.qint8),
    "per channel": torch.quantize_per_channel(
        torch.randn(3, 4), torch.rand(3) + 0.1, torch.zeros(3, dtype=torch.long), 0, torch.qint8
    ),
    "sparse": torch.eye(4).to_sparse(),
    "csr": torch.eye(4).to_sparse_csr(),
    "rng": torch.get_rng_state(),
    "python rng": random.getstate(),
    "settings": argparse.Namespace(lr=0.1, betas=(0.9, 0.95)),
    "ordered": collections.OrderedDict(a=1),
    "sets": ({1, 2}, frozenset([3])),
    "bytes": (b"xyz", bytearray(b"q")),
    "numbers": (1 << 100, 1.5, 1j, True, None, range(3), slice(1, 2)),
    "dtype": (torch.bfloat16, torch.device("cpu"), torch.Size([1])),
}


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("name", DATA)
def test_a_saved_object_is_loaded_again(tmp_path: Path, name: str, mapped: bool):
    value = DATA[name]
    found = reading.load(saved(tmp_path / "x.pt", {"v": value}), mapped=mapped)["v"]
    assert type(found) is type(value)
    if not isinstance(value, torch.Tensor):
        assert found == value
    else:
        assert (found.shape, found.dtype, found.layout) == (value.shape, value.dtype, value.layout)
        assert found.requires_grad == value.requires_grad
        left, right = (
            t.dequantize()
            if t.is_quantized
            else t.to_dense()
            if t.layout != torch.strided
            else t.float()
            if t.dtype.itemsize == 1
            else t
            for t in (found.detach(), value.detach())
        )
        assert torch.equal(left, right)


def test_numpy_arrays_and_numbers_are_data(tmp_path: Path):
    numpy = pytest.importorskip("numpy")
    state = {"array": numpy.arange(4), "number": numpy.float64(2), "rng": numpy.random.get_state()}
    found = reading.load(saved(tmp_path / "x.pt", state))
    assert (found["array"] == state["array"]).all() and found["number"] == 2
    assert (found["rng"][1] == state["rng"][1]).all()


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_views_share_one_storage_in_the_file_and_after_loading(tmp_path: Path, mapped: bool):
    big = torch.randn(1000)
    path = saved(tmp_path / "x.pt", {"all": big, "part": big[10:20]})
    assert path.stat().st_size < 4000 + 1000
    found = reading.load(path, mapped=mapped)
    found["all"][10] = 5.0
    assert found["part"][0] == 5.0


def test_the_key_of_a_shared_storage_is_pickled_once():
    found = encoded({"whole": BASE, "view": BASE[1:], "again": BASE})
    start = found.index(b"\x80\x02")
    texts = [value for code, value, _ in pickletools.genops(found[start:]) if code.name == "BINUNICODE"]
    assert texts.count("0") == 1 and texts.count("storage") == 1


def test_one_storage_seen_as_two_types_is_refused():
    raw = torch.zeros(4)
    with pytest.raises(RuntimeError, match="different types"):
        image.image([raw, raw.view(torch.int32)])


class Loud(torch.Tensor):
    """A subclass that is not data."""


def test_a_tensor_subclass_is_named_in_the_error(tmp_path: Path):
    path = saved(tmp_path / "x.pt", {"v": torch.ones(2).as_subclass(Loud)})
    with pytest.raises(Unsupported, match="Loud"):
        reading.load(path)
    assert type(reading.load(path, weights_only=False)["v"]) is Loud


def test_a_class_that_cannot_be_pickled_is_named(tmp_path: Path):
    class Local(torch.Tensor):
        pass

    with pytest.raises(Unsupported, match="Local"):
        image.image({"v": torch.ones(2).as_subclass(Local)})
    with pytest.raises(Unsupported, match="meta"):
        image.image(torch.UntypedStorage(4, device="meta"))


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["CHECKPOINT_BOMB"],)


def test_loading_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHECKPOINT_BOMB", str(tmp_path / "gone off"))
    path = saved(tmp_path / "x.pt", {"v": Bomb()})
    with pytest.raises(Unsupported, match="mkdir"):
        reading.load(path)
    assert not (tmp_path / "gone off").exists()


def test_a_bomb_in_the_record_map_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CHECKPOINT_BOMB", str(tmp_path / "gone off"))
    bomb = pickle.dumps(Bomb())
    path = tmp_path / "x.pt"
    path.write_bytes(bomb + layout.tail(0, len(bomb)))
    with pytest.raises(Damaged, match="record map"):
        reading.load(path)
    # a memo index of four billion: the reader in C would take 64 GiB
    memo = b"\x80\x04Nr\xff\xff\xff\xff."
    path.write_bytes(memo + layout.tail(0, len(memo)))
    with pytest.raises(Damaged):
        reading.load(path)
    assert not (tmp_path / "gone off").exists()


@pytest.mark.parametrize("place", ["start", "size", "map", "numel"])
def test_wrong_numbers_in_the_layout_are_refused(tmp_path: Path, place: str):
    data = bytearray(encoded({"v": BASE}))
    start, size, _ = layout.TAIL.unpack(data[-23:])
    if place == "start":
        data[-23:-15] = struct.pack("<Q", start + 1)
    elif place == "size":
        data[-15:-7] = struct.pack("<Q", 1 << 63)
    else:
        records = pickle.loads(data[start : start + size])
        records["data/0"] = (start - 10, 1 << 40) if place == "map" else (records["data/0"][0], 8)
        text = pickle.dumps(records)
        data = data[:start] + text + layout.tail(start, len(text))
    (tmp_path / "x.pt").write_bytes(data)
    with pytest.raises(Damaged):
        reading.load(tmp_path / "x.pt")


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
def test_every_flipped_byte_is_found_and_nothing_crashes(tmp_path: Path, mapped: bool):
    path = saved(tmp_path / "x.pt", {"v": BASE, "w": torch.ones(3)})
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x41]) + good[position + 1 :])
        with pytest.raises(CheckpointError):
            reading.load(path, mapped=mapped)
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError):
            reading.load(path, mapped=mapped)


@pytest.mark.parametrize("kernel", ["reads", "refuses"])
def test_a_mapped_file_is_proven_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str):
    if kernel == "refuses":
        monkeypatch.setattr(pages, "advise", lambda *_: False)
    value = torch.arange(2_500_000, dtype=torch.float32)
    path = saved(tmp_path / "x.pt", {"v": value})
    size = path.stat().st_size
    assert torch.equal(reading.load(path, mapped=True)["v"], value)
    data = bytearray(path.read_bytes())
    data[size // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="do not match the checksums"):
        reading.load(path, mapped=True)
    assert not torch.equal(reading.load(path, mapped=True, proven=False)["v"], value)
    with open(path, "r+b") as file:
        file.truncate(size - 5000)
    with pytest.raises(Damaged, match="truncated"):
        reading.load(path, mapped=True)


def test_a_mapped_tensor_is_changed_in_memory_only(tmp_path: Path):
    path = saved(tmp_path / "x.pt", {"v": BASE})
    good = path.read_bytes()
    found = reading.load(path, mapped=True)["v"]
    found += 1
    assert torch.equal(found, BASE + 1) and path.read_bytes() == good


def test_without_sums_damage_ends_in_an_error_or_in_data(tmp_path: Path):
    """Fuzz of the bytes that give structure: the reader raises its own errors only."""
    good, path, chance = encoded({"v": BASE, "w": [torch.ones(3), "x"]}), tmp_path / "x.pt", random.Random(18)
    refused = 0
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            reading.load(path)
        except CheckpointError:
            refused += 1
    assert refused > 500


def test_another_file_is_left_to_the_next_reader(tmp_path: Path):
    torch.save({"v": BASE}, tmp_path / "x.pt")
    with pytest.raises(NotThisFormat):
        reading.load(tmp_path / "x.pt")
    (tmp_path / "short").write_bytes(b"")
    with pytest.raises(NotThisFormat):
        reading.load(tmp_path / "short")


def test_a_crash_between_sums_and_name_leaves_a_proven_file(tmp_path: Path):
    path = saved(tmp_path / "x.pt", {"v": torch.zeros(9)})
    new = encoded({"v": torch.ones(9)})
    value = sums.ALGORITHMS[sums.PREFERRED](new)
    sums.write(path, [sums.Sums(len(new), (value,)), *sums.read(path)])
    assert reading.load(path)["v"].sum() == 0
    path.write_bytes(new)
    assert reading.load(path)["v"].sum() == 9


def test_damaged_sums_are_no_proof(tmp_path: Path):
    path = saved(tmp_path / "x.pt", {"v": BASE})
    where = sums.place(path)
    where.write_bytes(where.read_bytes().replace(b'"version":1', b'"version":2'))
    with pytest.raises(Damaged, match="digest"):
        reading.load(path)
    assert torch.equal(reading.load(path, proven=False)["v"], BASE)


def test_torchs_zip_is_written_and_read(tmp_path: Path):
    path = saved(tmp_path / "x.pt", {"v": BASE, "view": BASE[1], "step": 3})
    written: list[int] = []
    assert convert.convert(path, tmp_path / "x.zip", progress=written.append) == "torch"
    assert len(written) == 2 and sum(written) <= path.stat().st_size
    found = torch.load(tmp_path / "x.zip", weights_only=True)
    assert torch.equal(found["v"], BASE) and found["step"] == 3
    assert convert.convert(tmp_path / "x.zip", tmp_path / "y.pt", progress=written.append) == "mindio"
    assert written[2:] == [path.stat().st_size]
    assert (tmp_path / "y.pt").read_bytes() == path.read_bytes()
    assert reading.load(tmp_path / "y.pt")["view"].shape == (6,)


def test_safetensors_are_written_and_read(tmp_path: Path):
    pytest.importorskip("safetensors")
    path = saved(tmp_path / "x.pt", {"model": {"w": BASE, "half": BASE[2].bfloat16()}})
    convert.convert(path, tmp_path / "x.safetensors", "safetensors")
    assert convert.convert(tmp_path / "x.safetensors", tmp_path / "y.pt") == "mindio"
    assert torch.equal(reading.load(tmp_path / "y.pt")["model.w"], BASE)
    # what shares memory, is a part of it or lies otherwise is written on its own
    shared = {"v": BASE, "again": BASE, "row": BASE[1], "turned": BASE.T, "none": torch.empty(0)}
    convert.convert(saved(tmp_path / "s.pt", shared), tmp_path / "s.safetensors", "safetensors")
    convert.convert(tmp_path / "s.safetensors", tmp_path / "t.pt")
    found = reading.load(tmp_path / "t.pt")
    assert all(torch.equal(found[name], tensor) for name, tensor in shared.items()) and len(found) == 5
    with pytest.raises(Unsupported, match=r"model\.step is a int"):
        convert.to_safetensors(saved(tmp_path / "z.pt", {"model": {"step": 1}}), tmp_path / "z.safetensors")


def test_a_conversion_that_cannot_be_written_names_the_reason(tmp_path: Path):
    torch.save({"v": BASE}, tmp_path / "x.zip")
    with pytest.raises(FileNotFoundError):
        convert.from_zip(tmp_path / "x.zip", tmp_path / "none" / "y.pt")


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path):
    path = saved(tmp_path / "x.pt", b"plain")
    with pytest.raises(Unsupported, match="plain bytes"):
        convert.convert(path, tmp_path / "y.pt")
    (tmp_path / "text").write_text("hello, this is not a checkpoint")
    with pytest.raises(NotThisFormat):
        convert.convert(tmp_path / "text", tmp_path / "y.pt")
    assert not list(tmp_path.glob("y.pt*"))


def test_a_zip_that_unpacks_to_more_than_it_holds_is_refused(tmp_path: Path):
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb/data.pkl", b"\0" * (8 << 20))
    with pytest.raises(Unsupported, match="compressed"):
        convert.convert(bomb, tmp_path / "x.mindio")
    torch.save({"w": torch.ones(5)}, tmp_path / "good.pt")
    data = (tmp_path / "good.pt").read_bytes()
    # the size that the directory gives for the first record, 24 bytes behind its signature
    place = data.index(b"PK\x01\x02") + 20
    grown = data[:place] + struct.pack("<II", 1 << 31, 1 << 31) + data[place + 8 :]
    (tmp_path / "grown.pt").write_bytes(grown)
    with pytest.raises(NotThisFormat, match="claim"):
        convert.convert(tmp_path / "grown.pt", tmp_path / "x.mindio")
    # as much as the file holds in all, but not from where the record begins
    with zipfile.ZipFile(tmp_path / "good.pt") as file:
        others = sum(record.file_size for record in file.infolist() if record.filename != "good/data/0")
    entry = data.index(b"good/data/0", data.index(b"PK\x01\x02")) - 46
    size = struct.pack("<II", len(data) - others, len(data) - others)
    (tmp_path / "late.pt").write_bytes(data[: entry + 20] + size + data[entry + 28 :])
    with pytest.raises(NotThisFormat, match=r"beyond|not a zip"):
        convert.convert(tmp_path / "late.pt", tmp_path / "x.mindio")
    assert not (tmp_path / "x.mindio").exists()
