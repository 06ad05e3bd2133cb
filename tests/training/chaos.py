"""Random faults against a real job: ``python -m tests.training.chaos [EVENTS] [SEED]``.

Ranks are killed (one, several at once, a second one during the recovery of the first), stopped, hung; spares and the
warm process are killed. The job must end with 0, and every step that a rank wrote must have the loss and the weights of
an undisturbed run. Ends with 1 and says what differs otherwise.
"""

from __future__ import annotations

import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.training.launched import Job, descendants, history, signalled

RANKS = 4
STEP = 0.01
PAUSE = (0.05, 1.2)
"""Seconds between faults."""


def fault(job: Job, chance: random.Random) -> str:
    """Do one thing to the job; what it was."""
    kind = chance.choices(["kill", "two", "three", "cascade", "stop", "hang", "helpers"], [40, 12, 6, 20, 10, 4, 8])[0]
    ranks = chance.sample(range(RANKS), RANKS)
    match kind:
        case "kill":
            job.kill(ranks[0])
        case "two":
            job.kill(*ranks[:2])
        case "three":
            job.kill(*ranks[:3])
        case "cascade":
            job.kill(ranks[0])
            time.sleep(chance.uniform(0, 0.12))
            job.kill(ranks[1])
        case "stop":
            job.kill(ranks[0], number=signal.SIGSTOP)
        case "hang":
            job.kill(ranks[0], number=signal.SIGUSR1)
        case "helpers":
            known = {job.pid(rank) for rank in range(RANKS)}
            for pid in descendants(job.process.pid):
                if pid not in known and chance.random() < 0.7:
                    signalled(pid)
    return kind


def main(arguments: list[str]) -> int:
    """Exit code 0 when everything was recovered and nothing differs."""
    events = int(arguments[0]) if arguments else 100
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="belay-chaos-"))
    steps = 200 + events * 40
    print(f"seed {seed}, {events} events, {steps} steps, {folder}", flush=True)
    options = ("--nproc", str(RANKS), "--quiet-limit", "2")
    calm = Job(folder / "calm", "ddp.py", steps, 0, 32, options=options)
    job = Job(folder / "hurt", "ddp.py", steps, STEP, 32, 20, options=options)
    done = 0
    try:
        job.reached(2, RANKS)
        for number in range(events):
            time.sleep(chance.uniform(*PAUSE))
            if any(one.step > steps - 100 for rank in range(RANKS) for one in job.steps(rank)[-1:]):
                break
            at = time.monotonic()
            try:
                kind = fault(job, chance)
            except ProcessLookupError:
                # a rank that is just being replaced
                continue
            done += 1
            if number % 4 == 0:
                took = job.next_step_of_all(time.monotonic(), RANKS, 60)
                print(f"{number}: {kind} {took * 1000:.0f} ms, {time.monotonic() - at:.2f} s", flush=True)
        print(f"{done} faults; waiting for the end", flush=True)
        codes = job.end(600), calm.end(600)
        seen, wanted = history(job, RANKS), history(calm, RANKS)
        different = sorted(key for key in seen if seen[key] != wanted.get(key))
        entered = [float(str(one["entered_ms"])) for one in job.recoveries()]
        print(f"codes {codes}; {len(seen)} steps compared, {len(different)} differ {different[:5]}")
        print(f"{len(entered)} recoveries: median {statistics.median(entered):.0f} ms, worst {max(entered):.0f} ms")
        if codes[0]:
            print(job.errors())
        if codes == (0, 0) and not different:
            shutil.rmtree(folder)
            return 0
    except AssertionError as error:
        print(error)
    except BaseException:
        print(job.errors())
        raise
    finally:
        job.close()
        calm.close()
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
