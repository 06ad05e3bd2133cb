"""The native contract without a launcher: what it refuses and how, and one rank alone."""

from __future__ import annotations

import collections
import contextlib
import importlib.util
import json
import os
import random
import secrets
import socket
import statistics
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from tests import needs

if importlib.util.find_spec("torch") is None:
    if needs.required():
        raise RuntimeError("PyTorch is not installed: run make venv-training")
    pytest.skip("PyTorch is not installed: run make venv-training", allow_module_level=True)

import belay_training as bt
import torch

from belay.agents.training.train.decide.donors import shard_text
from belay.agents.training.train.decide.rendezvous import Rendezvous
from belay.agents.training.train.frames import FrameDecoder, FrameError, pack
from belay.agents.training.train.home import Home
from belay.agents.training.train.page import Page
from belay.agents.training.train.protocol import Assign, Plan
from belay.agents.training.train.values import join, split
from belay.agents.training.train.worker import buffers, repair
from belay.agents.training.train.worker.buckets import Buckets, agreed
from belay.agents.training.train.worker.control import Control
from belay.agents.training.train.worker.encoding import decode, described, encode
from belay.agents.training.train.worker.proof import Proof
from belay.agents.training.train.worker.protect import _Session
from belay.agents.training.train.worker.protected import Protected
from belay.agents.training.train.worker.randomness import Randomness, step_seed
from belay.agents.training.train.worker.run import Run


def a_run(protected: Protected) -> Run:
    return Run(0, 1, 0, 1, protected, Randomness(kept=False), lambda: None, None)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "nothing to protect"),
        ({"model": 3}, "model is a int; give a torch.nn.Module"),
        ({"model": [torch.nn.Linear(1, 1), "x"]}, "model/1 is a str"),
        ({"optimizer": object()}, "optimizer is a object"),
        ({"state": [1]}, "give a dict of names"),
        ({"state": {"seen": 3}}, "'seen' is a int; give tensors"),
        ({"late": True, "model": torch.nn.Linear(1, 1)}, "give the model"),
        ({"model": torch.nn.Linear(1, 1), "checkpoint": "x"}, "latest() and load(step)"),
    ],
)
def test_wrong_types_are_refused_at_the_decorator(given: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as error:
        bt.protect(**given)
    assert text in str(error.value)


@pytest.mark.parametrize("given", [{"random": "x"}, {"timeout": 0}, {"timeout": "1"}, {"timeout": True}])
def test_wrong_values_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        bt.protect(model=torch.nn.Linear(1, 1), **given)


def test_a_window_of_another_step_and_a_second_window_are_refused() -> None:
    run = a_run(Protected(torch.nn.Linear(1, 1), None, None, None, 0))
    run._protected.done = 0
    for step in run.steps(1):
        with pytest.raises(bt.TrainingError, match="the step under way is 0"):
            run.updating(7)
        with run.updating(step):
            pass
        with pytest.raises(bt.TrainingError, match="a second time"):
            run.updating(step)
    with pytest.raises(TypeError):
        list(run.steps(True))


def test_an_exception_in_the_window_leaves_the_state_torn_and_the_step_undone() -> None:
    protected = Protected(torch.nn.Linear(1, 1), None, None, None, 0)
    protected.done = 4
    run = a_run(protected)
    with pytest.raises(KeyError):
        for step in run.steps(6):
            with run.updating(step):
                raise KeyError
    assert (protected.done, protected.whole) == (4, False)


def test_steps_without_a_window_count_together_with_the_next_update() -> None:
    # their gradients are lost with a rank: after a fault they are done again
    protected = Protected(torch.nn.Linear(1, 1), None, None, None, 0)
    protected.done = 0
    run = a_run(protected)
    held = []
    for step in run.steps(6):
        if step == 3:
            with run.updating(step):
                pass
        held.append((protected.done, run.done))
    assert held == [(0, 0), (0, 1), (0, 2), (4, 4), (4, 4), (4, 5)]
    assert (protected.done, run.done) == (4, 6)
    assert list(a_run(protected).steps(6)) == [4, 5]


def test_parameters_that_are_changed_between_windows_are_refused() -> None:
    model = torch.nn.Linear(1, 1)
    protected = Protected(model, None, None, None, 0)
    protected.done = 0
    run = a_run(protected)
    with pytest.raises(bt.TrainingError, match=r"before run.updating\(1\)"):
        for step in run.steps(3):
            with run.updating(step), torch.no_grad():
                model.weight.add_(1)
            with torch.no_grad():
                model.bias.add_(1)


def test_what_a_forward_pass_of_an_unfinished_step_changed_in_buffers_is_undone() -> None:
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("constant", torch.ones(3))
    protected = Protected(model, None, None, None, 0)
    protected.done = 0
    run = a_run(protected)
    for step in run.steps(2):
        model(torch.randn(4, 2))
        with run.updating(step):
            pass
    expected = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.randn(4, 2))
    assert not torch.equal(model.running_mean, expected["running_mean"])
    protected.rewind()
    assert all(torch.equal(buffer, expected[name]) for name, buffer in model.named_buffers())
    assert protected.whole


def test_a_large_buffer_that_changed_unseen_before_makes_the_state_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "SMALL", 0)
    monkeypatch.setattr(buffers, "TINY", 0)
    model = torch.nn.BatchNorm1d(2)
    protected = Protected(model, None, None, None, 0)
    protected.settled()
    model.num_batches_tracked += 1
    protected.rewind()
    assert not protected.whole


class Wrapping(torch.optim.Optimizer):
    """Groups of its own, and the state of the inner optimizer only: like ``ZeroRedundancyOptimizer``."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.optim = torch.optim.AdamW([p for group in self.param_groups for p in group["params"]], lr=0.1)

    def step(self, closure: Any = None) -> None:
        for mine, inner in zip(self.param_groups, self.optim.param_groups, strict=True):
            inner["lr"] = mine["lr"]
        self.optim.step(closure)

    def state_dict(self) -> dict[str, Any]:
        return self.optim.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optim.load_state_dict(state)


def test_groups_of_an_optimizer_that_wraps_another_are_part_of_the_state() -> None:
    def made() -> tuple[torch.nn.Module, Wrapping, Any]:
        model = torch.nn.Linear(3, 2)
        optimizer = Wrapping(model.parameters())
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step(model: torch.nn.Module, optimizer: Wrapping, schedule: Any) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        schedule.step()

    donor, receiver = made(), made()
    step(*donor)
    step(*donor)
    meta, tensors = Protected(*donor, None, 0).capture()
    Protected(*receiver, None, 1).restore(meta, [tensor.clone() for tensor in tensors])
    for parts_of in (donor, receiver):
        step(*parts_of)
    assert receiver[1].param_groups[0]["lr"] == donor[1].param_groups[0]["lr"] == 0.1 * 0.5**3
    assert torch.equal(receiver[0].weight, donor[0].weight)


def test_values_come_back_in_their_class() -> None:
    values = [
        collections.deque([1, torch.ones(2)], maxlen=3),
        collections.Counter("aab"),
        collections.defaultdict(list, {1: [2]}),
        collections.OrderedDict(b=1, a=2),
        torch.Size([2, 3]),
        (1, 2.5, None, True, "x"),
        {1, 2},
        frozenset({3}),
        range(1, 9, 2),
        1 + 2j,
        b"bytes",
        torch.float16,
        float("inf"),
    ]
    tensors: list[torch.Tensor] = []
    meta = json.loads(json.dumps(encode(values, tensors)))
    found = decode(meta, tensors)
    assert [type(one) for one in found] == [type(one) for one in values]
    assert found[0].maxlen == 3 and found[2].default_factory is list
    assert str(found) == str(values)
    assert [kind[1] for kind in described(meta, [])] == [[2]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"at": [torch.eye(2).to_sparse()]}, r"state\['at'\]\[0\] is a torch.sparse_coo tensor"),
        ({"at": torch.zeros(1, device="meta")}, "has no values"),
        ({"at": collections.defaultdict(lambda: 0)}, "defaultdict of '<lambda>'"),
        ({"at": type("Own", (dict,), {})()}, "holds a .*Own"),
    ],
)
def test_state_that_cannot_be_copied_is_refused_at_protect(value: dict[str, Any], text: str) -> None:
    class Holder:
        def state_dict(self) -> dict[str, Any]:
            return value

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError

    with pytest.raises(bt.TrainingError, match=text):
        bt.protect(state={"state": Holder()})


def test_ranks_with_other_parameters_or_of_other_parts_hold_no_copies() -> None:
    def shard(model: torch.nn.Module, part: str = "") -> str:
        return Protected(model, None, None, None, 0, part).shard()

    assert shard(torch.nn.Linear(2, 3)) == shard(torch.nn.Linear(2, 3))
    assert shard(torch.nn.Linear(2, 3)) != shard(torch.nn.Linear(3, 2))
    assert shard(torch.nn.Linear(2, 3), "stage 0") != shard(torch.nn.Linear(2, 3), "stage 1")
    assert shard_text(shard(torch.nn.Linear(2, 3))) == "the whole state"
    assert shard_text(shard(torch.nn.Linear(2, 3), "stage 0")) == "stage 0"


def test_random_numbers_of_a_repeated_step_are_the_same() -> None:
    torch.manual_seed(5)
    randomness = Randomness(kept=False)
    randomness.begin(3)
    first = (torch.rand(3).tolist(), random.random())
    torch.rand(100)
    randomness.begin(4)
    assert torch.rand(3).tolist() != first[0]
    randomness.begin(3)
    assert (torch.rand(3).tolist(), random.random()) == first


def test_nothing_of_an_earlier_step_is_left_in_a_generator() -> None:
    numpy = pytest.importorskip("numpy")
    randomness = Randomness(kept=False)
    randomness.begin(3)
    # each makes two numbers and keeps the second
    first = (random.gauss(), numpy.random.normal())
    randomness.begin(3)
    assert (random.gauss(), numpy.random.normal()) == first


def test_the_median_of_a_page_is_that_of_the_last_steps_of_a_generation() -> None:
    descriptor = Page.create()
    page = Page(descriptor)
    os.close(descriptor)
    assert page.read() == (-1, 0, 0)
    for count in range(1, 46):
        page.write(count, 7, 100 if count < 36 else 10 * count, 3, 1, count)
        assert page.read() == (
            count,
            7,
            statistics.median_high([100 if n < 36 else 10 * n for n in range(1, count + 1)][-20:]),
        )
    page.write(46, 8, 5, 8, 2, 1)
    page.write(47, 9, 6, 8, 2, 2)
    assert page.read() == (47, 9, 6)
    assert page.first() == (2, 8)


def test_results_are_compared_and_kept_when_the_pace_says_although_it_changes() -> None:
    model, optimizer, schedule = parts()
    protected = Protected(model, optimizer, schedule, None, 0)
    sent: list[tuple[int, bool]] = []
    proof = Proof(lambda said: sent.append((said.done, said.whole is not None)))

    def through(last: int, pace: list[int]) -> list[tuple[int, bool]]:
        sent.clear()
        while protected.done < last:
            # updates that are two steps apart
            protected.done += 2
            proof.updated(protected, pace, {}, 1)
        return list(sent)

    protected.done = 0
    proof.enter(0)
    assert through(20, [5, 10, -1, 0, 0]) == [(2, True), (6, False), (10, True), (16, False), (20, True)]
    assert through(26, [0, 0, 10, 0, 0]) == []
    assert through(34, [3, 0, 10, 0, 0]) == [(28, False), (30, False), (34, False)]
    assert through(44, [-1, -1, 10, 0, 0]) == []
    proof.enter(40)
    protected.done = 40
    assert through(44, [0, 4, -1, 0, 0]) == [(42, True), (44, True)]


def test_a_seed_that_the_function_sets_before_its_steps_is_that_of_all_entries() -> None:
    def drawn(at: int) -> list[float]:
        randomness.enter(at)
        torch.manual_seed(5)
        randomness.begin(at)
        return torch.rand(3).tolist()

    torch.manual_seed(1)
    randomness = Randomness(kept=False)
    first = drawn(3)
    # another process, which was forked with another seed
    torch.manual_seed(2)
    randomness = Randomness(kept=False)
    assert drawn(3) == first
    torch.manual_seed(9)
    randomness.begin(4)
    own = torch.rand(3).tolist()
    torch.manual_seed(8)
    randomness.begin(4)
    assert torch.rand(3).tolist() == own, "a seed within a step is of that step only"
    assert drawn(3) == first


def test_state_is_copied_bit_for_bit_and_nothing_is_pickled() -> None:
    model, optimizer, schedule = parts()
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
        schedule.step()
    giver = Protected(model, optimizer, schedule, {"seen": torch.tensor([3])}, 0)
    meta, tensors = giver.capture()
    other = parts()
    taker = Protected(*other, {"seen": torch.tensor([0])}, 1)
    taker.restore(json.loads(json.dumps(meta)), [tensor.clone() for tensor in tensors])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other[0].parameters(), strict=True))
    assert other[2].state_dict() == schedule.state_dict()
    mine, theirs = (one.state_dict()["state"] for one in (optimizer, other[1]))
    assert all(torch.equal(mine[k][n], theirs[k][n]) for k in mine for n in mine[k])


def test_a_donor_of_another_model_is_refused_with_the_names() -> None:
    giver = Protected(torch.nn.Linear(1, 1, bias=False), None, None, None, 0)
    taker = Protected(torch.nn.Linear(1, 1), None, None, None, 1)
    with pytest.raises(bt.TrainingError, match=r"model\.bias"):
        taker.restore(*giver.capture())


def test_state_that_cannot_be_copied_is_named() -> None:
    with pytest.raises(bt.TrainingError, match=r"state\['a'\]\[1\] holds a builtins.object"):
        encode({"a": [1, object()]}, [])
    with pytest.raises(ValueError, match="evil"):
        decode({"evil": 1}, [])


def test_a_foreign_client_is_detected_before_memory_is_allocated() -> None:
    with pytest.raises(FrameError, match="not our protocol"):
        FrameDecoder().feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(FrameError, match="not JSON"):
        FrameDecoder().feed(b"\0\0\0\1\0\0\0\0x")
    frames = FrameDecoder()
    data = pack({"t": "a"}, b"xy")
    assert [message for at in range(len(data)) for message in frames.feed(data[at : at + 1])] == [({"t": "a"}, b"xy")]
    assert split(join([b"", b"ab"])) == [b"", b"ab"]
    with pytest.raises(ValueError):
        split(b"\xff\xff\xff\xff")


def test_keys_of_an_older_generation_are_gone_and_waiters_get_theirs() -> None:
    store = Rendezvous()
    store.begin(2)
    assert store.ask("1/1", 7, 2, "get", ["a", "b"], []) == []
    store.ask("0/1", 1, 2, "set", ["a"], [b"x"])
    (own, waited) = store.ask("0/1", 2, 2, "set", ["b"], [b"y"])
    assert (own.asked, waited.member, waited.asked, waited.values) == (2, "1/1", 7, [b"x", b"y"])
    store.begin(3)
    assert "3 is current" in store.ask("0/1", 3, 2, "get", ["a"], [])[0].error
    assert store.ask("0/1", 4, 3, "check", ["a"], [])[0].number == 0


def test_one_rank_alone_trains_without_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    model, optimizer, schedule = parts()
    seen = []

    @bt.protect(model=model, optimizer=optimizer, schedule=schedule)
    def train(run: bt.Run, n: int) -> str:
        for step in run.steps(n):
            assert torch.distributed.get_world_size() == run.world_size == 1
            model(torch.ones(1, 3)).sum().backward()
            with run.updating(step):
                optimizer.step()
                schedule.step()
            seen.append(step)
        return "trained"

    assert train(3) == "trained"
    assert seen == [0, 1, 2]
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("rank", [0, 1])
def test_that_nothing_is_protected_is_said_by_one_rank_of_a_plain_torchrun(
    rank: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(repair.dist, "init_process_group", lambda *_: None)
    model = torch.nn.Linear(1, 1)
    assert bt.protect(model=model)(lambda run: list(run.steps(2)))() == [0, 1]
    assert capfd.readouterr().err.count("faults are not repaired: start the script by belay train") == (rank == 0)


def test_ranks_whose_peers_are_all_gone_use_the_same_buckets_or_none() -> None:
    first: list[list[int] | None] = [[2, 0, 1]]
    other: list[list[int] | None] = [[0, 1, 2]]
    assert agreed([first, other], 1) == other
    assert agreed([[], first, first], 0) == first
    assert agreed([[], first, other], 1) == []
    assert agreed([[], []], 0) == []


def test_an_order_of_buckets_counts_only_with_a_finished_step() -> None:
    heard: list[list[list[int] | None]] = []
    buckets = Buckets.__new__(Buckets)
    buckets.__dict__.update(orders=[], _pending={}, _made=[], _hooks=[], _learned=lambda: heard.append(buckets.orders))
    model = torch.nn.Linear(2, 1)
    buckets._learn(1, list(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    assert buckets.orders == []
    # the step is done again by all ranks, some of which had not come so far
    buckets.enter(7)
    buckets.finished()
    assert (buckets.orders, heard) == ([], [])
    buckets._learn(1, list(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    buckets.finished()
    assert heard == [[None, buckets.orders[1]]] and sorted(buckets.orders[1] or ()) == [0, 1]


def test_a_rank_has_the_order_of_buckets_before_it_enters_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, schedule = parts()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    donor = Protected(model, optimizer, schedule, None, 0)
    sent: list[torch.Tensor] = []

    def taken(tensor: torch.Tensor, _: int) -> None:
        tensor.copy_(sent.pop(0))

    monkeypatch.setattr(repair.dist, "send", lambda tensor, _: sent.append(tensor.clone()))
    monkeypatch.setattr(repair.dist, "recv", taken)
    repair.send_state(donor, 1, 5)
    fresh = Protected(*parts(), None, 1)

    def interrupted(key: str) -> bytes:
        raise bt.Interrupted(f"generation 2 is over before {key} is there")

    session = _Session.__new__(_Session)
    session.rank, session.world = 1, 2
    store = types.SimpleNamespace(get=interrupted)
    session.groups = types.SimpleNamespace(form=lambda generation: types.SimpleNamespace(store=store))  # type: ignore[assignment]
    session.buckets = types.SimpleNamespace(orders=[])  # type: ignore[assignment]
    session.loaders = types.SimpleNamespace(records={})  # type: ignore[assignment]
    ours, theirs = socket.socketpair()
    session.control = Control(ours)
    session.proof = Proof(session.control.send)
    plan = Plan(2, 5, {1: 0}, checkpoint=False, back=False, pace=(), sharded=False)
    with pytest.raises(bt.Interrupted, match="orders/0"):
        session._hand_over(plan, 2)
    assert fresh.done < 5

    monkeypatch.setattr(store, "get", lambda key: b"[[1, 0]]" if "orders" in key else b'{"0": [4, 1]}')
    # before the function is entered: it may make its DDP before it says what is protected
    session._hand_over(plan, 3)
    assert (session.buckets.orders, session.loaders.records) == ([[1, 0]], {"0": [4, 1]})
    repair.send_state(donor, 1, 5)
    session._restore(plan, fresh, 5, 3)
    assert torch.equal(next(iter(fresh.models.values())).weight, model.weight)
    assert (fresh.whole, fresh.done) == (True, 5)
    # left with the agent, once
    repair.send_state(donor, 1, 5)
    session._restore(plan, fresh, 5, 4)
    assert FrameDecoder().feed(theirs.recv(1 << 16)) == [({"t": "orders"}, b"[[1, 0]]")]
    ours.close()
    theirs.close()


def test_orders_that_a_predecessor_left_are_left_with_the_next_agent_too() -> None:
    name = f"belay-test-{os.getpid()}-{secrets.token_hex(4)}"
    found: list[Any] = []
    with contextlib.ExitStack() as stack:
        agent = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        agent.bind("\0" + name)
        agent.listen(1)

        def take_over() -> None:
            line, _ = agent.accept()
            with line:
                found.append(json.loads(socket.recv_fds(line, 1 << 16, 1)[0])["rank"])
                line.sendall(b"+")
                decoder = FrameDecoder()
                while len(found) < 2:
                    found.extend(decoder.feed(line.recv(1 << 16)))

        page = os.open("/dev/null", os.O_RDONLY)
        control = Control(stack.enter_context(socket.socket()), page, Home(name, os.getpid()))
        control._take(Assign(1, 1, 2, 2, 3, "", {}).message(), b"")
        control._take({"t": "orders"}, b"[[1, 0]]")
        thread = threading.Thread(target=take_over)
        thread.start()
        control._come_back()
        thread.join(30)
        stack.enter_context(control._sock)
        os.close(control._page)
    assert found == [1, ({"t": "orders"}, b"[[1, 0]]")]


def test_a_fault_while_others_still_build_their_model_leaves_this_rank_what_it_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # in a function that makes its objects itself, all wait for a process that was replaced: a second one may end then
    session = _Session.__new__(_Session)
    ours, theirs = socket.socketpair()
    session.control = Control(ours)
    session.proof = Proof(session.control.send)
    session.rank, session.world, session.late, session.periodic, session.entries = 1, 2, True, None, 0
    session._began = session._planned = session._formed = 0.0
    session.buckets = types.SimpleNamespace(orders=[], repaired=lambda _: None)  # type: ignore[assignment]
    session.loaders = types.SimpleNamespace(records={}, enter=lambda: None)  # type: ignore[assignment]
    held = Protected(*parts(), None, 1)
    held.done, session.protected = 9, held

    def interrupted(found: list[Any], mine: str) -> None:
        raise bt.Interrupted("generation 2 of the training is over, 3 has begun")

    plan = Plan(2, 9, {}, checkpoint=False, back=False, pace=(), sharded=False)
    monkeypatch.setattr(repair.dist, "all_gather_object", interrupted)
    with pytest.raises(bt.Interrupted):
        session._adopt(plan, 2, Protected(*parts(), None, 1))
    assert session.protected is held and (held.done, held.whole) == (9, True)

    monkeypatch.setattr(
        repair.dist, "all_gather_object", lambda found, mine: found.__setitem__(slice(None), [mine] * 2)
    )
    made = Protected(*parts(), None, 1)
    session._adopt(plan, 3, made)
    assert session.protected is made and (made.done, made.whole) == (9, True)
    assert all(map(torch.equal, made.weights(), held.weights()))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_a_seed_stays_the_script_s_when_entries_end_before_their_first_step(entries: int) -> None:
    torch.manual_seed(2)
    randomness = Randomness(kept=False)
    # a rank in the place of a lost one; further faults come while its function still makes the model
    for _ in range(entries):
        randomness.enter(7)
        torch.manual_seed(5)
    randomness.begin(7)
    assert randomness.seed == 5
    assert torch.initial_seed() == step_seed(5, 7)
