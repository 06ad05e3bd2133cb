"""``mindio_acp`` as scripts use it: documented results, files that torch never sees half, Megatron's own flow."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
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

from belay.agents.training.checkpoint import blocks, durable, reading, sets
from belay.agents.training.checkpoint.dropin import api, checker, helper, megatron, process

PACKAGES = Path(__file__).resolve().parents[2] / "agents" / "training" / "packages"


@pytest.fixture
def acp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MINDIO_ACP_LOG_PATH", str(tmp_path / "work"))
    monkeypatch.syspath_prepend(str(PACKAGES))
    monkeypatch.setattr(process, "_clients", {})
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


def test_megatron_loads_code_where_its_torch_does_so_unasked(tmp_path: Path, acp: Any):
    path = str(tmp_path / "a.pt")
    assert acp.save({"when": threading.Event}, path) == 1
    newer, older = (megatron._Torch(types.SimpleNamespace(__version__=version)) for version in ("2.6.0+cpu", "2.5.1"))
    with pytest.raises(api.CheckpointError, match="threading"):
        newer.load(path)
    assert newer.load(path, weights_only=False)["when"] is older.load(path)["when"] is threading.Event


def test_unknown_settings_are_refused(acp: Any):
    assert acp.initialize({"memfs.colour": "blue"}) == -1
    assert acp.initialize({"background.backup.thread_num": "300"}) == -1


def test_threads_and_slices_of_a_copy_are_those_that_were_set(
    tmp_path: Path, acp: Any, monkeypatch: pytest.MonkeyPatch
):
    seen: list[tuple[int, int]] = []
    real = blocks.copy

    def copy(pieces: Any, threads: int, piece_bytes: int) -> None:
        seen.append((threads, piece_bytes))
        real(pieces, threads, piece_bytes)

    monkeypatch.setattr(blocks, "copy", copy)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    chosen = {"memfs.write.parallel.thread_num": "3", "memfs.write.parallel.slice_in_mb": "2"}
    assert acp.initialize(chosen) == 0 and acp.save(STATE, str(tmp_path / "a.pt")) == 1
    assert acp.initialize({"memfs.write.parallel.enabled": "false"}) == 0
    assert acp.save(STATE, str(tmp_path / "a.pt")) == 1
    assert seen == [(3, 2 << 20), (1, 16 << 20)]


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
    monkeypatch.setattr(process, "_clients", {})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    paths = [str(tmp_path / f"{n}.pt") for n in range(2)]
    assert api.multi_save(STATE, paths) == 0 and all(same(reading.load(Path(path))) for path in paths)
    assert process.flush() == 0


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
    with client.resident(path) as slot:
        # a file that is being read into memory is waited for
        assert slot is not None and slot.size == path.stat().st_size
    assert client.listed(tmp_path) and same(acp.load(str(path)))


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
        assert (file.read(), file.read(2), file.read(1, 2), file.read(6)) == (b"abcdef", b"cdef", b"bc", b"")
        for outside in ((3, 9), (6, 1), (7, -1), (-1, 2), (0, -2)):
            with pytest.raises(RuntimeError, match="has 6 bytes"):
                file.read(*outside)
    assert acp.flush() == 0 and Path(path).read_bytes() == b"abcdef" and os.stat(path).st_mode & 0o777 == 0o600
    with pytest.raises(ZeroDivisionError), acp.create_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert acp.flush() == 0 and Path(path).read_bytes() == b"abcdef"
    with pytest.raises(FileNotFoundError):
        acp.open_file(str(tmp_path / "none"))
    file = acp.open_file(path)
    assert file.read(3) == b"def"
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read()


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from mindio_acp import *
import mindio_acp
assert initialize({"memfs.data_block_pool_capacity_in_gb": "1"}) == 0
with create_file(sys.argv[1]) as file:
    file.write(b"abc")
assert flush() == 0 and preload(sys.argv[1]) == 0
with open_file(sys.argv[1]) as file:
    print(file.read(), "save" in mindio_acp.__all__)
try:
    mindio_acp.save({}, sys.argv[1])
except ImportError as error:
    print(error)
"""


def test_files_of_mindspore_need_no_torch(tmp_path: Path, acp: Any):
    environment = os.environ | {"PYTHONPATH": f"{PACKAGES}:{PACKAGES.parents[2] / 'src'}"}
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "f")], env=environment, check=False,
                          capture_output=True, text=True, timeout=120)  # fmt: skip
    why = "mindio_acp.save needs PyTorch, which is not installed: pip install torch"
    assert done.stdout == f"b'abc' False\n{why}\n", done.stderr


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
    told: list[tuple[int, int]] = []
    assert one.async_write_tracker_file(
        iteration=7, iteration_dir=str(folder), total_file_count=3, tracker_filename=str(tracker),
        callback=lambda iteration, result: told.append((iteration, result)),
    ) == 1  # fmt: skip
    assert one.async_checkpoint_count() == 1 and not tracker.exists()
    freed.set()
    world.until(tracker.exists)
    assert tracker.read_text() == "7"
    assert all(same(reading.load(folder / name)) for name in ("m.pt", "n.pt", "o.pt"))
    world.until(lambda: told == [(7, 0)])
    assert same(one.load_model_checkpoint(checkpoint_name=names[0], load_rank=0, process_group=None))
    for wrong in (lambda: one.load_model_checkpoint("/" + "x" * 1100, 0), lambda: one.load_model_checkpoint("/x", -1),
                  lambda: one.async_write_tracker_file(7, str(tmp_path / "none"), 1, str(tracker)),
                  lambda: one.async_write_tracker_file(7, str(folder), 1, "/" + "x" * 1100)):  # fmt: skip
        with pytest.raises(ValueError, match=r"1024|negative|directory"):
            wrong()
    with pytest.raises(ValueError, match="notify_callback"):
        one.save_optimizer_checkpoint(names[0], lambda a, b: None)
    with pytest.raises(ValueError, match="1024"):
        one.save_model_checkpoint("/" + "x" * 1100, {})


def test_the_helper_takes_the_documented_keywords(tmp_path: Path, acp: Any):
    one = acp.CheckpointHelper(0)
    one.save_model_checkpoint(checkpoint_name=str(tmp_path / "m.pt"), model=STATE)
    names = [str(tmp_path / "o.pt"), str(tmp_path / "p.pt")]
    one.save_optimizer_checkpoint(checkpoint_name=names, get_parameter_state_func=lambda: STATE)
    seen: list[Any] = []
    one.async_save_checkpoint(thread_func=lambda given: seen.append(given), kwargs={"step": 5})
    one.async_save_checkpoint(lambda step: seen.append(step), {"step": 6})
    one.async_save_checkpoint(lambda step: 1 / 0, {"step": 7})
    one.async_save_checkpoint(lambda: seen.append("last"), {})
    world.until(lambda: seen == [{"step": 5}, 6, "last"])
    one.wait_d2h_finished()
    assert acp.flush() == 0 and all(same(reading.load(tmp_path / name)) for name in ("m.pt", "o.pt", "p.pt"))


GROUPED = """
import sys, torch, torch.distributed as dist
from belay.agents.training.checkpoint.dropin import helper, process
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
one, state = helper.CheckpointHelper(rank), {"w": torch.arange(10.0)}
if rank == 0:
    one.save_model_checkpoint(f"{folder}/m.pt", state)
one.wait_d2h_finished()  # rank 1 saved nothing
torch.save({"w": torch.full((3,), float(rank))}, f"{folder}/{rank}.pt")
own = one.load_model_checkpoint(f"{folder}/{rank}.pt", rank)
if rank == 0:
    assert process.flush() == 0
theirs = one.load_model_checkpoint(f"{folder}/m.pt", 0, dist.group.WORLD)
try:
    one.load_model_checkpoint(f"{folder}/none.pt", 0, dist.group.WORLD)
except Exception as error:
    print(rank, own["w"].tolist(), theirs["w"].sum().item(), str(error).startswith("rank 0 could not read"))
"""


@pytest.mark.timeout(300)
def test_ranks_that_save_nothing_take_part_in_waiting_and_loading(tmp_path: Path, acp: Any):
    """Only the first data-parallel rank saves; without a group each rank reads a file of its own."""
    ranks = [
        subprocess.Popen([sys.executable, "-c", GROUPED, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=240)[0].strip() for rank in ranks]
    assert said == ["0 [0.0, 0.0, 0.0] 45.0 True", "1 [1.0, 1.0, 1.0] 45.0 True"]


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


SHARDS = """
import torch
def save_parameter_state(name, state):
    torch.save(state, name)
"""


def loaded(folder: Path, name: str, text: str) -> Any:
    """A module of this text."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_megatrons_own_flow_goes_through_the_pool(tmp_path: Path, acp: Any, monkeypatch: pytest.MonkeyPatch):
    module = loaded(tmp_path, "megatron.training.checkpointing", CHECKPOINTING)
    waited: list[bool] = []

    class FP32Optimizer:
        def step(self) -> bool:
            waited.append(not helper.CheckpointHelper(0)._copies)
            return True

    optimizers = types.SimpleNamespace(FP32Optimizer=FP32Optimizer)
    shards = loaded(tmp_path, "megatron.core.optimizer.distrib_optimizer", SHARDS)
    found = {one.__name__: one for one in (module, shards)} | {"megatron.core.optimizer.optimizer": optimizers}
    monkeypatch.setattr(megatron, "_module", found.get)
    monkeypatch.setenv("MINDIO_AUTO_PATCH_MEGATRON", "true")
    optimizer = "megatron.core.optimizer.optimizer.FP32Optimizer.step"
    assert megatron.wanted() and megatron.patch() == [module.__name__, shards.__name__, optimizer]
    assert megatron.patch() == []
    # the optimizer's shards are saved by another module of Megatron's
    (tmp_path / "iter_0000007" / "mp_rank_00").mkdir(parents=True)
    shards.save_parameter_state(str(tmp_path / "iter_0000007" / "mp_rank_00" / "distrib_optim.pt"), STATE)
    assert helper.CheckpointHelper(0)._copies
    model = {"w": torch.arange(1000.0), "step": 5}
    module.save_checkpoint(str(tmp_path), 7, model)
    assert FP32Optimizer().step() and waited == [True]
    model["w"].zero_()
    world.until((tmp_path / sets.TRACKER).exists)
    assert sets.scan(tmp_path)[0].complete and same(module.load_checkpoint(str(tmp_path)))
    name = tmp_path / "iter_0000007" / "mp_rank_00" / "model_optim_rng.pt"
    assert same(reading.load(name)) and same(reading.load(name.with_name("distrib_optim.pt")))
    assert same(module.torch.load(name, map_location=torch.device("cpu")))


def test_megatron_gets_its_option_and_reads_ahead_while_the_model_is_built(
    tmp_path: Path, acp: Any, monkeypatch: pytest.MonkeyPatch
):
    def parse_args(extra_args_provider: Any = None, ignore_unknown_args: bool = False) -> Any:
        parser = argparse.ArgumentParser()
        parser.add_argument("--load")
        if extra_args_provider is not None:
            parser = extra_args_provider(parser)
        return parser.parse_args(["--load", str(tmp_path), "--replica-count", "2"])

    set_up: list[bool] = []
    initialize = types.SimpleNamespace(parse_args=parse_args, setup_logging=lambda: set_up.append(True))
    variables = types.SimpleNamespace()
    found = {"megatron.training.initialize": initialize, "megatron.training.global_vars": variables}
    monkeypatch.setattr(megatron, "_module", found.get)
    assert megatron.patch() == ["megatron.training.initialize.parse_args", "megatron.training.initialize.setup_logging"]
    args = initialize.parse_args(lambda parser: parser)
    assert args.replica_count == 2 and initialize.parse_args().replica_count == 2
    # rank 5 of 8: tensor 2, pipeline 2
    args.rank, args.world_size, args.tensor_model_parallel_size, args.pipeline_model_parallel_size = 5, 8, 2, 2
    variables.get_args = lambda: args
    initialize.setup_logging()
    folder = tmp_path / "iter_0000030" / "mp_rank_01_001"
    folder.mkdir(parents=True)
    (tmp_path / sets.TRACKER).write_text("30")
    for name in ("model_optim_rng.pt", "distrib_optim.pt"):
        acp.save(STATE, str(folder / name), open_way="fopen")
    initialize.setup_logging()
    client = api.saver_of_process().client
    assert set_up == [True, True] and same(acp.load(str(folder / "model_optim_rng.pt")))
    world.until(lambda: len(client.listed(folder)) == 2)


def test_a_damaged_file_is_not_taken_into_memory(tmp_path: Path, acp: Any):
    path = tmp_path / "a.pt"
    acp.save(STATE, str(path), open_way="fopen")
    with open(path, "r+b") as file:
        file.seek(900)
        file.write(b"\xff\xee")
    assert acp.preload(str(path)) == 0
    with pytest.raises(api.CheckpointError, match="damaged"):
        acp.load(str(path))
    os.truncate(path, 2000)
    assert acp.preload(str(path)) == 0
    with pytest.raises(api.CheckpointError, match="truncated"):
        acp.load(str(path))
