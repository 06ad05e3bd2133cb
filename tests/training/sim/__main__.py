"""Play histories: ``python -m tests.training.sim FIRST [COUNT]``; with one seed its story is printed."""

from __future__ import annotations

import sys
import time

from .world import Plan, World


def main() -> None:
    """Play."""
    first, count = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    began, failed, most, ends = time.monotonic(), 0, 0, {}
    for seed in range(first, first + count):
        world = World(Plan.draw(seed))
        try:
            world.run()
        except Exception as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if count == 1:
                print(world.plan, *world.story, sep="\n")
                raise
        else:
            most = max([most, *(rank.machine.generation for rank in world.ranks)])
            codes = {world.current(number).code for number in range(world.plan.world)}
            ends[str(sorted(codes))] = ends.get(str(sorted(codes)), 0) + 1
            if count == 1:
                print(world.plan, *world.story, sep="\n")
    took = time.monotonic() - began
    print(f"{count} histories, {failed} broken, {took:.1f} s; most generations {most}; exit codes: {ends}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
