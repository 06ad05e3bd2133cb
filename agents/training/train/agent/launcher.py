"""``belay train``: the command line that replaces ``torchrun``."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from belay import IMPORT_ROOT, SHIPPED
from belay.agents.training.train.agent.coordinator_host import CoordinatorHost, append_timeline, report
from belay.agents.training.train.agent.link import VERSION, CoordinatorLink, NodeListener
from belay.agents.training.train.agent.node import Candidacy, NodeAgent
from belay.agents.training.train.agent.node_ranks import NodeSettings
from belay.agents.training.train.agent.orders import ClusterOrders
from belay.agents.training.train.agent.orders import of_environment as orders_of_environment
from belay.agents.training.train.agent.peers import Peers
from belay.agents.training.train.agent.proof import VARIABLE, read_secret
from belay.agents.training.train.agent.ranks import Ranks
from belay.agents.training.train.agent.supervisor import LEAVING, RESTARTS, RETURN_SOCKET, WORKED, supervise
from belay.agents.training.train.agent.work import LOOK
from belay.agents.training.train.decide.election import CANDIDATES, Election
from belay.agents.training.train.decide.members import Limits, Recovery
from belay.agents.training.train.home import Home
from belay.agents.training.train.notices import say
from belay.agents.training.train.reporting import Reporter, of_environment

PR_SET_CHILD_SUBREAPER = 36
NUMBERS = re.compile(r"\d+:\d+")
"""``--nodes MIN:MAX``; a host and its port have a letter or a dot in them."""


def parser() -> argparse.ArgumentParser:
    """The options, named as torchrun's where it has them."""
    found = argparse.ArgumentParser(
        prog="belay train",
        description="Run SCRIPT on N processes; a rank that dies is replaced and takes its state from a peer's memory.",
        usage="belay train [options] SCRIPT [ARGUMENT ...]",
    )
    number = _number
    found.add_argument("--python", metavar="PY", default=sys.executable, help="the interpreter that has PyTorch")
    found.add_argument(
        "--nproc",
        "--nproc-per-node",
        "--nproc_per_node",
        metavar="N",
        type=number(1, 4096),
        default=1,
        help="processes (ranks) on this host (1)",
    )
    found.add_argument(
        "--nnodes",
        metavar="N|MIN:MAX",
        type=_range,
        help="hosts of the job (1, or those of --nodes); MIN:MAX: when some do not come back MIN or more go on, which "
        "do the work of all (run.shares), and with all when they join again",
    )
    found.add_argument(
        "--node-rank",
        "--node_rank",
        metavar="R",
        type=number(0, 99_999),
        help="number of this host, from 0; found in --nodes where it can be",
    )
    found.add_argument("--master-addr", "--master_addr", metavar="A", default="", help="where the coordinator listens")
    found.add_argument(
        "--master-port",
        "--master_port",
        metavar="P",
        type=number(1, 65535),
        default=29500,
        help="its port, and the default of --nodes (29500)",
    )
    found.add_argument(
        "--nodes",
        metavar="A[:P],…|MIN:MAX",
        default="",
        help="all hosts, by node rank: they elect the coordinator themselves; or numbers, as in --nnodes",
    )
    found.add_argument(
        "--shrink-after",
        metavar="S",
        type=float,
        default=30.0,
        help="seconds for a lost host to come back before the job goes on without it, under MIN:MAX (30)",
    )
    found.add_argument(
        "--secret-file",
        metavar="FILE",
        default=os.environ.get(VARIABLE, ""),
        help=f"a secret that all nodes know; no other may join ({VARIABLE})",
    )
    found.add_argument("--spares", metavar="N", type=number(0, 64), default=1, help="processes kept ready per node (1)")
    found.add_argument("--timeline", metavar="FILE", type=Path, help="append each recovery as a line of JSON")
    found.add_argument("--checkpoints", metavar="DIR", type=Path, help="save what protect() protects here")
    found.add_argument("--checkpoint-every", metavar="N", type=number(1, 10**9), default=100, help="steps (100)")
    found.add_argument("--checkpoint-keep", metavar="N", type=number(0, 10**6), default=3, help="that stay (3; 0: all)")
    found.add_argument("--checkpoint-shared", metavar="DIR", type=Path, help="a second folder, on shared storage")
    found.add_argument(
        "--checkpoint-objects", metavar="URL", default="", help="object storage, such as s3://bucket/job"
    )
    found.add_argument("--checkpoint-listen", metavar="H:P", default="", help="keep copies of another host in memory")
    found.add_argument("--checkpoint-peer", metavar="H:P", default="", help="the host that keeps copies of this one")
    found.add_argument("--checkpoint-secret", metavar="FILE", default="", help="a secret that these hosts know")
    found.add_argument(
        "--compare",
        metavar="auto|N|off",
        type=_compare,
        default=0,
        help="find chips that compute wrong: copies compare their weights, every N steps or so often that it costs at "
        "most 1 %% of the time (auto); a rank that differs is replaced, and training goes back to a proven step",
    )
    found.add_argument("--quiet-limit", metavar="S", type=float, default=10.0, help="idle without a step: a hang (10)")
    found.add_argument("--busy-limit", metavar="S", type=float, default=600.0, help="at work without a step (600)")
    found.add_argument("script", metavar="SCRIPT", help="the script of the user, with a function under protect()")
    found.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit code: 0 done, 1 the script failed, 2 it could not run or its state is lost, 130 and 143
    interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    try:
        complete(options)
    except ValueError as error:
        say(str(error))
        return 2
    if problem := _problem(options):
        say(problem)
        return 2
    if options.nnodes > 1 and not options.secret_file:
        say(f"without --secret-file everybody who reaches port {options.master_port} of these nodes may join this job")
    return supervise([sys.executable, "-m", "belay.agents.training.train.agent.launcher", *given])


def complete(options: argparse.Namespace) -> None:
    """Set number and rank of nodes where they follow from other options; ``options.addresses``: node → host and port,
    empty if the coordinator is given. Raises ``ValueError``."""
    if NUMBERS.fullmatch(options.nodes):
        if options.nnodes:
            raise ValueError(f"--nodes {options.nodes} and --nnodes are the same: give one of them")
        try:
            options.nodes, options.nnodes = "", _range(options.nodes)
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--nodes: {error}") from None
    options.least, options.nnodes = options.nnodes or (0, None)
    options.addresses = _addresses(options.nodes, options.master_port) if options.nodes else {}
    if options.addresses:
        count = len(options.addresses)
        if options.nnodes not in (None, count):
            raise ValueError(f"--nnodes {options.nnodes}, but --nodes names {count} hosts")
        if options.master_addr:
            raise ValueError("--nodes lets the hosts elect the coordinator: leave --master-addr out, or --nodes")
        options.nnodes = count
        if options.node_rank is None:
            options.node_rank = _own_rank(options.addresses)
        if options.node_rank < count:
            options.master_addr = options.addresses[0][0]
    options.nnodes, options.node_rank = options.nnodes or 1, options.node_rank or 0


def _addresses(text: str, port: int) -> dict[int, tuple[str, int]]:
    """The hosts in ``--nodes``; an IPv6 address with a port stands in brackets. Raises ``ValueError``."""
    found: dict[int, tuple[str, int]] = {}
    for entry in text.split(","):
        host, number = entry.strip(), str(port)
        if host.startswith("["):
            host, _, rest = host[1:].partition("]")
            number = rest[1:] if rest.startswith(":") else rest or number
        elif host.count(":") == 1:
            host, _, number = host.partition(":")
        if not host or not number.isdigit() or not 0 < int(number) < 65536:
            raise ValueError(f"--nodes: {entry!r} is not HOST or HOST:PORT")
        if (host, int(number)) in found.values():
            raise ValueError(f"--nodes: {entry!r} stands twice")
        found[len(found)] = host, int(number)
    return found


def _own_rank(addresses: dict[int, tuple[str, int]]) -> int:
    """The only node whose address is one of this machine. Raises ``ValueError``."""
    own = [node for node, (host, _) in addresses.items() if _is_own(host)]
    if len(own) == 1:
        return own[0]
    which = f"nodes {own} of --nodes are this machine" if own else "no address of --nodes is one of this machine"
    raise ValueError(f"{which}: give --node-rank")


def _is_own(host: str) -> bool:
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            with socket.socket(family, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
                sock.bind((address[0], 0))
                return True
    return False


def _problem(options: argparse.Namespace) -> str:
    """The first problem of the options; empty when there is none."""
    if not Path(options.script).is_file():
        return f"{options.script}: no such file"
    if options.node_rank >= options.nnodes:
        return f"--node-rank {options.node_rank} with --nnodes {options.nnodes}: node ranks count from 0"
    if options.nnodes > 1 and not (options.master_addr or os.environ.get("MASTER_ADDR")):
        return (
            f"--nnodes {options.nnodes} needs --nodes A,B,… (all hosts, which elect the coordinator), or --master-addr "
            "(or MASTER_ADDR): the address of the node of rank 0, which runs it then"
        )
    try:
        options.secret_file and read_secret(options.secret_file)
    except ValueError as error:
        return str(error)
    others = ("shared", "objects", "listen", "peer", "secret")
    given = [f"--checkpoint-{name}" for name in others if getattr(options, f"checkpoint_{name}")]
    if given and not options.checkpoints:
        return f"{given[0]} needs --checkpoints DIR: the folder that is nearest to the ranks"
    if (options.checkpoint_listen or options.checkpoint_peer) and not options.checkpoint_secret:
        return "--checkpoint-listen and --checkpoint-peer need --checkpoint-secret FILE"
    for name in ("quiet_limit", "busy_limit", "shrink_after"):
        if not 0 < getattr(options, name) <= 1e6:
            return f"--{name.replace('_', '-')} {getattr(options, name)} is not a number of seconds"
    return ""


def _agent(options: argparse.Namespace) -> int:
    """Run one node agent, as a child of its supervisor."""
    home, restarts = Home(os.environ.pop(RETURN_SOCKET), os.getppid()), int(os.environ.pop(RESTARTS))
    worked = int(os.environ.pop(WORKED))
    os.set_inheritable(worked, False)
    # ranks whose warm process is gone become children of this one
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    world = options.nproc * options.nnodes
    env = _environment(options)
    first = options.node_rank * options.nproc
    settings = NodeSettings(
        node=options.node_rank,
        nodes=options.nnodes,
        local={first + index: index for index in range(options.nproc)},
        world=world,
        job=os.environ.get("MINDX_TASK_ID", ""),
        address=_own_address(options, env),
        env=env,
        home=home,
        returning=restarts > 0,
        worked=worked,
        leaving=os.environ.pop(LEAVING, "") == "1",
        least=options.least,
        look=min(LOOK, options.quiet_limit / 4),
    )
    reporters: list[Reporter] = []
    orders: list[ClusterOrders] = []

    def lead() -> CoordinatorHost:
        """The coordinator, which reports what it recovers, and takes orders where the job can be smaller."""
        for former in orders:
            former.close()
        made = orders_of_environment(options.nproc) if options.least else None
        orders[:] = [] if made is None else [made]
        for one in orders:
            one.start()
        for reporter in reporters:
            reporter.close()
        reporters[:] = [one for one in (of_environment(world, options.nproc),) if one is not None]
        places = {rank: rank // options.nproc for rank in range(world)}
        limits = Limits(
            quiet=options.quiet_limit,
            busy=options.busy_limit,
            least=options.least,
            shrink=options.shrink_after if options.least else Limits.shrink,
            elected=bool(options.addresses),
            proof=options.compare,
        )
        return CoordinatorHost(places, limits, report, record, *(one.turn for one in orders))

    def record(recovery: Recovery) -> None:
        append_timeline(recovery, options.timeline)
        for reporter in reporters:
            reporter.put(recovery)

    key = read_secret(options.secret_file) if options.secret_file else b""
    coordinator = listener = link = candidacy = None
    hosts = options.addresses
    if hosts or (options.nnodes > 1 and options.node_rank == 0):
        _, port = hosts.get(options.node_rank, ("", options.master_port))
        try:
            listener = NodeListener("", port, settings.job, options.nnodes, options.nproc, options.node_rank, key)
        except OSError as error:
            other = "another port in --nodes" if hosts else "another --master-port"
            say(f"cannot listen on port {port}: {error.strerror}; give {other}")
            return 2
    if hosts:
        own = {"version": VERSION, "job": settings.job, "nodes": options.nnodes, "nproc": options.nproc}
        election = Election(options.node_rank, range(min(options.nnodes, CANDIDATES)), time.monotonic())
        candidacy = Candidacy(Peers(hosts, own, key), election, lead)
    elif options.node_rank == 0:
        coordinator = lead()
    else:
        link = CoordinatorLink(env["MASTER_ADDR"], options.master_port, key)
    script = [options.script, *options.arguments]
    ranks = Ranks(options.python, script, {**os.environ, **env}, options.spares, home, settings.returning)
    try:
        return NodeAgent(settings, ranks, coordinator, listener, link, candidacy).run()
    finally:
        for reporter in reporters:
            reporter.close()
        for one in orders:
            one.close()


def _own_address(options: argparse.Namespace, env: dict[str, str]) -> str:
    """The address at which ranks of other nodes reach those of this one; empty: as the connection to them shows."""
    if options.addresses:
        return str(options.addresses[options.node_rank][0])
    return env["MASTER_ADDR"] if options.node_rank == 0 and options.nnodes > 1 else ""


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """The environment that torchrun gives its workers, without the ranks, which each process gets when it is
    assigned."""
    contract = SHIPPED / "agents/training/packages/belay_training/src"
    paths = [str(IMPORT_ROOT), str(contract), os.environ.get("PYTHONPATH", "")]
    world = str(options.nproc * options.nnodes)
    return _checkpoints(options) | {
        "WORLD_SIZE": world,
        "ROLE_WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(options.nproc),
        "GROUP_RANK": str(options.node_rank),
        "GROUP_WORLD_SIZE": str(options.nnodes),
        "ROLE_NAME": "default",
        "MASTER_ADDR": options.master_addr or os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "MASTER_PORT": str(options.master_port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def _checkpoints(options: argparse.Namespace) -> dict[str, str]:
    """The options of checkpoints as ranks read them (``belay.agents.training.train.worker.periodic``)."""
    if not options.checkpoints:
        return {}
    found = {
        "folder": str(options.checkpoints.absolute()),
        "every": options.checkpoint_every,
        "keep": options.checkpoint_keep,
        "shared": str(options.checkpoint_shared.absolute()) if options.checkpoint_shared else None,
        "objects": options.checkpoint_objects,
        "listen": options.checkpoint_listen,
        "peer": options.checkpoint_peer,
        "secret": options.checkpoint_secret,
    }
    return {"BELAY_CHECKPOINTS": json.dumps(found)}


def _compare(text: str) -> int:
    """``auto`` (0), ``off`` (-1) or a number of steps, for argparse."""
    if text in ("auto", "off"):
        return 0 if text == "auto" else -1
    return _number(1, 1_000_000)(text)


def _range(text: str) -> tuple[int, int]:
    """``N`` or ``MIN:MAX``, for argparse: the fewest hosts with which a job goes on (0: all of them), and all."""
    least, _, most = text.rpartition(":")
    low, high = _number(1, 100_000)(least or most), _number(1, 100_000)(most)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r} is not MIN:MAX")
    return (low if least and low < high else 0), high


def _number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range, for argparse."""

    def read(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low} to {high}")
        return int(text)

    return read


if __name__ == "__main__":
    given = parser().parse_args()
    complete(given)
    raise SystemExit(_agent(given))
