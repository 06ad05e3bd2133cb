"""Verbs of the sandbox, and of machines without NPUs: the embedded cluster, its faults, a stand-in driver library."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import click

from belay.engine.cli.invocation import Number, WholeNumber, fails_clearly
from belay.engine.cli.known_names import completes
from belay.engine.errors import InputError

MOST_NODES = 1000
_MOST_DIGITS: Final = 6


@click.command(short_help="Run the sandbox until Ctrl-C.")
@click.option(
    "--nodes",
    metavar="N|NxP,...",
    default="8",
    show_default=True,
    help="Simulated nodes, 1 to 1000: of --product and one for inference, or such as 4x800t-a2,2x300i-pro.",
)
@click.option("--product", metavar="P", help="A name in policies/products.  [default: atlas-800t-a2]")
@click.option("--state", metavar="DIR", help="State repository to start from (default: the shipped sample).")
@click.option("--data", metavar="DIR", help="Where everything is kept; state survives a restart with the same DIR.")
@click.option("--time-scale", type=Number(0.001, 1.0), envvar="BELAY_TIME_SCALE",
              show_envvar=True, help="Shortens waits.")  # fmt: skip
@click.option("--env", is_flag=True, help="Only print what a shell needs to use the sandbox that runs.")
@click.option("--training", is_flag=True, help="Pods whose command is `belay train` run it (needs PyTorch).")
@fails_clearly
def up(
    nodes: str, product: str | None, state: str | None, data: str | None, time_scale: float | None, env: bool,
    training: bool,
) -> None:  # fmt: skip
    """Run the sandbox: simulated cluster, engine and Git remote in one command, until Ctrl-C.

    In another terminal: eval "$(belay up --env)". Example: belay up --nodes 4x800t-a2,2x300i-pro --data sandbox
    """
    from belay.engine.sandbox.folder import running_folder
    from belay.engine.sandbox.shapes import shipped_shapes
    from belay.engine.sandbox.up import exports
    from belay.engine.sandbox.up import main as run

    if data == "":  # an empty variable of the shell; as a path it would be the current folder
        raise InputError("no folder is named", where="--data", hint="Name one, or leave --data out.")
    if env:
        click.echo("\n".join(exports(running_folder(data).kubeconfig)))
        return
    count, servers = _servers(nodes)
    if servers and product is not None:
        raise InputError("--nodes names products already", where="--product", hint="Leave one of both out.")
    if product is not None:
        shapes = shipped_shapes()
        shapes.of(product, shapes.most_chips(product))
    sys.exit(run(
        nodes=count, product=product or "atlas-800t-a2", servers=servers, state=state, data=data,
        time_scale=time_scale, training=training,
    ))  # fmt: skip


def _servers(text: str) -> tuple[int, tuple[tuple[str, int], ...]]:
    """A number of nodes, or how many of which product.

    Raises:
        InputError: it is neither, or too many.
    """
    from belay.engine.cli.acts.beginnings import named_products
    from belay.engine.sandbox.shapes import shipped_shapes

    is_number = re.fullmatch(r"-?[0-9]+", text) is not None
    if is_number and len(text) > _MOST_DIGITS:
        raise InputError(f"these are not 1 to {MOST_NODES} nodes", where=f"--nodes {text[:60]}")
    known = shipped_shapes().products if not is_number else {}
    servers = () if is_number else tuple(named_products(text, known).items())
    count = int(text) if is_number else sum(number for _, number in servers)
    if not 1 <= count <= MOST_NODES:
        raise InputError(f"{count} nodes are not 1 to {MOST_NODES}", where=f"--nodes {text[:60]}")
    return count, servers


@click.command(short_help="Run the whole loop step by step, then end.")
@fails_clearly
def demo() -> None:
    """Run the main job on the embedded default, step by step, to its end.

    Example: belay demo
    """
    from belay.engine.sandbox.demo import main as run

    sys.exit(run())


@click.group(short_help="Make simulated nodes fail (sandbox only).", invoke_without_command=True)
@click.option(
    "--timeline", metavar="FILE", help="Play a timeline of faults; deploy/samples/faults-timeline.yaml shows all."
)
@click.option("--check", is_flag=True, help="Only read the timeline; needs no cluster.")
@click.option("--speed", type=Number(0.01, 1000.0), default=1.0, show_default=True, help="Times as fast.")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG.")
@click.pass_context
@fails_clearly
def inject(ctx: click.Context, timeline: str | None, check: bool, speed: float, kubeconfig: str | None) -> None:
    """Make the sandbox's simulated nodes misbehave (sandbox only).

    Example: belay inject --timeline faults.yaml --speed 60
    """
    if ctx.invoked_subcommand is not None:
        if timeline or check:
            raise click.UsageError("--timeline and --check stand alone.")
        return
    if timeline is None:
        raise click.UsageError("Give --timeline FILE, or one of the commands fault and node.")
    from belay.engine.sandbox import play
    from belay.engine.sandbox.timeline import read

    try:
        events = read(Path(timeline))
    except InputError as error:
        for line in error.message.split("\n") if not error.where else [str(error)]:
            click.echo(f"belay: {line}", err=True)
        sys.exit(2)
    if not check:
        play.play(events, say=click.echo, speed=speed, kubeconfig=kubeconfig)
    last = f"{events[-1].at:g} s"
    click.echo(f"{timeline}: {len(events)} events, the last at {last}" + (", all sound" if check else ", all played"))


@inject.command("fault")
@click.argument("chip", metavar="NODE/CHIP", shell_complete=completes("node", "chip"))
@click.argument("codes", nargs=-1, metavar="[CODE]...")
@click.option("--network", is_flag=True, help="On the chip's network plane.")
@click.option("--clear", is_flag=True, help="Take the chip's faults away; a reset does so too.")
@click.option("--reset-fails", type=WholeNumber(0, 100), default=0, help="Let the next N resets fail.")
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG.")
@fails_clearly
def inject_fault(
    chip: str, codes: tuple[str, ...], network: bool, clear: bool, reset_fails: int, kubeconfig: str | None
) -> None:
    """Put fault CODEs on a chip, e.g. `belay inject fault node-1/Ascend910-3 80C98001`.

    Example: belay inject fault node-1/3 80C98001
    """
    from belay.engine.sandbox.inject import fault

    click.echo(fault(chip, codes, network=network, clear=clear, reset_fails=reset_fails, kubeconfig=kubeconfig))


@inject.command("node")
@click.argument("node", shell_complete=completes("node"))
@click.argument("state", type=click.Choice(["ready", "not-ready"]))
@click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG.")
@fails_clearly
def inject_node(node: str, state: str, kubeconfig: str | None) -> None:
    """Stop or start a simulated node's heartbeat.

    Example: belay inject node node-2 not-ready
    """
    from belay.engine.sandbox.inject import node_ready

    click.echo(node_ready(node, state == "ready", kubeconfig=kubeconfig))


@click.group(name="sim-driver", short_help="Make a driver library for machines without NPUs.")
def sim_driver() -> None:
    """Make a driver library for machines without NPUs."""


@sim_driver.command(name="build", short_help="Compile the stand-in libdcmi.so.")
@click.option(
    "--out", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("sim-driver"),
    help="Where the library is written.",
)  # fmt: skip
@click.option("--chips", type=WholeNumber(1, 64), default=8, help="Chips of the machine.")
@click.option("--chip-name", default="910B3", help="Chip name as the driver gives it.")
@fails_clearly
def sim_driver_build(folder: Path, chips: int, chip_name: str) -> None:
    """Compile the stand-in libdcmi.so and write the state of a healthy machine beside it, with a stand-in hccn_tool.

    Example: belay sim-driver build --out build --chips 8
    """
    from belay.agents.drivers.standin.build import BuildError, build, build_switch, place_hccn_tool
    from belay.agents.drivers.standin.state import Standin
    from belay.engine.errors import BelayError

    try:
        library, switch, tool = build(folder), build_switch(folder), place_hccn_tool(folder)
        state = Standin.create(folder / "state", chips=chips, chip_name=chip_name).file
    except BuildError as error:
        raise BelayError(str(error)) from error
    click.echo(f"{library}\n{switch}\n{tool}\n{state}")
    click.echo(f"use them: BELAY_SIM_DCMI_STATE={state.resolve()} belay agent --driver dcmi:{library.resolve()} …")


VERBS = (up, demo, inject, sim_driver)
