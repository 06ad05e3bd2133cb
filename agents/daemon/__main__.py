"""``python -m belay.agents.daemon``: the agent of one node, or a fleet of simulated ones."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import sys
from pathlib import Path
from typing import Final

from belay.agents.common.credentials import CredentialsError
from belay.agents.common.log import JsonLines, Log
from belay.agents.common.stopping import stop_on_signals
from belay.agents.daemon import hot_loops
from belay.agents.daemon.fleet import FleetNode
from belay.agents.daemon.folder_options import is_simulated
from belay.agents.daemon.parts import PARTS, chosen_parts
from belay.agents.daemon.run import run_agent, run_fleet
from belay.agents.drivers.base import DriverError
from belay.agents.drivers.choice import server_model
from belay.agents.drivers.server_models import SERVER_MODELS
from belay.agents.kubelet import flags
from belay.agents.node.hooks import FOLDER as HOOKS
from belay.agents.node.jobfiles import RESET_ROOT
from belay.agents.node.plugins import FILE as PLUGINS
from belay.agents.node.publicnames import FILE as NAMES
from belay.agents.node.publicnames import read_names
from belay.agents.node.rankfiles import ROOT
from belay.agents.node.settings import Settings
from belay.agents.node.shipped import shipped_policy
from belay.engine import versions

PROG = "python -m belay.agents.daemon"

#: The names of a node's ConfigMaps hold its name, and have 253 characters at most (component/noded/main.go).
MAX_NODE: Final = 230
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")


def main(arguments: list[str] | None = None, prog: str = PROG) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code: 2 when it could not start."""
    options = _parser(prog).parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=flags.log_level(options) or options.log_level, handlers=[handler], force=True)
    try:
        for file in flags.log_handlers(options):
            logging.getLogger().addHandler(file)
        # simulated nodes share the folders of this machine
        shares_folders = is_simulated(options)
        settings = Settings(
            pool=options.pool,
            scale=options.scale,
            pod=os.environ.get("POD_NAME", ""),
            rank_root="" if shares_folders else options.rank_tables,
            reset_root="" if shares_folders else options.reset_files,
            order_trust=options.order_trust,
            cluster_tables=not options.fleet,
        )
        hot_loops.start()
        asyncio.run(_serve(options, settings))
    except (CredentialsError, DriverError, OSError, ValueError) as error:
        Log("agent").error("agent cannot start", error=error)
        return 2
    return 0


async def _serve(options: argparse.Namespace, settings: Settings) -> None:
    stop = stop_on_signals()
    state = Path(options.state_dir)
    if options.fleet:
        row = server_model(options.driver.partition(":")[2])
        nodes = [FleetNode(name=f"{options.node or 'sim'}-{n}", row=row, seed=n) for n in range(options.fleet)]
        await run_fleet(nodes, state_dir=state, kubeconfig=options.kubeconfig, settings=settings, stop=stop)
        return
    if not options.node:
        raise ValueError("--node or NODE_NAME is needed")
    if len(options.node) > MAX_NODE or not _NODE.fullmatch(options.node):
        raise ValueError(
            f"--node {options.node[:80]!r} is not the name of a node: 1 to {MAX_NODE} lower-case letters, digits, '-' "
            "and '.', with a letter or digit at both ends and around each '.'"
        )
    await run_agent(
        options.node,
        journal_dir=state,
        driver=options.driver,
        kubeconfig=options.kubeconfig,
        settings=flags.node_settings(options, settings),
        policy=flags.policy(options, shipped_policy(settings.pool)),
        plugin=flags.plugin_settings(options) if options.device_plugin else None,
        parts=chosen_parts(options),
        plugins=Path(options.hot_reset_plugins) if options.hot_reset_plugins else None,
        hooks=Path(options.hot_reset_hooks) if options.hot_reset_hooks else None,
        names=read_names(Path(options.device_names)) if options.device_names else None,
        stop=stop,
    )


def _parser(prog: str = PROG) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Belay's node agent")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="name of the node (default $NODE_NAME)")
    parser.add_argument(
        "--driver",
        required=True,
        metavar="DRIVER",
        help="dcmi[:FILE], the NPU driver's libdcmi.so; npu_smi[:FILE] where that cannot be used; or "
        f"simulated[:MODEL], MODEL one of {', '.join(sorted(SERVER_MODELS))}, "
        "never chosen by default, because a simulated driver's reports on a real node would hide its real state",
    )
    parser.add_argument(
        "--fleet", type=int, default=0, metavar="N", help="run N simulated nodes, named NODE-0 to NODE-<N-1>"
    )
    parser.add_argument("--state-dir", default="/var/lib/belay/agent", help="folder that survives restarts")
    parser.add_argument(
        "--rank-tables", default=str(ROOT), metavar="DIR", help="folder for rank tables as files, empty for none"
    )
    parser.add_argument(
        "--reset-files",
        default=str(RESET_ROOT),
        metavar="DIR",
        help="folder for what training managers read of reset-config-<job>, empty for none",
    )
    parser.add_argument(
        "--hot-reset-plugins", default=str(PLUGINS), metavar="FILE", help="which parts of resets are on; may be absent"
    )
    parser.add_argument(
        "--hot-reset-hooks",
        default=str(HOOKS),
        metavar="DIR",
        help="programs that take part in resets, PLUGIN/PreReset, CustomReset and AfterReset (default %(default)s)",
    )
    parser.add_argument(
        "--device-names",
        default=str(NAMES),
        metavar="FILE",
        help="what others call resources and chips (default %(default)s); may be absent",
    )
    parser.add_argument("-version", "--version", action="version", version=f"belay agent {versions.version()}")
    parser.add_argument(
        "--order-trust",
        default="/etc/belay/order-trust",
        metavar="DIR",
        help="*.pub, the keys of which one must have signed orders, and signers, whose commits count "
        "(default %(default)s); without keys there, unsigned orders are carried out",
    )
    parser.add_argument("--kubeconfig", default=None, metavar="FILE", help="without it the pod's own account")
    parser.add_argument("--pool", default="default", help="pool whose policy is followed until orders name another")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on idle, boot, heartbeat and report times")
    parser.add_argument(
        "--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="least level that is logged"
    )
    flags.add(parser)
    for part in PARTS:
        part.add(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
