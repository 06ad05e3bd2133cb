"""MindIO TFT's functions on Belay: from a broken rank to the next step, beside torchrun.

Four gloo ranks with steps of 20 ms, an optimizer in two shards with two copies, `mindio_ttp` as scripts import it,
ClusterD scripted (it answers at once), a lost process started by fork from one that has imported PyTorch. Measured
from the kill (or the exception) until every rank has finished a step that none had finished before it; the dump until
its result is reported; the end until the last process has left. torchrun 2.13 restarts the same steps in the same run
(with a port of its own per attempt: as shipped its restart fails). MindIO's own native code, built and run on such a
machine: 12.6 s, 2.5 s, 9.3 s, 39 s. `python -m tests.bench training` runs all sections of training.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from belay.agents.training.compat.tft import messages as m
from belay.agents.training.compat.tft.controller_commands import ControllerSettings, Order, Report, SendTo
from belay.agents.training.compat.tft.machine import controller
from belay.agents.training.train.agent.coordinator_host import CoordinatorHost, Outgoing
from belay.agents.training.train.decide.members import Limits
from tests.bench.measure import ROOT, RUNS, Result, Skipped
from tests.training.test_tft import HCCL, STEPS, Story, act, free_port

SCRIPT = ROOT / "tests/bench/scripts/torchrun_steps.py"
RANKS = 10_000
PLANS = {
    "recover": {"acts": [act("kill", 2)], "strategies": ["recover"]},
    "rank 0": {"acts": [act("kill", 0)], "strategies": ["recover"]},
    "two": {"acts": [act("kill", 1), act("kill", 2)], "strategies": ["recover"]},
    "retry": {"acts": [act("raise", 1, where="reduce", **HCCL)], "strategies": ["retry"]},
    "dump": {"acts": [act("kill", 2)], "strategies": ["dump"]},
    "exit": {"acts": [act("kill", 2)], "strategies": ["exit"]},
}


def run() -> list[Result]:
    """Training goes on."""
    rows = {
        "recover": Result(
            "SIGKILL of one of 4 ranks → next step finished by all", "s", 0.5, remark="MindIO's native code 12.6 s"
        ),
        "rank 0": Result("the same, rank 0", "s", 0.5),
        "two": Result("the same, two ranks at once", "s", 0.5),
        "retry": Result(
            "broken link, retry → next step finished by all", "s", 0.5, remark="MindIO's native code 2.5 s"
        ),
        "end": Result("end of training → every process has left with 0", "s", 2),
    }
    peer = Result("torchrun 2.13: SIGKILL of one of 4 ranks → next step finished by all", "s", None)
    with _folder() as folder:
        for turn in range(RUNS):
            for what, story in _stories(folder / str(turn), [name for name in rows if name in PLANS]).items():
                rows[what].runs.append(story.repaired_within("raise" if what == "retry" else "kill"))
                rows["end"].runs.append(left(story, 0) - max(e["t"] for e in story.of("done")))
            peer.runs.append(_torchrun(folder / f"torchrun-{turn}"))
    return [*rows.values(), peer]


def run_ends() -> list[Result]:
    """Training ends."""
    dump = Result("SIGKILL, last checkpoint → result", "s", 2, remark="MindIO's native code 9.3 s")
    leave = Result("SIGKILL, exit → every process has left", "s", 3, remark="MindIO's native code 39 s")
    with _folder() as folder:
        for turn in range(RUNS):
            stories = _stories(folder / str(turn), ["dump", "exit"])
            killed = {name: story.of("kill")[0]["t"] for name, story in stories.items()}
            dump.runs.append(stories["dump"].of("report_result")[0]["t"] - killed["dump"])
            leave.runs.append(left(stories["exit"], 2) - killed["exit"])
    return [dump, leave]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Skipped("PyTorch is not installed (requirements-training.lock)") from error
    with tempfile.TemporaryDirectory(prefix="belay-bench-") as name:
        yield Path(name)


def _stories(folder: Path, names: list[str]) -> dict[str, Story]:
    paths = []
    for name in names:
        more = PLANS[name]
        own = folder / name
        own.mkdir(parents=True)
        plan = {
            "world": 4, "tp": 1, "pp": 1, "copies": 2, "batches": 8, "steps": STEPS, "pause": 0.02, "arf": True,
            "zit": False, "uce": True, "acts": [], "strategies": [], "orders": [], "clusterd": True,
            "port": free_port(), "events": str(own / "events.jsonl"), "folder": str(own), "limit": 60,
        } | more  # fmt: skip
        (own / "plan.json").write_text(json.dumps(plan))
        paths.append(own / "plan.json")
    env = dict(os.environ) | {
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'agents/training/packages'}", "TTP_LOG_PATH": str(folder / "logs"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.megatron_like.launcher", *map(str, paths)],
        cwd=ROOT, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {
        name: Story(path.parent / "events.jsonl", json.loads(line))
        for name, path, line in zip(names, paths, done.stdout.splitlines(), strict=True)
    }


def left(story: Story, code: int) -> float:
    """When the last process had ended. Fails unless every one that was not killed ended with ``code``."""
    codes = {found for _, found in story.ends}
    assert not story.left and codes <= {code, -9}, (story.left, story.codes)
    return max(at for at, _ in story.ends)


def _torchrun(folder: Path) -> float:
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "4", "--max_restarts", "3",
         "--monitor_interval", "0.1", str(SCRIPT), str(folder), str(free_port())],
        env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}, capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    killed = json.loads((folder / "killed").read_text())
    return max(float((folder / f"after-{rank}").read_text().split()[0]) for rank in range(4)) - killed


def run_many() -> list[Result]:
    """The controller alone, and the coordinator of `belay train`."""
    row = Result(f"controller's own time for a recovery of {RANKS:,} ranks", "ms", 300)
    orders = Result("its orders to each rank", "", 4)
    native = Result(f"the same for the coordinator of belay train, {RANKS // 8:,} nodes", "ms", 300)
    messages = Result("its messages to each rank", "", 4)
    for _ in range(RUNS):
        # the former run's objects are its own business
        gc.collect()
        took, count = recovery_of(RANKS)
        row.runs.append(took * 1000)
        orders.runs.append(round(count / RANKS, 2))
        gc.collect()
        took, count = native_recovery(RANKS)
        native.runs.append(took * 1000)
        messages.runs.append(round(count / RANKS, 2))
    return [row, orders, native, messages]


def native_recovery(world: int) -> tuple[float, int]:
    """Seconds of processor time of the coordinator and messages to ranks, from the death of rank 1 until all train."""
    host = CoordinatorHost({rank: rank // 8 for rank in range(world)}, Limits(), lambda recovery: None)
    for node in range(world // 8):
        host.node_joined(node, [], 0.0)

    def round_of(generation: int, done: int, first: list[Outgoing]) -> tuple[float, int]:
        spent, sent = 0.0, len(first)
        for kind in ("ready", "entered"):
            said = [
                [({"t": "rank", "rank": rank, "inc": member.incarnation, "m": {
                    "t": kind, "gen": generation, "done": -1 if member.done < 0 else done, "shard": ""}}, b"")]
                for rank, member in host.coordinator.members.items()
            ]  # fmt: skip
            begin = time.process_time()
            for one in said:
                sent += len(host.take(one, 1.0))
            spent += time.process_time() - begin
        return spent, sent

    round_of(1, -1, [])
    for rank, member in host.coordinator.members.items():
        host.coordinator.stepped(rank, member.incarnation, 5, 1.0)
        member.done = 5
    begin = time.process_time()
    out = host.take([({"t": "lost", "rank": 1, "inc": 1, "why": "died"}, b"")], 2.0)
    took = time.process_time() - begin
    spent, sent = round_of(2, 5, out)
    assert host.coordinator.recovery is None and host.coordinator.members[1].incarnation == 2
    return took + spent, sent


def recovery_of(world: int) -> tuple[float, int]:
    """Seconds of processor time of the controller, and orders sent, from the death of rank 1 to the last release."""
    machine = controller(ControllerSettings(rank=-1, world=world, arf=True, clusterd=True), 0.0)
    status = {"n": 0, "step": 5, "backup": -1, "data": 0, "state": 0, "code": "", "parked": False, "gen": 0,
              "loaded": 0}  # fmt: skip
    hello = {"op": m.REGISTER, "versions": [1], "world": world, "job": "", "repair_id": 0, "local_copy": False,
             "uce": True, "arf": True, "zit": False, "controller": "", "status": status}  # fmt: skip
    for rank in range(world):
        machine.received(rank, hello | {"rank": rank, "session": str(rank)}, 0.0)
        pair = sorted((rank, (rank + world // 2) % world))
        machine.received(rank, {"op": m.REPLICAS, "n": 1, "dp": [], "replicas": [
            {"kind": 0, "ranks": pair, "copies": 2, "shift": 0}]}, 0.0)  # fmt: skip
    machine.handle(0.0)
    waiting, sent, spent = [], 0, 0.0
    machine.unlinked(1, 0.0)
    counts = dict.fromkeys(range(world), 0)
    while True:
        begin = time.process_time()
        commands = machine.handle(0.0)
        spent += time.process_time() - begin
        if not commands and not waiting:
            break
        for command in commands:
            if isinstance(command, SendTo) and command.message["op"] in m.ACTIONS:
                sent += 1
                waiting.append((command.link, command.message))
            elif isinstance(command, Report):
                _answer(machine, command, hello, world)
        replies = []
        for link, message in waiting:
            rank = machine.links[link][0]
            counts[rank] += 1
            new = status | {"n": counts[rank], "state": 6 if link >= world else 0}
            if link >= world and message["op"] != m.ROLLBACK:
                new |= {"step": 0, "state": 8}
            reply = {"op": m.REPLY, "term": 0, "sn": message["sn"], "result": 0, "status": new, "limit": 5}
            replies.append((link, reply))
        waiting = []
        begin = time.process_time()
        for link, reply in replies:
            machine.received(link, reply, 0.0)
            if machine.asked and machine.asked.missing:
                machine.handle(0.0)
        spent += time.process_time() - begin
        if machine.awaiting:
            break
    return spent, sent


def _answer(machine, report: Report, hello: dict, world: int) -> None:
    if report.name == "report_fault_ranks":
        machine.order(Order("stop"))
        machine.received(world + 1, hello | {"rank": 1, "session": "new", "status": hello["status"] | {
            "step": 0, "state": 8}}, 0.0)  # fmt: skip
    elif report.name == "report_stop_complete":
        machine.order(Order("global"))
    elif report.name == "report_strategies":
        machine.order(Order("strategy", text="recover"))
