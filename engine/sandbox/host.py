"""The process of `belay up` that simulates the cluster: definitions, nodes, controllers and agents.

`python -m belay.engine.sandbox.host --kubeconfig FILE --nodes N …`; it runs until SIGTERM and writes its progress to
the file of `--ready`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from belay.agents.daemon.fleet import FleetNode, FleetPace
from belay.agents.daemon.run import run_fleet
from belay.agents.drivers.server_models import SERVER_MODELS, from_product
from belay.agents.drivers.simulated import ServerModel
from belay.agents.node.settings import Settings as AgentSettings
from belay.engine import log
from belay.engine.errors import BelayError
from belay.engine.kube import Kube, cancel_all
from belay.engine.model.labels import CHIP_NAME
from belay.engine.sandbox import definitions
from belay.engine.sandbox.containers import Training
from belay.engine.sandbox.node_control import SandboxNode
from belay.engine.sandbox.settings import SandboxSettings, time_scale
from belay.engine.sandbox.shapes import Shapes, shipped_shapes
from belay.engine.sandbox.world import SandboxCluster, ensure_namespaces, members, until_signal

STAGES = ("definitions", "nodes")
"""Stages in the ready file, in order."""

#: Servers of one rack, where the product has racks.
RACK_SIZE = 2


def fleet_nodes(nodes: Sequence[SandboxNode], settings: SandboxSettings, shapes: Shapes) -> list[FleetNode]:
    """The simulated nodes as agents see them: a driver with the same chips for each."""
    rows = {name: _row(name, shapes) for name in sorted({member.shape.product for member in nodes})}
    out = []
    for member in nodes:
        row = msgspec.structs.replace(rows[member.shape.product], chips=member.shape.chips)
        if size := member.shape.super_pod_size:
            place = member.index % size
            machine = msgspec.structs.replace(
                row.machine,
                super_pod_id=member.index // size,
                server_index=place,
                rack_id=place // RACK_SIZE if row.machine.generation.unified_bus else None,
            )
            row = msgspec.structs.replace(row, machine=machine)
        out.append(FleetNode(name=member.name, row=row, seed=settings.seed))
    return out


def _row(name: str, shapes: Shapes) -> ServerModel:
    if name in SERVER_MODELS:
        return SERVER_MODELS[name]
    product = shapes.products[name]
    spec = product.spec.model_dump(by_alias=True, mode="json")
    label = shapes.of(name).labels.get(CHIP_NAME, "")
    return from_product(spec, product.reset_groups, chip_name=label)


async def run(
    kubeconfig: str,
    settings: SandboxSettings,
    journals: Path,
    ready: Path,
    *,
    define: bool,
    training: Training | None = None,
) -> None:
    """Bring the cluster up, with our definitions if ``define``, and run it until the process is asked to end."""
    shapes = shipped_shapes()
    nodes = members(settings, shapes)
    stop = asyncio.create_task(until_signal())
    async with Kube.from_config(kubeconfig) as kube:
        await ensure_namespaces(kube)
        if define:
            await definitions.ensure(kube)
        _say(ready, "definitions")
        world = SandboxCluster(kube, settings, shapes, nodes, training)
        tasks = [
            stop,
            asyncio.create_task(world.run(lambda: _say(ready, "nodes"))),
            asyncio.create_task(_agents(kubeconfig, nodes, settings, shapes, journals, world)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await cancel_all(*tasks)


async def _agents(
    kubeconfig: str,
    nodes: Sequence[SandboxNode],
    settings: SandboxSettings,
    shapes: Shapes,
    journals: Path,
    world: SandboxCluster,
) -> None:
    await world.kubelets.registered.wait()
    await run_fleet(
        fleet_nodes(nodes, settings, shapes),
        state_dir=journals,
        kubeconfig=kubeconfig,
        settings=AgentSettings(scale=max(0.001, settings.time_scale), idle=settings.idle_seconds),
        pace=FleetPace(
            reset_seconds=settings.reset_seconds,
            alarms_every=settings.alarms_every,
            use_every=settings.use_every,
        ),
    )


def _say(ready: Path, stage: str) -> None:
    """Write the stage atomically."""
    fresh = ready.with_suffix(".new")
    fresh.write_text(json.dumps({"stage": stage}))
    fresh.replace(ready)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m belay.engine.sandbox.host", description="Simulated nodes and their agents."
    )
    parser.add_argument("--kubeconfig", required=True, help="the API server to fill with nodes")
    parser.add_argument("--nodes", type=int, default=8, help="how many nodes of the product")
    parser.add_argument("--product", default="atlas-800t-a2", help="a name in policies/products")
    parser.add_argument("--server", nargs=2, action="append", default=[], metavar=("PRODUCT", "COUNT"),
                        help="instead: so many of a product; may be given again")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="decides delays and orders")
    parser.add_argument("--time-scale", type=float, help="multiplies waiting times; default $BELAY_TIME_SCALE or 1")
    parser.add_argument("--agents", type=Path, required=True, help="folder of the agents' journals")
    parser.add_argument("--ready", type=Path, required=True, help="file that says how far it has come")
    parser.add_argument("--no-controllers", action="store_true", help="the cluster has a kube-controller-manager")
    parser.add_argument("--no-definitions", action="store_true", help="leave the cluster without custom resources")
    parser.add_argument("--owner-gc", action="store_true", help="the cluster has no garbage collector")
    parser.add_argument("--training", type=Path, metavar="DIR", help="run `belay train` of pods, with files in DIR")
    parser.add_argument("--recovery-service", default="", metavar="HOST:PORT", help="where `belay server` listens")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 after SIGTERM, 2 when it cannot run."""
    options = _arguments(argv)
    log.configure("INFO", "sandbox")
    try:
        settings = SandboxSettings(
            nodes=options.nodes,
            product=options.product,
            servers=tuple((name, int(count)) for name, count in options.server),
            seed=options.seed,
            time_scale=time_scale(options.time_scale),
            controllers=not options.no_controllers,
            owner_gc=options.owner_gc,
        )
        with contextlib.suppress(asyncio.CancelledError):
            training = Training(options.training, options.recovery_service) if options.training else None
            asyncio.run(
                run(
                    options.kubeconfig,
                    settings,
                    options.agents,
                    options.ready,
                    define=not options.no_definitions,
                    training=training,
                )
            )
    except BelayError as error:
        sys.stderr.write(f"belay: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
