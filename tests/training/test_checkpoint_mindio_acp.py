"""``mindio_acp`` as scripts use it: documented results, files that torch never sees half, Megatron's own flow."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.training import checkpoint_world as world

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from agents.training.checkpoint import durable, reading, sets
from agents.training.checkpoint.dropin import api, checker, helper, megatron

PACKAGES = Path(__file__).resolve().parents[2] / "agents" / "training" / "packages"


@pytest.fixture
def acp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MINDIO_ACP_LOG_PATH", str(tmp_path / "work"))
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setattr(api, "_savers", {})
    monkeypatch.setattr(helper.CheckpointHelper, "_only", None)
    found = importlib.import_module("mindio_acp")
    with world.writing(tmp_path / "work"):
        assert found.initialize({"memfs.data_block_pool_capacity_in_gb": "1"}) == 0
        yield found


STATE = {"w": torch.arange(1000.0), "step": 5}


def same(found: Any) -> bool:
    return bool(torch.equal(found["w"], STATE["w"]) and found["step"] == 5)


def test_the_documented_names_exist(acp: Any):
    assert sorted(acp.__all__) == ["convert", "create_file", "flush", "initialize", "load", "multi_save", "open_file",
                                   "preload", "register_checker", "save"]  # fmt: skip
    assert acp.CheckpointHelper is helper.CheckpointHelper


@pytest.mark.parametrize(("way", "result"), [("memfs", 1), ("fopen", 2)])
def test_both_ways_of_saving_work_with_both_ways_of_loading(tmp_path: Path, acp: Any, way: str, result: int):
    path = str(tmp_path / "a.pt")
    assert acp.save(STATE, path, open_way=way) == result
    assert same(acp.load(path))
    assert acp.flush() == 0 and same(acp.load(path, open_way="fopen")) and same(reading.load(Path(path)))


def test_bytes_and_torchs_own_files_load_too(tmp_path: Path, acp: Any):
    assert acp.save(b"plain", str(tmp_path / "b")) == 1 and acp.load(str(tmp_path / "b")) == b"plain"
    torch.save(STATE, tmp_path / "t.pt")
    assert same(acp.load(str(tmp_path / "t.pt"), map_location="cpu"))


def test_storage_that_fails_gives_minus_one_and_wrong_types_raise(tmp_path: Path, acp: Any):
    assert acp.save(STATE, str(tmp_path / "none" / "a.pt")) == -1
    assert acp.save(STATE, str(tmp_path)) == -1
    assert acp.save(STATE, str(tmp_path / ("x" * 1100))) == -1
    with pytest.raises(TypeError, match="path"):
        acp.save(STATE, 5)
    with pytest.raises(TypeError, match="open_way"):
        acp.save(STATE, str(tmp_path / "a.pt"), open_way="dma")
    raw = torch.zeros(4)
    with pytest.raises(RuntimeError, match="different types"):
        acp.save([raw, raw.view(torch.int32)], str(tmp_path / "a.pt"))
    with pytest.raises(ValueError, match="map_location"):
        acp.load(str(tmp_path / "a.pt"), map_location="npu:0")
    with pytest.raises(FileNotFoundError):
        acp.load(str(tmp_path / "a.pt"))
    assert not list(tmp_path.glob("a.pt*"))


def test_a_code_in_a_file_runs_only_when_it_is_asked_for(tmp_path: Path, acp: Any):
    assert acp.save({"when": threading.Event}, str(tmp_path / "a.pt")) == 1
    with pytest.raises(api.CheckpointError, match="threading"):
        acp.load(str(tmp_path / "a.pt"))
    assert acp.load(str(tmp_path / "a.pt"), weights_only=False)["when"] is threading.Event


def test_unknown_settings_are_refused(acp: Any):
    assert acp.initialize({"memfs.colour": "blue"}) == -1
    assert acp.initialize({"background.backup.thread_num": "300"}) == -1


def test_several_names_share_one_file(tmp_path: Path, acp: Any):
    paths = [str(tmp_path / f"{n}.pt") for n in range(3)]
    assert acp.multi_save(STATE, paths) == 1
    assert same(acp.load(paths[2])) and acp.flush() == 0
    assert len({os.stat(path).st_ino for path in paths}) == 1 and all(same(reading.load(Path(p))) for p in paths)
    assert (acp.multi_save(STATE, []), acp.multi_save(STATE, "a")) == (0, None)
    assert acp.multi_save(STATE, [str(tmp_path / ("x" * 1100))]) is None


def test_where_links_are_refused_every_name_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    data = memoryview(bytearray(b"content"))
    durable.write(tmp_path / "a", data, links=(tmp_path / "b", tmp_path / "c"))
    assert [(tmp_path / name).read_bytes() for name in "abc"] == [b"content"] * 3


def test_without_a_writing_process_several_names_are_written_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MINDIO_ACP_LOG_PATH", str(tmp_path / "work"))
    monkeypatch.setattr(api, "_savers", {})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    paths = [str(tmp_path / f"{n}.pt") for n in range(2)]
    assert api.multi_save(STATE, paths) == 0 and all(same(reading.load(Path(path))) for path in paths)
    assert api.flush() == 0


def test_conversion_refuses_what_the_documents_refuse(tmp_path: Path, acp: Any):
    source = str(tmp_path / "a.pt")
    acp.save(STATE, source, open_way="fopen")
    assert acp.convert(source, str(tmp_path / "b.pt")) == 0 and same(torch.load(tmp_path / "b.pt"))
    (tmp_path / "link").symlink_to(tmp_path)
    torch.save(STATE, tmp_path / "t.pt")
    for src, dst in ((source, source), (str(tmp_path / "none"), "c"), (source, str(tmp_path / "none" / "c")),
                     (str(tmp_path / "link" / "a.pt"), str(tmp_path / "c")),
                     (str(tmp_path / "t.pt"), str(tmp_path / "c")),
                     (source, str(tmp_path / ("x" * 1100)))):  # fmt: skip
        assert acp.convert(src, dst) == -1
    assert not (tmp_path / "c").exists()


def test_preloaded_files_come_from_memory(tmp_path: Path, acp: Any):
    path = tmp_path / "a.pt"
    acp.save(STATE, str(path), open_way="fopen")
    assert acp.preload(str(path)) == 0 and acp.preload(str(tmp_path / "none")) == 1 and acp.preload() == 1
    client = api.saver_of_process().client
    world.until(lambda: client.listed(tmp_path))
    assert same(acp.load(str(path)))


def test_checkers_count_whole_files_only(tmp_path: Path, acp: Any):
    folder = tmp_path / "iter_1"
    (folder / "deeper").mkdir(parents=True)
    acp.save(STATE, str(folder / "a.pt"), open_way="fopen")
    assert checker.check({folder: 2}) is None
    durable.staging(folder / "b.pt").write_bytes(b"half")
    assert checker.check({folder: 2}) is None
    os.rename(durable.staging(folder / "b.pt"), folder / "deeper" / "b.pt")
    assert checker.check({folder: 2}) == 0 and checker.check({folder: 1}) == -27
    seen: list[Any] = []
    assert acp.register_checker(lambda *found: seen.append(found), {str(folder): 2}, "mine", 60) == 1
    world.until(lambda: seen)
    assert seen == [(0, "mine")]
    for bad in (({}, 60), ({str(folder): 0}, 60), ({str(tmp_path / "none"): 1}, 60), ({str(folder): 1}, 0)):
        assert acp.register_checker(print, bad[0], None, bad[1]) is None


def test_a_checker_gives_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checker, "PERIOD_S", 0.01)
    seen: list[int] = []
    checker.start(lambda result, _: seen.append(result), {tmp_path: 1}, None, 0.05).join(60)
    assert seen == [-110]


def test_files_of_other_formats_go_through_memory_too(tmp_path: Path, acp: Any):
    path = str(tmp_path / "f")
    with acp.create_file(path) as file:
        file.write(b"abc")
        file.write([b"de", b"f"])
    with acp.open_file(path) as file:
        assert (file.read(), file.read(2), file.read(1, 2), file.read(9)) == (b"abcdef", b"cdef", b"bc", b"")
    assert acp.flush() == 0 and Path(path).read_bytes() == b"abcdef" and os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(ZeroDivisionError), acp.create_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert acp.flush() == 0 and Path(path).read_bytes() == b"abcdef"
    with pytest.raises(FileNotFoundError), acp.open_file(str(tmp_path / "none")):
        pass


def test_the_helper_overlaps_saves_and_writes_the_tracker_last(tmp_path: Path, acp: Any):
    one = acp.CheckpointHelper(3)
    assert acp.CheckpointHelper(4) is one and one.rank == 3
    folder = tmp_path / "iter_0000007"
    folder.mkdir()
    names = [str(folder / "m.pt"), str(folder / "n.pt")]
    model = {"w": torch.arange(1000.0), "step": 5}
    one.save_model_checkpoint(names, model)
    freed = threading.Event()

    def parameters(notify_callback: Any) -> dict[str, Any]:
        notify_callback()
        freed.wait(60)
        return dict(STATE)

    one.save_optimizer_checkpoint(str(folder / "o.pt"), parameters)
    one.wait_d2h_finished()
    model["w"].zero_()
    tracker = tmp_path / sets.TRACKER
    assert one.async_write_tracker_file(7, str(folder), 3, str(tracker)) == 1
    assert one.async_checkpoint_count() == 1 and not tracker.exists()
    freed.set()
    world.until(tracker.exists)
    assert tracker.read_text() == "7"
    assert all(same(reading.load(folder / name)) for name in ("m.pt", "n.pt", "o.pt"))
    assert same(one.load_model_checkpoint(names[0], 0))
    with pytest.raises(ValueError, match="notify_callback"):
        one.save_optimizer_checkpoint(names[0], lambda a, b: None)
    with pytest.raises(ValueError, match="1024"):
        one.save_model_checkpoint("/" + "x" * 1100, {})


CHECKPOINTING = """
import torch, os
def save_checkpoint(folder, iteration, state):
    name = os.path.join(folder, f"iter_{iteration:07d}", "mp_rank_00", "model_optim_rng.pt")
    os.makedirs(os.path.dirname(name), exist_ok=True)
    torch.save(state, name)
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "w") as f:
        f.write(str(iteration))
def load_checkpoint(folder):
    with open(os.path.join(folder, "latest_checkpointed_iteration.txt"), "r") as f:
        iteration = int(f.read())
    name = os.path.join(folder, f"iter_{iteration:07d}", "mp_rank_00", "model_optim_rng.pt")
    return torch.load(name, map_location="cpu")
"""


def test_megatrons_own_flow_goes_through_the_pool(tmp_path: Path, acp: Any, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "checkpointing.py").write_text(CHECKPOINTING)
    spec = importlib.util.spec_from_file_location("megatron.training.checkpointing", tmp_path / "checkpointing.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    waited: list[bool] = []

    class FP32Optimizer:
        def step(self) -> bool:
            waited.append(not helper.CheckpointHelper(0)._copies)
            return True

    optimizers = types.SimpleNamespace(FP32Optimizer=FP32Optimizer)
    found = {module.__name__: module, "megatron.core.optimizer.optimizer": optimizers}
    monkeypatch.setattr(megatron, "_module", found.get)
    monkeypatch.setenv("MINDIO_AUTO_PATCH_MEGATRON", "true")
    assert megatron.wanted() and megatron.patch() == ["megatron.training.checkpointing", "FP32Optimizer"]
    assert megatron.patch() == []
    model = {"w": torch.arange(1000.0), "step": 5}
    module.save_checkpoint(str(tmp_path), 7, model)
    assert FP32Optimizer().step() and waited == [True]
    model["w"].zero_()
    world.until((tmp_path / sets.TRACKER).exists)
    assert sets.scan(tmp_path)[0].complete and same(module.load_checkpoint(str(tmp_path)))
    name = tmp_path / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    assert same(reading.load(name))
