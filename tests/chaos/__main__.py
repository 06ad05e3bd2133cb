"""``make chaos``: rounds of faults on real processes, resumable by seed; ends with a summary.

``ROUNDS`` (100) rounds from seed ``SEED`` (where the last run stopped), at most ``MINUTES`` (55). The API server is a
real kube-apiserver where ``KUBEBUILDER_ASSETS`` names one, with ``SANDBOX=1`` the sandbox's. ``KINDS`` names the only
kinds of faults to take, separated by commas. A new site is made every 25 rounds and after a failure, whose folder with
all logs is kept. ``ROUNDS=1 SEED=n`` plays one again. Ends with 1 when a round failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import msgspec

from belay.engine.kube import Kube, cancel_all
from tests.chaos.rounds import Player, Round, RoundFailed
from tests.chaos.site import Size, remove, site
from tests.chaos.witness import Witness

STATE = Path(__file__).with_name(".progress.json")
PER_SITE = 25


class Options(msgspec.Struct):
    first: int
    rounds: int
    ends: float
    assets: Path | None
    kinds: list[str]
    size: Size
    together: bool = False
    """Each round plays all of ``kinds`` one after the other instead of a choice of its own."""
    seconds: float = 0.0


class Tally(msgspec.Struct):
    """What a run came to."""

    rounds: int = 0
    failed: list[str] = []
    kinds: dict[str, int] = {}
    load: dict[str, int] = {}
    deaths: int = 0
    bound: int = 0
    resets: int = 0
    healed: list[float] = []
    missing: dict[str, str] = {}

    def add(self, told: Round) -> None:
        self.rounds += 1
        self.kinds = dict(Counter(self.kinds) + Counter(told.kinds))
        self.load = dict(Counter(self.load) + Counter(told.load))
        if told.failed:
            self.failed.append(f"SEED={told.seed}: {'; '.join(told.did)}: {told.failed}")
        else:
            self.healed.append(round(told.healed, 1))


async def play(options: Options, tally: Tally) -> None:
    """One site, up to ``PER_SITE`` rounds."""
    folder = Path(tempfile.mkdtemp(prefix="belay-chaos-"))
    kept = False
    with site(folder, options.size, options.first, assets=options.assets) as made:
        keeper: asyncio.Task[None] | None = None
        try:
            made.start()
            keeper = asyncio.create_task(made.keep())
            async with (
                Kube.from_config(str(made.kubeconfig)) as kube,
                Witness(kube, made.hardware).watching() as witness,
            ):
                try:
                    await _rounds(options, tally, Player(made, kube, witness), keeper)
                finally:
                    tally.bound += witness.bound
                    tally.resets += witness.resets
        except AssertionError as error:
            kept = True
            sys.stdout.write(f"FAILED: {error}\nlogs: {folder}\n{made.log_ends()}\n")
            if not isinstance(error, RoundFailed):
                tally.failed.append(f"SEED={options.first}: the site did not come up: {error}"[:1000])
                options.first, options.rounds = options.first + 1, options.rounds - 1
        finally:
            if keeper is not None:
                await cancel_all(keeper)
            tally.deaths += made.deaths
            tally.missing |= made.missing
    if not kept:
        remove(folder)


async def _rounds(options: Options, tally: Tally, player: Player, keeper: asyncio.Task[None]) -> None:
    await player.begin()
    for _ in range(PER_SITE):
        if not options.rounds or time.monotonic() > options.ends:
            return
        seed = options.first
        options.first, options.rounds = seed + 1, options.rounds - 1
        chosen = (
            options.kinds
            if options.together
            else []
            if not options.kinds
            else [options.kinds[seed % len(options.kinds)]]
        )
        try:
            told = await player.play(seed, chosen, options.seconds)
        except RoundFailed as error:
            tally.add(error.told)
            raise
        finally:
            if not options.together:
                STATE.write_text(json.dumps({"seed": options.first}))
        if keeper.done():
            keeper.result()
        tally.add(told)
        line = {"seed": seed, "did": told.did, "load": told.load, "healed": round(told.healed, 1)}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    given = os.environ.get
    parser.add_argument("--seed", type=int, default=int(given("SEED") or _resumed()))
    parser.add_argument("--rounds", type=int, default=int(given("ROUNDS", "100")))
    parser.add_argument("--minutes", type=float, default=float(given("MINUTES", "55")))
    parser.add_argument("--kinds", default=given("KINDS", ""), help="separated by commas; round n takes one of them")
    parser.add_argument("--together", action="store_true", help="every round takes all of --kinds")
    parser.add_argument("--sandbox", action="store_true", default=given("SANDBOX") == "1")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.0, help="how long faults last; 0: by chance")
    chosen = parser.parse_args()
    assets = given("KUBEBUILDER_ASSETS")
    return Options(
        chosen.seed,
        chosen.rounds,
        time.monotonic() + 60 * chosen.minutes,
        Path(assets) if assets and not chosen.sandbox else None,
        [kind.strip() for kind in chosen.kinds.split(",") if kind.strip()],
        Size(nodes=chosen.nodes, workers=chosen.workers),
        chosen.together,
        chosen.seconds,
    )


def _resumed() -> int:
    with contextlib.suppress(OSError, ValueError, KeyError):
        return int(json.loads(STATE.read_text())["seed"])
    return 1


def main() -> int:
    options, tally = _options(), Tally()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    where = "a real kube-apiserver" if options.assets else "the sandbox's API server"
    sys.stdout.write(f"{options.rounds} rounds from seed {options.first} on {where}\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        while options.rounds and time.monotonic() < options.ends:
            asyncio.run(play(options, tally))
    tally.healed.sort()
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(tally)).decode() + "\n")
    if options.rounds:
        sys.stdout.write(f"time is up; the next run resumes at seed {options.first}\n")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
