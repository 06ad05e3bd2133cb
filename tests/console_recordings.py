"""Recordings of made-up clusters of any size, written by Belay's own recorder from plans of its planner.

``python -m tests.console_recordings NODES MOMENTS FOLDER`` writes them; ``belay console --recording FOLDER`` shows
them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from belay.engine import versions
from belay.engine.load import load
from belay.engine.load.cluster import foreign_documents
from belay.engine.observe.observed import Observer
from belay.engine.plan import plan
from belay.engine.replay import recording
from belay.engine.replay.summary import write_digest
from tests.bench.clusters import NOW, device
from tests.console_clusters import large

STEP = 60.0
"""Seconds from moment to moment."""


def write(nodes: int, moments: int, folder: Path, jobs: int = 0) -> list[Path]:
    """One recorded pass a minute; from each to the next a chip more fails: chip 2 of node 3, 43, 83, … ``jobs`` as in
    `large`.
    """
    items = large(nodes, jobs=jobs)
    places = {item["metadata"]["name"]: place for place, item in enumerate(items)}
    desired = load({}, revision="0" * 40, foreign=foreign_documents(items)).desired
    observer = Observer()
    for item in items:
        observer.put(item)
    files = []
    for turn in range(moments):
        if turn:
            number = ((turn - 1) * 40 + 3) % nodes
            report = device(f"node-{number:05d}", 8, 2, super_pod_id=number // 24, server_index=number % 24)
            items[places[f"mindx-dl-deviceinfo-node-{number:05d}"]] = report
            observer.put(report)
        now = NOW + STEP * turn
        found = plan(desired, observer.observed("main"), now, shard="main")
        file = recording.write(
            folder,
            version=versions.version(),
            shard="main",
            now=now,
            revision="0" * 40,
            files={},
            objects=items,
            digest=found.digest(),
        )
        write_digest(file, found)
        files.append(file)
    return files


def main(words: list[str]) -> int:
    """Exit code 0, or 2 where the arguments are wrong."""
    if len(words) != 3 or not (words[0].isdecimal() and words[1].isdecimal()):
        sys.stderr.write("python -m tests.console_recordings NODES MOMENTS FOLDER\n")
        return 2
    write(int(words[0]), int(words[1]), Path(words[2]))
    sys.stdout.write(f"belay console --recording {words[2]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
