"""``python -m tests.sim SEED [COUNT]``: histories one after another, a line of JSON each; ends with 1 when one failed.

``--truth`` runs histories in which every ``True`` that is shown is held against the world (``tests/sim/truth.py``).
``--sweep SEED`` repeats one history without storms, killing each process that passes point 1, 1+STRIDE, 1+2·STRIDE, …
"""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # sets of names must iterate alike in every run
    os.execve(sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})

from tests.sim import clock

clock.install()

import argparse  # noqa: E402
import logging  # noqa: E402

import msgspec  # noqa: E402

from tests.sim import truth  # noqa: E402
from tests.sim.history import Report, history  # noqa: E402
from tests.sim.truth import TruthReport  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--sweep", type=int, metavar="STRIDE", help="kill at every STRIDE-th point of this one history")
    parser.add_argument("--truth", action="store_true", help="hold what is shown against the world")
    parser.add_argument("--restored", action="store_true", help="put etcd back to a snapshot in the middle")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further history after so long")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.NOTSET if options.verbose else logging.CRITICAL)
    ends = clock.real_seconds() + options.seconds
    failed = 0
    if options.sweep:
        whole = history(options.seed, kill_at=1_000_000_000)
        runs = [(options.seed, point) for point in range(1, whole.steps, options.sweep)][: options.count or None]
    else:
        runs = [(seed, -1) for seed in range(options.seed, options.seed + options.count)]
    for seed, point in runs:
        if clock.real_seconds() > ends:
            break
        began = clock.real_seconds()
        try:
            report: Report | TruthReport | dict[str, object] = (
                truth.history(seed) if options.truth else history(seed, point, restored=options.restored)
            )
        except Exception as error:
            failed += 1
            report = {"seed": seed, "point": point, "failed": f"{type(error).__name__}: {error}"[:1000]}
            if options.verbose:
                raise
        row = {**msgspec.to_builtins(report), "seconds": round(clock.real_seconds() - began, 2)}
        if point >= 0:
            row["point"] = point
        sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
        sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
