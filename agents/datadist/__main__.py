"""``python -m belay.agents.datadist``: keeps the links of one cluster and serves registered memory over them.

For servers whose inference process does not call ``LLMDataDist.keep_links`` itself: it shares its blocks as files, for
example on /dev/shm, and this process beside it registers them before anything is linked.
"""

from __future__ import annotations

import argparse
import logging
import mmap
import os
import signal
import sys
import threading
from pathlib import Path

from belay.agents.common import hostfiles
from belay.agents.common.log import JsonLines, Log
from belay.agents.datadist.caches import BlocksCacheKey, CacheDesc, DataType, Placement
from belay.agents.datadist.config import LLMConfig, LLMRole
from belay.agents.datadist.datadist import LLMDataDist
from belay.agents.datadist.status import LLMException
from belay.engine.model.links import cluster_number
from belay.engine.wire import links as wire
from belay.engine.wire.errors import WireError

_log = Log("datadist")
ROLES = {"prompt": LLMRole.PROMPT, "decoder": LLMRole.DECODER, "mix": LLMRole.MIX}


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM. Returns the exit code: 2 when it could not start."""
    options = _parser().parse_args(arguments)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=options.log_level, handlers=[handler], force=True)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        cluster = _cluster(options, stop)
        if cluster is not None:
            _serve(options, cluster, stop)
    except (LLMException, WireError, OSError, TypeError, ValueError) as error:
        _log.error("links cannot be kept", error=error)
        return 2
    return 0


def _serve(options: argparse.Namespace, cluster: int, stop: threading.Event) -> None:
    end = LLMDataDist(ROLES[options.role], cluster)
    end.init(LLMConfig(listen_ip_info=options.listen, sync_kv_timeout=options.sync).generate_options())
    try:
        desc = CacheDesc(options.tensors, [options.blocks, options.block_bytes], DataType.DT_UINT8, Placement.HOST)
        key = BlocksCacheKey(cluster, options.model)
        if options.memory:
            end.cache_manager.register_blocks_cache(desc, _shared(Path(options.memory), desc), key)
        else:
            end.cache_manager.allocate_blocks_cache(desc, key)
        end.keep_links(options.folder)
        _log.info("links are kept", cluster=cluster, listening=", ".join(f"{ip}:{port}" for ip, port in end.listening))
        stop.wait()
    finally:
        end.finalize()


def _shared(folder: Path, desc: CacheDesc) -> list[object]:
    """The tensors as files ``tensor-<n>``, made where they are missing. Raises OSError, ValueError for a small one."""
    folder.mkdir(parents=True, exist_ok=True)
    size = desc.blocks * desc.block
    tensors: list[object] = []
    for index in range(desc.num_tensors):
        place = folder / f"tensor-{index}"
        number = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            length = os.fstat(number).st_size
            if length == 0:
                os.ftruncate(number, size)
            elif length < size:
                raise ValueError(f"{place} has {length} bytes, {size} are needed: give its blocks or remove it")
            tensors.append(mmap.mmap(number, size))
        finally:
            os.close(number)
    return tensors


def _cluster(options: argparse.Namespace, stop: threading.Event) -> int | None:
    """The number of this cluster: as given, as the pod's name says, else as the orders do; None when stopped."""
    if options.cluster is not None:
        return int(options.cluster)
    if options.pod:
        namespace, slash, pod = options.pod.partition("/")
        if not slash or not namespace or not pod:
            raise ValueError(f"--pod {options.pod!r:.80} is no NAMESPACE/NAME")
        return cluster_number(namespace, pod)
    waiting = False
    while not stop.is_set():
        content = _orders(Path(options.folder))
        if content is not None:
            return wire.parse_end(options.folder, content.decode()).cluster
        if not waiting:
            waiting = True
            _log.info("waiting for orders, which give the number of this cluster", folder=options.folder)
        stop.wait(1.0)
    return None


def _orders(folder: Path) -> bytes | None:
    try:
        handle = hostfiles.open_folder(folder)
    except FileNotFoundError:
        return None
    try:
        return hostfiles.read(handle, wire.ORDERS_FILE, wire.MAX_FILE)
    finally:
        os.close(handle)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m belay.agents.datadist", description=__doc__)
    parser.add_argument("--folder", required=True, metavar="DIR", help="the folder shared with the node's agent")
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--cluster", type=int, help="number of this cluster (default: as the orders say)")
    number.add_argument("--pod", metavar="NAMESPACE/NAME", help="the number that follows from the pod's name")
    parser.add_argument("--role", choices=sorted(ROLES), default="mix")
    parser.add_argument("--listen", metavar="IP:PORT", help="take links here (default: only make them)")
    parser.add_argument("--sync", type=int, default=1000, metavar="MS", help="milliseconds one transfer may take")
    parser.add_argument("--model", type=int, default=0, help="which model the blocks belong to")
    parser.add_argument("--tensors", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=1024, help="blocks of each tensor")
    parser.add_argument("--block-bytes", type=int, default=4096)
    parser.add_argument(
        "--memory", metavar="DIR", help="blocks as files tensor-<n> in this folder, such as in /dev/shm"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
