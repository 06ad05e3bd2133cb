"""``make bench``: runs every section, or those that are named, and rewrites RESULTS.md.

``python -m tests.bench [SECTION…]``; a section that is not run keeps its last table.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import time

from belay.engine.cli.progress import progress
from tests.bench import measure

SECTIONS = {
    "repository": ("From a commit to the desired state", "repository", "run"),
    "planner": ("Planner", "planner", "run"),
    "placement": ("Placement in large clusters", "placement", "run"),
    "binding": ("Binding, beside the real kube-scheduler", "binding", "run"),
    "fragmentation": ("Fragmentation over thirty days", "fragmentation", "run"),
    "startup": ("Coming up, and the command line", "startup", "run"),
    "isolation": ("From a fault to kubectl, 100 nodes in the sandbox", "isolation", "run"),
    "real": ("From a fault to kubectl, 100 nodes on a real kube-apiserver", "isolation", "run_real"),
    "console-server": ("The console's server: from a fault to a viewer", "console_server", "run"),
    "agents": ("What agents write", "agents", "run"),
    "outage": ("After an outage of the API server", "outage", "run"),
    "deviceplugin": ("The device plugin", "deviceplugin", "run"),
    "exporter": ("The exporter", "exporter", "run"),
    "footprint": ("Beside MindCluster's programs of a node", "footprint", "run"),
    "grpc": ("ClusterD's services", "grpc", "run"),
    "ingest": ("Reports as fast as they come", "ingest", "run"),
    "storm": ("Many faults at once, in the sandbox", "storm", "run"),
    "storm-real": ("Many faults at once, on a real kube-apiserver", "storm", "run_real"),
    "lost-node": ("A node is lost", "lost_node", "run"),
    "restart": ("After kill -9 of everything", "restart", "run"),
    "deletion": ("Everything deleted at once, on a real kube-apiserver", "deletion", "run"),
    "deaths": ("A million points at which a process may die", "deaths", "run"),
    "availability": ("Leaders killed for ten minutes, on a real kube-apiserver", "availability", "run"),
    "steady": ("While nothing happens", "steady", "run"),
    "slowness": ("Slow ranks and slow groups", "slowness", "run"),
    "networks": ("Slow and lossy networks", "networks", "run"),
    "links": ("Links between inference clusters", "links", "run"),
    "tft": ("MindIO TFT's functions", "training_tft", "run"),
    "tft-ends": ("MindIO TFT's functions: the end of a job", "training_tft", "run_ends"),
    "tft-many": ("Fault tolerance of 10,000 ranks", "training_tft", "run_many"),
    "checkpoint": ("Checkpoints", "checkpoint", "run"),
    "checkpoint-reading": ("Checkpoints, loaded and proven", "checkpoint", "run_reading"),
    "checkpoint-device": ("Checkpoints of a device's memory", "checkpoint_device", "run"),
    "training-kill": ("Training, from a fault to the next step", "training_recovery", "run"),
    "training-cases": ("Training, other faults", "training_recovery", "run_cases"),
    "training-helpers": ("Training, helpers killed", "training_recovery", "run_helpers"),
    "training-state": ("Training, a large state and a quiet day", "training_recovery", "run_state"),
    "training-launchers": ("Training, a lost agent, a lost host, and beside torchrun", "training_launchers", "run"),
    "training-server": ("Training, recovered by belay server", "training_server", "run"),
    "containers": ("Making containers", "containers", "run"),
    "console": ("The console in a browser", "console", "run"),
    "console-nodes": ("The console in a browser: 100,000 nodes", "console_nodes", "run"),
    "console-pixels": ("The console in a browser: from a fault to its pixel", "console_pixels", "run"),
    "console-recording": ("The console in a browser: a recording of 10,000 nodes", "console_recording", "run"),
    "training-manager": ("The manager of a training job of 10,000 ranks", "training_manager", "run"),
}
"""Name → heading, module and function, in the order of RESULTS.md."""
GROUPS = {"training": [name for name in SECTIONS if name.startswith(("training-", "tft"))]}
"""Names of several sections; each takes at most four minutes and renews its table when it ends."""


def main(names: list[str]) -> int:
    """Exit code 0 when every goal was reached, 1 when one was missed, 2 for an unknown section."""
    names = [section for name in names for section in GROUPS.get(name, [name])]
    if unknown := [name for name in names if name not in SECTIONS]:
        print(f"unknown: {', '.join(unknown)}; sections: {', '.join([*SECTIONS, *GROUPS])}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or SECTIONS:
        heading, file, function = SECTIONS[name]
        print(f"{heading} …", flush=True)
        begin, other = time.monotonic(), measure.others()
        try:
            module = importlib.import_module(f"tests.bench.{file}")
            with progress(heading, plain=False):
                results = getattr(module, function)()
        except measure.Skipped as reason:
            print(f"  skipped: {reason}", flush=True)
            continue
        for result in results:
            print(f"  {result.line()}", flush=True)
        missed += sum(not result.reached for result in results)
        how = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[2]
        where = measure.setting(max(other, measure.others()))
        measure.write(heading, [how, where], results, [heading for heading, _, _ in SECTIONS.values()])
        print(f"  took {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
