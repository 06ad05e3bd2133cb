"""Kubelets and the controllers of a small cluster, as a process that nothing disturbs: they are not Belay's."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

from belay.engine import log
from belay.engine.kube import NAMESPACE, Conflict, Kube, cancel_all
from belay.engine.sandbox import definitions
from belay.engine.sandbox.settings import SandboxSettings
from belay.engine.sandbox.shapes import shipped_shapes
from belay.engine.sandbox.world import SandboxCluster, ensure_namespaces, until_signal

JOBS = "train"
"""The namespace of the jobs."""


async def _run(options: argparse.Namespace) -> None:
    settings = SandboxSettings(nodes=options.nodes, time_scale=options.scale, infer_node=False, owner_gc=True)
    async with Kube.from_config(options.kubeconfig) as kube:
        await ensure_namespaces(kube)
        with contextlib.suppress(Conflict):
            await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": JOBS}})
        await definitions.ensure(kube)
        world = SandboxCluster(kube, settings, shipped_shapes())
        running = asyncio.create_task(world.run(options.ready.touch))
        ended = asyncio.create_task(until_signal())
        try:
            done, _ = await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_all(running, ended)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.kubelets", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--ready", type=Path, required=True, help="made when the nodes are registered")
    options = parser.parse_args()
    log.configure("INFO", "kubelets")
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(_run(options))


if __name__ == "__main__":
    main()
