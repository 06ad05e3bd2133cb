"""Verbs for one host: the OCI runtime that gives containers their chips, the manager that recovers containers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from belay.engine import versions
from belay.engine.cli.invocation import fails_clearly, output_option
from belay.engine.errors import InputError


@click.command(
    short_help="Run a training script; dead ranks are replaced.",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(arguments: tuple[str, ...]) -> None:
    """Run a training script on N processes in the place of torchrun; `belay train --help` lists its options.

    Example: belay train --nproc 8 train.py --steps 1000
    """
    from belay.agents.training.train.agent.launcher import main

    sys.exit(main(arguments))


@click.group(short_help="Install the OCI runtime that gives containers their chips.")
def runtime() -> None:
    """Build, install and remove belay-oci-runtime, the OCI runtime over runc that gives containers their chips."""


@runtime.command(name="build", short_help="Compile its two programs.")
@click.option(
    "--out", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("oci-runtime"),
    help="Where the programs are written.",
)  # fmt: skip
@click.option("--arch", type=click.Choice(["native", "x86_64", "aarch64"]), default="native", show_default=True)
@fails_clearly
def runtime_build(folder: Path, arch: str) -> None:
    """Compile the two programs into a folder, for `install --programs` on hosts without a compiler.

    Example: belay runtime build --out build --arch aarch64
    """
    from belay.agents.runtime.build import BuildError, build

    try:
        click.echo("\n".join(map(str, build(folder, arch))))
    except BuildError as error:
        raise InputError(str(error)) from error


@runtime.command(name="install", short_help="Install it and enter it in the container engine.")
@click.option("--install-scene", "scene", help="docker (the default), containerd, crio or isula.")
@click.option("--injection-mode", "mode", help="legacy (a hook mounts; the default) or cdi.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--config-file-path", "config", metavar="FILE", help="The engine's file, where it is not the usual one.")
@click.option("--install-type", "kind", metavar="TYPE", help="A500, A200, A200ISoC, A500A2, A200IA2; else general.")
@click.option("--default/--keep-default", "default", default=None, help="Whether it runs every container.")
@click.option("--programs", type=click.Path(path_type=Path), help="A folder that `belay runtime build` filled.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_install(root: Path, **options: Any) -> None:
    """Install the runtime and enter it in the engine's configuration, which is kept for `uninstall`.

    Again: renews it. Choices that are not made again and mount lists that were edited stay as they are.

    Example: belay runtime install --install-scene containerd
    """
    from belay.agents.runtime.install import Host, InstallError, InstallOptions, install

    try:
        click.echo("\n".join(install(InstallOptions(**options), versions.version(), Host(root))))
    except InstallError as error:
        raise InputError(str(error)) from error


@runtime.command(name="upgrade", short_help="Renew what is installed, with its choices.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--injection-mode", "mode", help="legacy or cdi, where it is to change.")
@click.option("--programs", type=click.Path(path_type=Path), help="A folder that `belay runtime build` filled.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_upgrade(root: Path, **options: Any) -> None:
    """Bring an installation to this version. Scene, file, product type, injection mode and edited lists are kept.

    Example: belay runtime upgrade
    """
    from belay.agents.runtime.install import Host, InstallError, InstallOptions, upgrade

    try:
        click.echo("\n".join(upgrade(InstallOptions(**options), versions.version(), Host(root))))
    except InstallError as error:
        raise InputError(str(error)) from error


@runtime.command(name="check", short_help="Whether the installation is sound.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_check(base: str, root: Path) -> None:
    """Compare the host with what was installed: programs, lists, the engine's file, rights. Exit code 1: not sound.

    Example: belay runtime check
    """
    from belay.agents.runtime.install import Host, InstallError, check

    try:
        wrong = check(base, host=Host(root))
    except InstallError as error:
        raise InputError(str(error)) from error
    click.echo("\n".join(wrong) or "sound")
    if wrong:
        raise SystemExit(1)


@runtime.command(name="version", short_help="Print the version, and the installed one.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_version(base: str, root: Path) -> None:
    """Print the version that `install` and `upgrade` would bring, and the one that is installed.

    Example: belay runtime version
    """
    from belay.agents.runtime.install import Host, InstallError, status

    try:
        found = status(base, host=Host(root))
    except InstallError as error:
        raise InputError(str(error)) from error
    click.echo(f"belay-oci-runtime version: {versions.version()}")
    click.echo(f"installed: {found['version']} in {found['path']}" if found["installed"] else "installed: none")


@runtime.command(name="uninstall", short_help="Take it out again.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--force", is_flag=True, help="Although containers made by it run; the programs stay for them.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@fails_clearly
def runtime_uninstall(base: str, force: bool, root: Path) -> None:
    """Put the engine's configuration back as it was and remove the runtime.

    Example: belay runtime uninstall
    """
    from belay.agents.runtime.install import Host, InstallError, uninstall

    try:
        click.echo("\n".join(uninstall(base, force=force, host=Host(root))))
    except InstallError as error:
        raise InputError(str(error)) from error


@runtime.command(name="status", short_help="Show what is installed, and which containers it made.")
@click.option("--install-path", "base", default="/usr/local/Ascend", show_default=True, metavar="DIR")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), help="Where the host is mounted.")
@output_option()
@fails_clearly
def runtime_status(base: str, output: str, root: Path) -> None:
    """Show what is installed, whether the engine's file still names it, and running containers made by it.

    Example: belay runtime status
    """
    from belay.agents.runtime.install import Host, InstallError, status
    from belay.engine.cli import output as show

    try:
        found = status(base, host=Host(root))
    except InstallError as error:
        raise InputError(str(error)) from error
    if output in ("json", "yaml"):
        show.document(found, output)
        return
    containers = found["containers"]
    rows = [[name, value if value not in ([], "") else "none"] for name, value in found.items() if name != "containers"]
    show.table(("WHAT", "VALUE"), [*rows, ["containers", ", ".join(it["id"] for it in containers) or "none"]])


def _container_options(command: Any) -> Any:
    """The options of the manager, by its own names and those of MindCluster's."""
    for option in reversed(
        (
            click.option(
                "--runtime",
                "-runtimeType",
                type=click.Choice(["docker", "containerd"]),
                default="docker",
                help="Which runtime holds the containers (docker).",
            ),
            click.option(
                "--socket", "-sockPath", metavar="FILE", default="", help="The runtime's socket (its usual place)."
            ),
            click.option(
                "--strategy",
                "-ctrStrategy",
                type=click.Choice(["never", "singleRecover", "ringRecover"]),
                default="never",
                help="Which containers a fault stops: none, those on the chip, those on its ring.",
            ),
            click.option(
                "--fault-config", "-faultConfigPath", metavar="FILE", default="", help="Fault levels of your own."
            ),
            click.option("--driver", metavar="DRIVER", default="dcmi", help="dcmi[:FILE] or simulated[:MODEL]."),
            click.option("--state", metavar="FILE", default="/tmp/status.json", help="The state file."),
            click.option(
                "--log-file", "-logPath", metavar="FILE", default="", help="Log to a file instead of standard error."
            ),
            click.option(
                "--log-level",
                "-logLevel",
                type=int,
                default=0,
                help="-1 debug, 0 info, 1 warning, 2 error, 3 critical.",
            ),
            click.option("--log-days", "-maxAge", type=int, default=7, help="Days that old log files are kept."),
            click.option("--log-backups", "-maxBackups", type=int, default=30, help="How many old log files are kept."),
        )
    ):
        command = option(command)
    return command


@click.group(short_help="Recover containers on a host without Kubernetes.")
def containers() -> None:
    """Recover containers on a host without Kubernetes: stop those on a faulty chip, reset it, start them again."""


@containers.command(name="run", short_help="Run the manager.")
@_container_options
@fails_clearly
def containers_run(**options: Any) -> None:
    """Run until SIGINT or SIGTERM. The flags of MindCluster's container manager are understood too.

    Example: belay containers run --runtime containerd --strategy ringRecover
    """
    from belay.agents.containers.commands import Options, run

    try:
        chosen = Options(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(run(chosen))


@containers.command(name="status", short_help="Show the state of each container.")
@click.option("--state", type=click.Path(path_type=Path), default=Path("/tmp/status.json"), help="The state file.")
@fails_clearly
def containers_status(state: Path) -> None:
    """Show the containers that use chips, the state each is in, and what to do about one that stays there.

    Example: belay containers status
    """
    from belay.agents.containers.commands import show

    sys.exit(show(state))


@containers.command(name="install", short_help="Make the manager a service of systemd.")
@_container_options
@click.option("--timer-delay", "delay", default="60s", show_default=True, help="How long after boot it starts.")
@fails_clearly
def containers_install(delay: str, **options: Any) -> None:
    """Write the units and start them after every boot. The options are those the service will run with.

    Example: belay containers install --strategy singleRecover
    """
    from belay.agents.containers.commands import Options
    from belay.agents.containers.install import InstallError, install

    try:
        written = install(Options(**options), delay=delay)
    except (InstallError, ValueError) as error:
        raise InputError(str(error)) from error
    click.echo("".join(f"{path}\n" for path in written) + "started; see belay containers status")


@containers.command(name="upgrade", short_help="Restart the service with this version.")
@fails_clearly
def containers_upgrade() -> None:
    """Restart the service with the program as it is now. Its units and options stay as they are.

    Example: belay containers upgrade
    """
    from belay.agents.containers.install import InstallError, upgrade

    def flags_problem(words: list[str]) -> str:
        try:
            containers_run.make_context("run", words)
        except click.ClickException as error:
            return error.format_message()
        return ""

    try:
        done = upgrade(versions.version(), flags_problem)
    except InstallError as error:
        raise InputError(str(error)) from error
    click.echo("\n".join(done))


@containers.command(name="uninstall", short_help="Take the service away; logs stay.")
@fails_clearly
def containers_uninstall() -> None:
    """Stop the service and remove its units and flags; logs stay.

    Example: belay containers uninstall
    """
    from belay.agents.containers.install import InstallError, uninstall

    try:
        removed = uninstall()
    except InstallError as error:
        raise InputError(str(error)) from error
    click.echo("".join(f"{path}\n" for path in removed) + ("removed" if removed else "nothing is installed"))


VERBS = (train, runtime, containers)
