"""Random faults on two hosts of four ranks: ``python -m tests.training.soak [EVENTS] [SEED] [FOLDER MINUTES]``.

A section is one job of ``STEPS`` steps in two network namespaces, hurt until its steps are nearly done. It must end
with 0 and leave no process; in every second one the hosts elect the coordinator. After each event every rank must
finish a step within ``LIMIT`` seconds; every line that a rank wrote must have the loss and the weights of an
undisturbed run at that step. Where no replica is left, training must go on from the newest checkpoint. Otherwise the
exit code is 1.

With a folder, a run ends after the section in which its minutes are over, and the same command goes on with it: a run
of many events in slices. Each section has dice of its own, of the seed and its number.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests import netns
from tests.training.launched import Job, history
from tests.training.two_hosts import RANKS, TwoHosts

STEPS, PAUSE, EVERY = 500, 0.01, 20
LIMIT = 120.0
"""Seconds until all ranks train again; beyond it the job hangs."""
CALM = 60
"""Last steps of a section in which nothing happens, so that its end is reached by all."""


class Soak:
    """Events on one section, by the dice."""

    def __init__(self, hosts: TwoHosts, chance: random.Random) -> None:
        self.hosts, self.chance = hosts, chance
        self.kinds: dict[str, tuple[int, Callable[[], None]]] = {
            "kill": (22, lambda: self.kill(1)),
            "kill two": (8, lambda: self.kill(2)),
            "kill three": (5, lambda: self.kill(3)),
            "kill in recovery": (12, self.cascade),
            "stop": (6, lambda: self.kill(1, signal.SIGSTOP)),
            "hang": (3, lambda: self.kill(1, signal.SIGUSR1)),
            "agent": (6, lambda: self.hosts.kill_agent(1 - self.hosts.leader())),
            "manager": (6, lambda: self.hosts.kill_agent(self.hosts.leader())),
            "manager in recovery": (5, lambda: self.agent_in_recovery(self.hosts.leader())),
            "agent in recovery": (4, lambda: self.agent_in_recovery(1 - self.hosts.leader())),
            "both agents": (2, self.both_agents),
            "agent stopped": (3, lambda: self.hosts.kill_agent(1 - self.hosts.leader(), signal.SIGSTOP)),
            "manager stopped": (3, lambda: self.hosts.kill_agent(self.hosts.leader(), signal.SIGSTOP)),
            "stop, agent killed": (2, self.agent_after_stop),
            "spares, warm process": (5, lambda: self.hosts.kill_helpers(chance.randrange(2))),
            "spares, warm process stopped": (3, self.stopped_helpers),
            "one host": (3, lambda: self.hosts.lose(chance.randrange(2))),
            "all ranks": (2, lambda: self.kill(RANKS)),
            "link down": (5, lambda: self.cut(self.hosts.cable.unplug)),
            "one-way loss": (5, lambda: self.cut(self.hosts.cable.deaf)),
            "slow link": (3, lambda: self.cut(self.hosts.cable.slow)),
            "kill in a cut": (4, self.kill_in_cut),
        }

    def event(self) -> str:
        """Do one thing; what it was."""
        kind = self.chance.choices(list(self.kinds), [weight for weight, _ in self.kinds.values()])[0]
        self.kinds[kind][1]()
        return kind

    def some(self, count: int) -> list[int]:
        return self.chance.sample(range(RANKS), count)

    def kill(self, count: int, number: int = signal.SIGKILL) -> None:
        self.hosts.kill(*self.some(count), number=number)

    def cascade(self) -> None:
        for rank in self.some(self.chance.choice((2, 2, 3))):
            self.hosts.kill(rank)
            time.sleep(self.chance.uniform(0, 0.15))

    def agent_in_recovery(self, node: int) -> None:
        self.kill(1)
        time.sleep(self.chance.uniform(0, 0.15))
        self.hosts.kill_agent(node)

    def agent_after_stop(self) -> None:
        self.kill(1, signal.SIGSTOP)
        self.hosts.kill_agent(self.chance.randrange(2))

    def stopped_helpers(self) -> None:
        for node in range(2):
            self.hosts.kill_helpers(node, signal.SIGSTOP)
        self.kill(1)

    def both_agents(self) -> None:
        self.hosts.kill_agent(0)
        self.hosts.kill_agent(1)

    def cut(self, begin: Callable[[int], None]) -> None:
        begin(self.chance.randrange(2))
        time.sleep(self.chance.choice((0.05, 0.5, 1.0, 2.0, 4.0)))
        self.hosts.cable.mend()

    def kill_in_cut(self) -> None:
        self.chance.choice((self.hosts.cable.unplug, self.hosts.cable.deaf))(self.chance.randrange(2))
        time.sleep(self.chance.choice((0.0, 0.3, 3.5)))
        self.kill(self.chance.choice((1, 2)))
        time.sleep(self.chance.choice((0.1, 1.0)))
        self.hosts.cable.mend()


class Failed(Exception):
    """Something that must not happen; the text says what."""


def section(
    folder: Path, number: int, limit: int, chance: random.Random, calm: dict[tuple[int, int], tuple[str, str]]
) -> list[tuple[str, float]]:
    """One job, hurt up to ``limit`` times: the events with the seconds until all ranks trained again. Raises
    ``Failed``."""
    hosts = TwoHosts(folder, number, STEPS, PAUSE, EVERY, elected=number % 2 == 1)
    soak, done = Soak(hosts, chance), []
    try:
        # all ranks may be killed first: the first checkpoint is there
        if hosts.trained(time.monotonic(), EVERY + 1, LIMIT) is None:
            raise Failed(f"the job did not begin\n{hosts.errors()}")
        while len(done) < limit and hosts.newest() < STEPS - CALM:
            time.sleep(chance.uniform(0.0, 0.3))
            at = time.monotonic()
            kind = soak.event()
            before = hosts.newest()
            took = hosts.trained(time.monotonic(), -1, LIMIT)
            if took is None:
                raise Failed(f"{kind}: no further step of all ranks; exit codes {hosts.end(0)}\n{hosts.errors()}")
            first = min(one.step for rank in range(RANKS) for one in hosts.steps(rank)[-1:])
            if first < before - EVERY - 1 or (kind != "all ranks" and first < before - 1):
                raise Failed(f"{kind}: step {before} was finished, training goes on at {first}\n{hosts.errors()}")
            done.append((kind, time.monotonic() - at if kind in CUTS else took))
            print(f"  {len(done)}: {kind}, step {before}: {took:.2f} s", flush=True)
        codes = hosts.end(LIMIT + STEPS)
        if codes != [0, 0]:
            raise Failed(f"ended with {codes}\n{hosts.errors()}")
        if left := hosts.left(2):
            raise Failed(f"processes {left} are left after the end")
        different = [
            (rank, one)
            for rank in range(RANKS)
            for one in hosts.steps(rank)
            if calm[rank, one.step] != (one.loss, one.digest)
        ]
        if different:
            raise Failed(f"{len(different)} lines differ from an undisturbed run, the first: {different[0]}")
        if missing := [rank for rank in range(RANKS) if hosts.steps(rank)[-1].step != STEPS - 1]:
            raise Failed(f"ranks {missing} did not write the last step")
    finally:
        hosts.close()
    return done


CUTS = ("link down", "one-way loss", "slow link", "kill in a cut")


class Slices:
    """What a run has done so far, kept in its folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / f"soak-{seed}.jsonl"
        lines = [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []
        self.sections = len(lines)
        self.done = [(kind, took) for line in lines for kind, took in line["events"]]

    def add(self, events: list[tuple[str, float]]) -> None:
        """Note a whole section."""
        with self.path.open("a") as file:
            file.write(json.dumps({"section": self.sections, "events": events}) + "\n")
        self.sections += 1
        self.done += events


def undisturbed(folder: Path) -> dict[tuple[int, int], tuple[str, str]]:
    """Loss and weights of every rank at every step of a run that nothing happens to; kept in the folder. Raises
    ``Failed``."""
    kept = folder / "undisturbed.json"
    if not kept.exists():
        calm = Job(folder / "calm", "ddp.py", STEPS, 0, 32, options=("--nproc", str(RANKS)))
        try:
            if calm.end(600):
                raise Failed(f"the undisturbed run failed\n{calm.errors()}")
            kept.write_text(json.dumps([[rank, step, *seen] for (rank, step), seen in history(calm, RANKS).items()]))
        finally:
            calm.close()
    return {(rank, step): (loss, digest) for rank, step, loss, digest in json.loads(kept.read_text())}


def main(arguments: list[str]) -> int:
    """Exit code 0 when every event of this slice was recovered and nothing differs."""
    if why := netns.missing():
        print(f"no network namespaces: {why}")
        return 1
    events = int(arguments[0]) if arguments else 100
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 32)
    given = len(arguments) > 2
    folder = Path(arguments[2]) if given else Path(tempfile.mkdtemp(prefix="belay-soak-"))
    until = time.monotonic() + 60 * float(arguments[3]) if len(arguments) > 3 else math.inf
    folder.mkdir(parents=True, exist_ok=True)
    run = Slices(folder, seed)
    print(f"seed {seed}, {len(run.done)} of {events} events done, {folder}", flush=True)
    try:
        wanted = undisturbed(folder)
        while len(run.done) < events and time.monotonic() < until:
            print(f"section {run.sections}, {len(run.done)} events so far", flush=True)
            place, chance = folder / f"section-{run.sections}", random.Random(f"{seed}/{run.sections}")
            shutil.rmtree(place, ignore_errors=True)
            run.add(section(place, run.sections, events - len(run.done), chance, wanted))
            shutil.rmtree(place)
    except Failed as failure:
        print(f"seed {seed}: after {len(run.done)} events and in section {run.sections}: {failure}")
        return 1
    finally:
        print(summary(run.done, run.sections), flush=True)
    if not given:
        shutil.rmtree(folder)
    return 0


def summary(done: list[tuple[str, float]], sections: int) -> str:
    """Each kind of event: how often, median and worst time until all ranks trained again."""
    lines = [f"{len(done)} events in {sections} jobs that ended with 0, all lines equal"]
    for kind in sorted({kind for kind, _ in done}):
        times = [took for one, took in done if one == kind]
        lines.append(
            json.dumps(
                {
                    "kind": kind,
                    "n": len(times),
                    "median_s": round(statistics.median(times), 2),
                    "worst_s": round(max(times), 2),
                }
            )
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
