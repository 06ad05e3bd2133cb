"""Optimizers of a user's own that wrap others, two optimizers, closures, and states of many classes. Further argument:
which."""

import sys
from collections import Counter, OrderedDict, defaultdict, deque

import torch
from torch.nn.parallel import DistributedDataParallel
from witness import numbers, steps, write

import belay_training as bt

kind = sys.argv[4]
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


class Around(torch.optim.Optimizer):
    """Keeps groups of its own, which it copies inwards; its state_dict is the inner one's."""

    def __init__(self, parameters, inner, **defaults):
        super().__init__(list(parameters), defaults)
        self.inner = inner([{"params": group["params"]} for group in self.param_groups], **defaults)

    def step(self, closure=None):
        for mine, its in zip(self.param_groups, self.inner.param_groups, strict=True):
            its["lr"] = mine["lr"]
        return self.inner.step(closure)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


class Slow(torch.optim.Optimizer):
    """Lookahead: slow weights in its state, groups shared with the fast one."""

    def __init__(self, fast):
        self.fast, self.turns = fast, 0
        super().__init__([p for group in fast.param_groups for p in group["params"]], {})
        self.param_groups = fast.param_groups
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.detach().clone()

    def step(self, closure=None):
        self.fast.step()
        self.turns += 1
        if self.turns % 3 == 0:
            for p, state in self.state.items():
                state["slow"].lerp_(p.detach(), 0.5)
                p.data.copy_(state["slow"])

    def state_dict(self):
        slow = [self.state[p]["slow"] for group in self.param_groups for p in group["params"]]
        return {"fast": self.fast.state_dict(), "slow": slow, "turns": self.turns}

    def load_state_dict(self, state):
        self.fast.load_state_dict(state["fast"])
        self.param_groups, self.turns = self.fast.param_groups, state["turns"]
        for p, slow in zip((p for group in self.param_groups for p in group["params"]), state["slow"], strict=True):
            self.state[p]["slow"].copy_(slow)


class Books:
    """State of many classes."""

    def __init__(self):
        self.state = {
            "recent": deque([0.0], maxlen=4),
            "counts": Counter(),
            "lists": defaultdict(list),
            "order": OrderedDict(z=1, a=2),
            "phase": 1 + 2j,
            "shape": torch.Size([2, 3]),
            "span": range(3, 9, 2),
            "mask": frozenset({1, 2}),
        }

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        for name, value in state.items():
            if type(value) is not type(self.state[name]):
                raise TypeError(f"{name} was a {type(self.state[name])} and came back as {type(value)}")
        self.state = state

    def see(self, step, loss):
        self.state["recent"].append(loss)
        self.state["counts"][step % 3] += 1
        self.state["lists"][step % 2].append(loss)
        self.state["phase"] *= 1j


class Unknown(Books):
    def state_dict(self):
        return {"lock": object()}


class Sparse(Books):
    def state_dict(self):
        return {"sparse": torch.eye(3).to_sparse()}


books = {"unknown": Unknown, "sparse": Sparse}.get(kind, Books)()
if kind == "around":
    optimizer = Around(model.parameters(), torch.optim.AdamW, lr=1e-2)
elif kind == "slow":
    optimizer = Slow(torch.optim.AdamW(model.parameters(), lr=1e-2))
elif kind == "closure":
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
else:
    optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-2)
second = torch.optim.SGD(model[2].parameters(), lr=1e-2, momentum=0.5)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


@bt.protect(model=model, optimizer=[optimizer, second], schedule=schedule, state={"books": books})
def train(run: bt.Run) -> None:
    ddp = DistributedDataParallel(model)
    for step in run.steps(steps):
        data = numbers(step, run.rank, 6, 8)

        def loss_of(data=data):
            optimizer.zero_grad()
            second.zero_grad()
            found = (ddp(data) - 1).square().mean()
            found.backward()
            return found

        if kind == "closure":
            with run.updating(step):
                loss = optimizer.step(loss_of)
        elif kind == "outside":
            loss = loss_of()
            optimizer.step()
            with run.updating(step):
                second.step()
        else:
            loss = loss_of()
            with run.updating(step):
                optimizer.step()
                second.step()
                schedule.step()
                books.see(step, step / 8)
        write(run.rank, step, loss.item() + optimizer.param_groups[0]["lr"] + sum(books.state["recent"]), model)


train()
