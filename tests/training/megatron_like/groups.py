"""Tensor-, pipeline- and data-parallel groups of one generation, on gloo; blocked collectives are freed by closing the
groups' connected sockets.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent import futures
from datetime import timedelta

import torch.distributed as dist

KEPT = []  # an old group may still write into its tensors, and its end can block: it stays


def connected() -> set[tuple[int, int]]:
    """The TCP connections of this process, as (descriptor, inode)."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add((int(name), int(target[8:-1])))
    return found


class Groups:
    """The groups of ``rank`` among ``ranks`` (world numbers), tp fastest, then dp, then pp.

    They meet at the store at ``store_port``, by a connection of their own: a meeting in vain blocks it.
    """

    def __init__(
        self, store_port: int, generation: int, rank: int, ranks: list[int], tp: int, pp: int, copies: int,
        stopped: threading.Event,
    ) -> None:  # fmt: skip
        store = unless(stopped, lambda: dist.TCPStore("127.0.0.1", store_port, is_master=False, wait_for_workers=False))
        dp = len(ranks) // (tp * pp)
        place = ranks.index(rank)
        self.tp_index, self.dp_index, self.pp_index = place % tp, place // tp % dp, place // (tp * dp)
        self.dp, self.rank = dp, rank

        def at(t: int, d: int, p: int) -> int:
            return ranks[t + tp * (d + dp * p)]

        self.tp_ranks = [at(t, self.dp_index, self.pp_index) for t in range(tp)]
        self.dp_ranks = [at(self.tp_index, d, self.pp_index) for d in range(dp)]
        self.pp_ranks = [at(self.tp_index, self.dp_index, p) for p in range(pp)]
        distance = max(1, dp // copies)
        first = self.dp_index // distance * distance
        self.shard, self.shards = self.dp_index % distance, distance
        self.shard_ranks = self.dp_ranks[first : first + distance]
        self.made = []

        def make(name: str, members: list[int]):
            if len(members) == 1:
                return None
            text = f"{generation}/{name}/{'-'.join(map(str, members))}"
            group = unless(
                stopped,
                lambda: dist.ProcessGroupGloo(
                    dist.PrefixStore(text, store), members.index(rank), len(members), timedelta(seconds=60)
                ),
            )
            KEPT.append(group)
            self.made.append(group)
            return group

        self.tp = make("tp", self.tp_ranks)
        self.dp_group = make("dp", self.dp_ranks)
        self.pp = make("pp", self.pp_ranks)
        self.os_shard = make("shard", self.shard_ranks)
        self.world = make("world", ranks)

    @staticmethod
    def free(others: set[tuple[int, int]], port: int) -> None:
        """End whatever waits in a collective: every connection but ``others`` and the controller's at ``port``."""
        for entry in connected() - others:
            try:
                with socket.socket(fileno=os.dup(entry[0])) as found:
                    found.getpeername()
                    if found.getsockname()[1] != port:
                        found.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def unless(stopped: threading.Event, work):
    """The result of ``work()``, done in a thread; RuntimeError, leaving the thread behind, once ``stopped`` is set."""
    done = futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not done.done():
        if stopped.is_set():
            KEPT.append(done)
            raise RuntimeError("FORCE STOP")
        time.sleep(0.0003)
    return done.result()


def reduce(group, tensor, stopped: threading.Event) -> None:
    """Sum over a group. About one rank in a hundred stays blocked although its connections are closed; looking at
    ``stopped`` is its way out.
    """
    if group is None:
        return
    work = group.allreduce([tensor])
    while not work.is_completed():
        if stopped.is_set():
            KEPT.append((work, tensor))
            raise RuntimeError("FORCE STOP")
        time.sleep(0.0003)
    work.wait()
