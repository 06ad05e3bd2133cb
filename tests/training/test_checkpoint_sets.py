"""Sets of files: the newest complete one across tiers, what is missing, retention, the verbs of the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests import needs
from tests.training import checkpoint_world as world

try:
    import torch
except ImportError:
    needs.lacking("PyTorch is not installed: make test installs it, or requirements-training.lock says which")

from belay.agents.training.checkpoint import durable, retention, sets, sums
from belay.agents.training.checkpoint.errors import Damaged, Incomplete
from belay.agents.training.checkpoint.native import Checkpoints
from belay.agents.training.checkpoint.saver import Saver
from belay.agents.training.checkpoint.tiers import Tiers
from belay.engine.cli import checkpoints, main


def save(folder: Path, step: int, ranks: int = 2, only: tuple[int, ...] | None = None) -> None:
    for rank in range(ranks) if only is None else only:
        Checkpoints(folder, rank, ranks, through=Saver(None)).save(
            {"step": step, "rank": rank, "w": torch.ones(900)}, step
        )


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["checkpoint", *words])
    return done.exit_code, done.output


def test_the_newest_complete_set_is_found_and_gaps_of_newer_ones_are_listed(tmp_path: Path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    save(tmp_path, 30, 3, only=(0, 2))
    tiers = Tiers([("local", tmp_path)])
    found = tiers.newest()
    assert found is not None and (found.step, found.world_size, found.tier) == (20, 2, "local")
    assert tiers.missing() == [f"{tmp_path}/step-000000030: rank-00001-of-00003.mindio"]
    assert tiers.newest(at_most=19).step == 10  # type: ignore[union-attr]
    assert tiers.load(found, 1)["rank"] == 1


def test_a_truncated_file_makes_its_set_incomplete(tmp_path: Path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    path = sets.rank_file(tmp_path, 20, 1, 2)
    os.truncate(path, path.stat().st_size - 1)
    tiers = Tiers([("local", tmp_path)])
    assert tiers.newest().step == 10  # type: ignore[union-attr]
    assert "rank-00001-of-00002.mindio has" in tiers.missing()[0]


def test_a_damaged_newest_set_is_skipped_and_named_when_it_is_the_only_one(tmp_path: Path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    flip(sets.rank_file(tmp_path, 20, 0, 2), 600)
    found, state = Tiers([("local", tmp_path)]).load_newest(0)
    assert found.step == state["step"] == 10
    flip(sets.rank_file(tmp_path, 10, 0, 2), 600)
    with pytest.raises(Incomplete, match=r"step-000000010/rank-00000-of-00002\.mindio is damaged"):
        Tiers([("local", tmp_path)]).load_newest(0)


def test_the_nearest_tier_of_the_newest_step_is_taken(tmp_path: Path):
    local, shared = tmp_path / "local", tmp_path / "shared"
    save(local, 10)
    save(shared, 10)
    save(shared, 20)
    tiers = Tiers([("local", local), ("shared", shared)])
    assert [(one.step, one.tier) for one in tiers.complete()] == [(20, "shared"), (10, "local"), (10, "shared")]
    flip(sets.rank_file(local, 10, 0, 2), 600)
    with pytest.raises(Damaged):
        tiers.load(tiers.complete()[1], 0)
    flip(sets.rank_file(shared, 20, 0, 2), 600)
    assert tiers.load_newest(0)[0].place == str(sets.step_folder(shared, 10))


def test_files_that_are_only_in_memory_count(tmp_path: Path):
    with world.writing(tmp_path / "work") as client:
        saver, folder = Saver(client), tmp_path / "job"
        save(folder, 10)
        for rank in range(2):
            path = sets.rank_file(tmp_path / "job", 20, rank, 2)
            saver.save({"step": 20, "rank": rank, "w": torch.ones(1 << 20)}, path)
        tiers = Tiers([("local", folder)], saver)
        found = tiers.newest()
        assert found is not None and (found.step, found.tier) == (20, "memory")
        assert tiers.load(found, 1)["rank"] == 1
        assert not sets.step_folder(folder, 20).exists()


def test_a_host_with_its_own_disk_needs_its_own_ranks_only(tmp_path: Path):
    save(tmp_path, 10, 4, only=(2, 3))
    assert Tiers([("local", tmp_path)]).newest() is None
    found = Tiers([("local", tmp_path)], ranks=frozenset({2, 3})).newest()
    assert found is not None and (found.step, found.world_size) == (10, 4)


def test_another_number_of_ranks_is_refused_with_the_way_out(tmp_path: Path):
    save(tmp_path, 10, 2)
    with pytest.raises(Incomplete, match=r"2 ranks, this job has 3.*distributed\.checkpoint"):
        Checkpoints(tmp_path, 0, 3, through=Saver(None)).load_newest()
    with pytest.raises(Incomplete, match="no checkpoint"):
        Checkpoints(tmp_path / "new", 0, 1, through=Saver(None)).load_newest()


def test_the_native_api_copies_to_shared_storage_and_keeps_a_few(tmp_path: Path):
    with world.writing(tmp_path / "work") as client:
        one = Checkpoints(tmp_path / "a", 0, 1, shared=tmp_path / "b", keep=2, through=Saver(client))
        for step in range(5):
            one.save_async({"step": step}, step).durable()
        one.save({"step": 5}, 5).durable()
        assert one.load_newest() == (5, {"step": 5})
    for folder in ("a", "b"):
        steps = [found.step for found in sets.scan(tmp_path / folder)]
        assert steps[0] == 5 and len(steps) <= 3


def test_retention_never_takes_the_newest_complete_set_nor_later_ones(tmp_path: Path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    save(tmp_path, 15, 2, only=(0,))
    save(tmp_path, 50, 2, only=(1,))
    found = sets.scan(tmp_path)
    assert [one.step for one in retention.outdated(found, keep=2, oldest=None)] == [10, 15, 20]
    assert [one.step for one in retention.outdated(found, keep=None, oldest=4e9)] == [10, 15, 20, 30]
    assert [one.step for one in retention.outdated(found, keep=None, oldest=None)] == [15]
    retention.prune(tmp_path, keep=1)
    assert [one.step for one in sets.scan(tmp_path)] == [50, 40]


def test_retention_keeps_the_newest_set_that_is_whole(tmp_path: Path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    for step in (30, 40):
        flip(sets.rank_file(tmp_path, step, 0, 2), 700)
    found = retention.prune(tmp_path, keep=2)
    assert [path.name for path in found.kept] == ["step-000000020"] and len(found.damaged) == 2
    assert [one.step for one in sets.scan(tmp_path)] == [40, 30, 20]
    save(tmp_path, 50)
    flip(sets.rank_file(tmp_path, 50, 1, 2), 700)
    flip(sets.rank_file(tmp_path, 20, 0, 2), 700)
    assert retention.prune(tmp_path, keep=1).removed == [], "nothing complete goes where nothing is whole"
    save(tmp_path, 60)
    found = retention.prune(tmp_path, keep=1)
    assert not found.damaged and [one.step for one in sets.scan(tmp_path)] == [60]


def test_as_many_stay_at_the_end_as_were_asked_for(tmp_path: Path):
    with world.writing(tmp_path / "work") as client:
        ranks = [Checkpoints(tmp_path / "a", rank, 2, keep=2, through=Saver(client)) for rank in range(2)]
        for step in range(4):
            # the other rank's file comes later: the set is not complete when rank 0 looks
            for one in ranks:
                one.save_async({"step": step}, step).durable()
        for one in reversed(ranks):
            one.flush()
    assert [found.step for found in sets.scan(tmp_path / "a")] == [3, 2]


def test_a_job_that_went_back_keeps_what_it_saves_beside_later_damaged_sets(tmp_path: Path):
    one = Checkpoints(tmp_path, 0, 1, keep=2, through=Saver(None))
    for step in (900, 1000, 1100):
        Checkpoints(tmp_path, 0, 1, through=Saver(None)).save({"step": step}, step)
    one.save({"step": 950}, 950)
    assert [found.step for found in sets.scan(tmp_path)] == [1100, 1000, 950, 900]
    one.save({"step": 960}, 960)
    assert [found.step for found in sets.scan(tmp_path)] == [1100, 1000, 960, 950]


def test_megatron_is_complete_as_far_as_its_tracker_says(tmp_path: Path):
    for step in (100, 200):
        for rank in range(2):
            place = tmp_path / f"iter_{step:07d}" / f"mp_rank_{rank:02d}"
            place.mkdir(parents=True)
            durable.write(place / "model_optim_rng.pt", memoryview(bytearray(b"x" * 100)))
    (tmp_path / sets.TRACKER).write_text("100")
    assert [(one.step, one.complete) for one in sets.scan(tmp_path)] == [(200, False), (100, True)]
    (tmp_path / sets.TRACKER).write_text("200")
    (tmp_path / "iter_0000200" / "mp_rank_00" / "model_optim_rng.pt").unlink()
    assert sets.scan(tmp_path)[0].missing == ("mp_rank with number 0 at place 1",)


def test_the_verbs_list_verify_and_prune(tmp_path: Path):
    save(tmp_path, 10)
    save(tmp_path, 20)
    assert run("verify", str(tmp_path))[0] == 0
    save(tmp_path, 30, 2, only=(0,))
    code, text = run("list", str(tmp_path))
    assert code == 0 and "lacks rank-00001-of-00002.mindio" in text
    rows = json.loads(run("list", str(tmp_path), "-o", "json")[1])
    assert [(row["step"], row["complete"]) for row in rows] == [(30, False), (20, True), (10, True)]
    flip(sets.rank_file(tmp_path, 20, 1, 2), 700)
    code, text = run("verify", str(tmp_path))
    assert code == 1 and "step-000000020/rank-00001-of-00002.mindio is damaged: bytes 0.." in text
    durable.staging(tmp_path / "x").write_bytes(b"half")
    assert "in 1 leftovers" in run("du", str(tmp_path))[1]
    code, text = run("prune", str(tmp_path), "--keep", "1", "--dry-run")
    assert code == 1 and "1 to remove" in text and len(sets.scan(tmp_path)) == 3
    code, text = run("prune", str(tmp_path), "--keep", "1")
    assert code == 1 and "damaged: " in text and "step-000000010, since no newer set is whole" in text
    assert [one.step for one in sets.scan(tmp_path)] == [30, 20, 10] and not durable.staging(tmp_path / "x").exists()
    flip(sets.rank_file(tmp_path, 20, 1, 2), 700)
    assert run("prune", str(tmp_path), "--keep", "1") == (0, f"removing {tmp_path}/step-000000010\n1 removed\n")
    assert [one.step for one in sets.scan(tmp_path)] == [30, 20]
    assert run("prune", str(tmp_path), "--older-than", "soon")[0] == 2


@pytest.mark.parametrize("verb", ["list", "verify", "convert", "du", "prune"])
def test_long_work_shows_that_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str):
    save(tmp_path / "job", 10, 1)
    path = sets.rank_file(tmp_path / "job", 10, 0, 1)
    shown: list[str] = []

    @contextmanager
    def progress(label: str, total: float | None = None, **_: object) -> Iterator[Callable[..., None]]:
        shown.append(label)
        yield lambda count=1, note=None: shown.append(f"{count} of {total}")

    monkeypatch.setattr(checkpoints, "progress", progress)
    durable.staging(tmp_path / "job" / "x").write_bytes(b"half")
    run(verb, *([str(path), str(tmp_path / "x.zip")] if verb == "convert" else [str(tmp_path / "job")]))
    wanted = {"verify": "verifying", "convert": "converting", "prune": "pruning"}.get(verb, "reading")
    assert shown[0].split()[0] == wanted and len(shown) >= (1 if wanted == "reading" else 2)


def test_convert_names_the_file_that_it_wrote(tmp_path: Path):
    save(tmp_path, 10, 1)
    path = sets.rank_file(tmp_path, 10, 0, 1)
    code, text = run("convert", str(path), str(tmp_path / "x.zip"))
    assert code == 0 and ": torch," in text
    assert torch.load(tmp_path / "x.zip", weights_only=True)["step"] == 10
    code, text = run("convert", str(sums.place(path)), str(tmp_path / "y"))
    assert code == 2 and "neither" in text


def test_a_pipe_among_the_files_is_named_and_waited_for_by_no_verb(tmp_path: Path):
    """Opened as a file it would be waited for until a writer comes."""
    save(tmp_path, 10, 1)
    pipe = tmp_path / "step-000000010" / "pipe.mindio"
    os.mkfifo(pipe)
    code, text = run("verify", str(tmp_path))
    assert code == 1 and f"{pipe} cannot be opened: no regular file" in text
    code, text = run("convert", str(pipe), str(tmp_path / "x"))
    assert code == 2 and f"{pipe}" in text and "no regular file" in text


def test_of_a_set_that_is_a_link_only_the_link_is_removed(tmp_path: Path):
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    save(elsewhere, 10, 1)
    save(here, 20, 1)
    (here / "step-000000010").symlink_to(elsewhere / "step-000000010")
    code, _ = run("prune", str(here), "--keep", "1")
    assert code == 0 and [one.step for one in sets.scan(here)] == [20]
    assert [one.step for one in sets.scan(elsewhere)] == [10] and not list(here.glob(".removing*"))


def test_without_sums_the_structure_is_checked_at_least(tmp_path: Path):
    save(tmp_path, 10, 1)
    path = sets.rank_file(tmp_path, 10, 0, 1)
    sums.forget(path)
    code, text = run("verify", str(path))
    assert code == 0 and "only its own map was checked" in text
    os.truncate(path, 100)
    path.write_bytes(path.read_bytes() + b"\x00" * 16 + b"mindio\x00")
    assert run("verify", str(path))[0] == 1


@pytest.mark.parametrize("verb", ["list", "verify", "du", "prune", "check"])
def test_a_wrong_folder_is_named(tmp_path: Path, verb: str):
    code, text = run(verb, str(tmp_path / "missing"))
    assert code == 2 and "missing" in text
    if verb != "verify":
        (tmp_path / "file").write_text("x")
        code, text = run(verb, str(tmp_path / "file"))
        assert code == 2 and "is a file" in text


def test_verify_does_not_pass_where_there_is_nothing_to_verify(tmp_path: Path):
    code, text = run("verify", str(tmp_path))
    assert code == 2 and "holds no files" in text
    (tmp_path / "notes.txt").write_text("no checkpoint")
    code, text = run("verify", str(tmp_path))
    assert code == 1 and "nothing could be checked" in text
