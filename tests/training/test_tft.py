"""MindIO TFT in a small framework in the manner of Megatron on gloo: real processes, killed and broken.

All plans run in one go (PyTorch is imported once); each test looks at the story of its plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.ports import free_port

pytestmark = [pytest.mark.xdist_group("tft"), pytest.mark.timeout(1000)]
ROOT = Path(__file__).parents[2]
STEPS = 24
SOON = 8.0
"""Seconds; less than any limit after which a rank gives up waiting for another one."""


def act(do: str, rank: int, step: int = 8, where: str = "begin", **more) -> dict:
    return {"do": do, "rank": rank, "step": step, "where": where} | more


HCCL = {"text": "planned: HCCL OP RETRY FAILED"}
UCE = {"text": "planned: UCE ERROR, device error type 0x1f"}
LARGE = {"world": 8, "tp": 2, "pp": 2, "copies": 2}
PLANS = {
    "undisturbed": {},
    "killed": {"acts": [act("kill", 2)], "strategies": ["recover"]},
    "killed before the gradients meet": {"acts": [act("kill", 1, where="reduce")], "strategies": ["recover"]},
    "killed in the update": {"acts": [act("kill", 3, where="update")], "strategies": ["recover"]},
    "two killed": {"acts": [act("kill", 0), act("kill", 3)], "strategies": ["recover"]},
    "killed twice": {"acts": [act("kill", 2), act("kill", 1, 10)], "strategies": ["recover", "recover", "recover"]},
    "hccl": {"acts": [act("raise", 1, where="reduce", **HCCL)], "strategies": ["retry"]},
    "uce": {"acts": [act("raise", 1, where="reduce", **UCE)], "strategies": ["retry"]},
    "no clusterd": {"acts": [act("raise", 1, where="reduce", **HCCL)], "clusterd": False, "arf": False},
    "dump": {"acts": [act("kill", 2)], "strategies": ["dump"]},
    "exit": {"acts": [act("kill", 2)], "strategies": ["exit"]},
    "not offered": {"acts": [act("kill", 2)], "strategies": ["downgrade"]},
    "paused": {"orders": [{"do": "pause", "step": 6}]},
    # the new process has to be there before the old one has trained to the end
    "hot switch": {"orders": [{"do": "hot switch", "step": 6, "target": 3}], "strategies": ["migration"], "pause": 0.1},
    "smaller": {"acts": [act("kill", 3)], "strategies": ["downgrade"], "zit": True, "copies": 4},
    "larger": {
        "acts": [act("kill", 3)], "strategies": ["downgrade"], "zit": True, "copies": 4, "steps": 90,
        "orders": [{"do": "upgrade", "step": 12}],
    },
    "backup": {
        "acts": [act("kill", 0)], "controller": 0, "backups": [2], "clusterd": False, "arf": False, "uce": False,
    },
    "no backup": {"controller": 0, "clusterd": False, "acts": [act("raise", 1, where="reduce", **HCCL)]},
    "killed in the repair": {
        "acts": [act("kill", 2), act("kill", 1, where="clean")], "strategies": ["recover"],
    },
    "killed while it comes back": {
        "acts": [act("kill", 2), act("kill", 2, where="repair", again=True)], "strategies": ["recover"],
    },
    "frozen": {"acts": [act("freeze", 2)], "strategies": ["recover"], "steps": 40, "limit": 180},
    "large undisturbed": LARGE,
    "large killed": LARGE | {"acts": [act("kill", 5)], "strategies": ["recover"]},
    "large dump": LARGE | {"acts": [act("kill", 5)], "strategies": ["dump"]},
}  # fmt: skip


class Story:
    """What happened in a plan."""

    def __init__(self, events: Path, outcome: dict) -> None:
        self.lines = [json.loads(line) for line in events.read_text().splitlines()]
        self.codes = {int(rank): codes for rank, codes in outcome["codes"].items()}
        self.left = outcome["left"]
        self.ends = outcome["ends"]
        self.folder = events.parent

    def of(self, what: str, rank: int | None = None) -> list[dict]:
        return [e for e in self.lines if e["what"] == what and rank in (None, e["rank"])]

    def digests(self) -> dict[tuple[int, int], str]:
        """What each rank held after each step, the last time it did it."""
        return {(e["rank"], e["step"]): e["digest"] for e in self.of("step")}

    def results(self) -> list[tuple[int, str]]:
        return [(e["code"], e["strategy"]) for e in self.of("report_result")]

    def repaired_within(self, what: str) -> float:
        """Seconds from the disturbance until all ranks finished a step that none had finished before it."""
        begin = min(e["t"] for e in self.of(what))
        ahead = max(e["step"] for e in self.of("step") if e["t"] < begin)
        firsts = {}
        for e in self.of("step"):
            if e["t"] > begin and e["step"] > ahead:
                firsts.setdefault(e["rank"], e["t"])
        return max(firsts.values()) - begin


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> dict[str, Story]:
    needs.torch()
    folder = tmp_path_factory.mktemp("tft")
    names, paths = [], []
    for index, (name, more) in enumerate(PLANS.items()):
        own = folder / str(index)
        own.mkdir()
        plan = {
            "world": 4, "tp": 1, "pp": 1, "copies": 2, "batches": 8, "steps": STEPS, "pause": 0.02, "arf": True,
            "zit": False, "uce": True, "acts": [], "strategies": [], "orders": [], "clusterd": True,
            "port": free_port(), "events": str(own / "events.jsonl"), "folder": str(own), "limit": 150,
        } | more  # fmt: skip
        path = own / "plan.json"
        path.write_text(json.dumps(plan))
        names.append(name)
        paths.append(path)
    env = dict(os.environ) | {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'agents/training/packages'}", "TTP_LOG_PATH": str(folder / "logs"),
        "OMP_NUM_THREADS": "1", "MINDIO_WAIT_MINDX_TIME": "10",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.megatron_like.launcher", *map(str, paths)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == len(names), done.stderr[-4000:]
    return {n: Story(p.parent / "events.jsonl", json.loads(o)) for n, p, o in zip(names, paths, lines, strict=True)}


REPAIRED = [
    "killed", "killed before the gradients meet", "killed in the update", "two killed", "killed twice", "hccl", "uce",
    "no clusterd", "paused", "hot switch", "no backup", "killed in the repair", "killed while it comes back",
]  # fmt: skip
"""Plans after which every rank has trained to the end."""


@pytest.mark.parametrize("name", [*REPAIRED, "undisturbed", "smaller", "larger", "large killed"])
def test_every_rank_leaves_with_0_soon_after_its_last_step(stories, name):
    story = stories[name]
    assert not story.left
    assert all(codes[-1] == 0 or set(codes) == {-9} for codes in story.codes.values()), story.codes
    left = [at for at, code in story.ends if code == 0]
    assert max(left) - max(e["t"] for e in story.of("done")) < SOON


@pytest.mark.parametrize("name", REPAIRED)
def test_weights_are_bit_equal_to_an_undisturbed_run(stories, name):
    found, undisturbed = stories[name].digests(), stories["undisturbed"].digests()
    assert {key: undisturbed[key] for key in found} == found
    assert {(rank, STEPS) for rank in range(4)} <= found.keys()


def test_tensor_pipeline_and_data_parallel_weights_are_bit_equal_after_a_repair(stories):
    assert stories["large killed"].digests() == stories["large undisturbed"].digests()


@pytest.mark.parametrize("name,rank", [("killed", 2), ("killed in the update", 3)])
def test_survivors_keep_their_process(stories, name, rank):
    pids = {}
    for event in stories[name].of("step"):
        pids.setdefault(event["rank"], set()).add(event["pid"])
    assert {r for r, found in pids.items() if len(found) > 1} == {rank}


def test_a_lost_process_is_reported_offered_and_repaired_in_the_documented_order(stories):
    story = stories["killed"]
    told = [e["what"] for e in story.lines if e["rank"] == -1]
    assert told == ["report_fault_ranks", "report_stop_complete", "report_fault_ranks", "report_strategies",
                    "report_result"]  # fmt: skip
    assert story.of("report_strategies")[0]["strategies"] == ["exit", "dump", "recover"]
    assert story.of("report_fault_ranks")[0]["faults"] == {"2": 1}
    assert story.results() == [(0, "recover")]


def test_survivors_stop_clean_rebuild_and_roll_back_in_this_order(stories):
    story = stories["killed"]
    calls = [e["what"] for e in story.lines if e["rank"] == 1 and e["what"] not in ("step", "start", "done")]
    assert calls == ["stop", "clean", "rebuild", "rollback"]
    donor = [e["what"] for e in story.lines if e["rank"] == 0 and e["what"] not in ("step", "start", "done")]
    assert donor == ["stop", "clean", "rebuild", "repair", "rollback"]
    new = [e["what"] for e in story.lines if e["rank"] == 2 and e["what"] in ("rebuild", "repair", "rollback")]
    assert new == ["rebuild", "repair", "rollback"]


def test_the_copy_half_a_group_away_is_the_donor(stories):
    info = stories["killed"].of("repair", 2)[0]["info"]
    assert (info["src"], info["dst"], info["repair_type"]) == ([0], [2], 3)


def test_a_broken_link_is_retried_without_a_repair(stories):
    story = stories["hccl"]
    assert story.of("report_strategies")[0]["strategies"] == ["exit", "dump", "retry", "recover"]
    assert story.of("report_fault_ranks")[0]["faults"] == {"1": 2}
    assert not story.of("repair") and not story.of("rebuild")
    assert story.results() == [(0, "retry")]


def test_a_memory_error_is_repaired_from_the_copy_in_the_process(stories):
    story = stories["uce"]
    assert story.of("report_fault_ranks")[0] | {"t": 0} == {
        "t": 0, "rank": -1, "what": "report_fault_ranks", "faults": {"1": 0}, "codes": {"1": "0x1f"},
    }  # fmt: skip
    receiver = story.of("repair", 1)[0]
    assert receiver["need_rebuild"] and receiver["info"]["repair_type"] == 1
    assert story.of("clean", 1)[0]["uce"] and not story.of("clean", 0)[0]["uce"]
    assert {e["pid"] for e in story.of("step", 1)} == {story.of("start", 1)[0]["pid"]}


@pytest.mark.parametrize("name,step", [("dump", 7), ("large dump", 7)])
def test_the_last_checkpoint_has_each_shard_once_and_all_ranks_leave_with_2(stories, name, step):
    import torch

    story = stories[name]
    assert story.results() == [(0, "dump")]
    saved = sorted(story.folder.glob(f"step{step}-*.pt"))
    assert len(saved) == len(story.of("save")) and len(story.of("rename")) == 1
    assert len(saved) == {"dump": 2, "large dump": 4}[name]
    assert {torch.load(path)["step"] for path in saved} == {step}
    assert {codes[-1] for rank, codes in story.codes.items() if codes != [-9]} == {2}
    assert not story.left


def test_the_benchmark_reads_when_the_last_process_has_ended(stories):
    from tests.bench.training_tft import left

    assert left(stories["killed"], 0) > max(e["t"] for e in stories["killed"].of("done"))
    assert left(stories["exit"], 2) > stories["exit"].of("kill")[0]["t"]
    with pytest.raises(AssertionError):
        left(stories["exit"], 0)


def test_a_backup_saves_the_job_when_the_controllers_rank_dies(stories):
    import torch

    story = stories["backup"]
    assert not story.left
    assert {codes[-1] for rank, codes in story.codes.items() if rank} == {2}
    saved = sorted(story.folder.glob("step7-*.pt"))
    assert {torch.load(path)["step"] for path in saved} == {7} and len(saved) == 2


def test_a_rank_that_is_frozen_is_replaced(stories):
    story = stories["frozen"]
    assert story.results() == [(0, "recover")] and not story.left
    assert {e["rank"] for e in story.of("done")} == {0, 1, 2, 3}


def test_a_second_death_in_the_middle_of_a_repair_starts_it_again(stories):
    story = stories["killed in the repair"]
    assert story.results() == [(0, "recover")]
    assert story.of("report_fault_ranks")[-1]["faults"] == {"1": 1, "2": 1}


@pytest.mark.parametrize("name", ["exit", "not offered"])
def test_all_ranks_leave_with_2_on_the_order_to_exit(stories, name):
    story = stories[name]
    assert not story.left
    assert sorted(codes for codes in story.codes.values()) == [[-9], [2], [2], [2]]


def test_a_strategy_that_was_not_offered_is_answered_with_499(stories):
    assert stories["not offered"].results() == [(499, "downgrade")]


def test_paused_ranks_wait_at_one_step_and_continue(stories):
    story = stories["paused"]
    complete = story.of("report_stop_complete")[0]
    assert complete["code"] == 0
    assert len({max(e["step"] for e in story.of("step", rank) if e["t"] < complete["t"]) for rank in range(4)}) == 1
    assert not [e for e in story.of("step") if complete["t"] < e["t"] < complete["t"] + 0.25]
    assert story.results() == [(0, "continue")]


def test_a_hot_switch_moves_a_rank_to_a_new_process(stories):
    story = stories["hot switch"]
    assert story.of("report_strategies")[0]["strategies"] == ["migration"]
    assert story.results() == [(0, "migration")]
    assert story.of("start", 3)[1]["kind"] == "hot switch"
    assert story.codes[3] == [2, 0]


def test_a_smaller_job_continues_without_the_lost_index(stories):
    story = stories["smaller"]
    assert story.results() == [(201, "downgrade"), (0, "downgrade")]
    assert story.of("downgrade", 0)[0]["world"] == [0, 1, 2]
    assert {e["rank"] for e in story.of("done")} == {0, 1, 2}


def test_a_smaller_job_grows_again(stories):
    story = stories["larger"]
    assert story.results() == [(201, "downgrade"), (0, "downgrade"), (0, "upgrade")]
    assert {e["rank"] for e in story.of("done")} == {0, 1, 2, 3}
    last = [story.digests()[rank, 90] for rank in range(4)]
    assert len(set(last)) == 1


def test_no_rank_reports_a_step_twice_after_its_repair(stories):
    for name in REPAIRED:
        for rank in range(4):
            steps = [e["step"] for e in stories[name].of("step", rank)]
            assert steps == sorted(steps), name
