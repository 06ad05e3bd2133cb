"""Ranks that wait, on purpose or because of a fault, and a script's own errors. Further argument: which."""

import socket
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from witness import Language, language_loss, steps, words, write

import belay_training as bt

kind = sys.argv[4]
LONG = 8.0
model = Language()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def answer_of_a_slow_service() -> bytes:
    asked, service = socket.socketpair()
    threading.Timer(LONG, service.sendall, (b"done",)).start()
    return asked.recv(4)


def something_special(run: bt.Run) -> None:
    if kind == "mismatch":
        dist.recv(torch.zeros(3), 1 - run.rank)
    elif run.rank:
        return
    elif kind == "socket":
        answer_of_a_slow_service()
    elif kind == "sleep":
        time.sleep(LONG)
    elif kind == "idle":
        with run.idle():
            threading.Event().wait(LONG)
    elif kind == "forever":
        threading.Event().wait()
    elif kind == "words":
        raise RuntimeError("Interrupted: the gloo and NCCL of this model lost its Broken pipe")


@bt.protect(model=model, optimizer=optimizer)
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model)
    for step in run.steps(steps):
        if step == 3:
            something_special(run)
        optimizer.zero_grad()
        loss = language_loss(ddp, words(step, run.rank, 3, 7))
        loss.backward()
        with run.updating(step):
            optimizer.step()
        write(run.rank, step, loss.detach(), model)


train()
