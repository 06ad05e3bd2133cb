"""The model, its sharded optimizer with replicas, and the train loop with MindIO TFT's adaptation points (1 to 12)."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from mindio_ttp import framework_ttp as tft
from mindio_ttp.framework_ttp import Action, RepairType, ReportState

from belay.agents.training.compat.mindio.framework_api import framework

from .groups import Groups, connected, reduce, unless

WIDTH = 16
BATCH = 4


class Trainer:
    """One rank."""

    def __init__(self, plan: dict, rank: int, store_port: int, events: str) -> None:
        self.plan, self.rank = plan, rank
        self.world = list(range(plan["world"]))
        self.tp, self.pp, self.copies = plan["tp"], plan["pp"], plan["copies"]
        self.store_port = store_port
        self.store = dist.TCPStore("127.0.0.1", store_port, is_master=False, wait_for_workers=False)
        self._events = os.open(events, os.O_WRONLY | os.O_APPEND)
        self.stopped = threading.Event()
        self.groups: Groups | None = None
        self.step = 0
        self.scale = 1.0 / plan["batches"]
        self.again = self.done_once = False
        self.build_model()

    def say(self, what: str, **more) -> None:
        """A line in the story of the run."""
        line = {"t": time.monotonic(), "rank": self.rank, "pid": os.getpid(), "what": what} | more
        os.write(self._events, (json.dumps(line) + "\n").encode())

    # -- model and optimizer -------------------------------------------------------------------------------------

    def build_model(self) -> None:
        """One layer a stage, split by columns over tp: the same on every data-parallel rank."""
        place = self.world.index(self.rank)
        dp = len(self.world) // (self.tp * self.pp)
        stage, part = place // (self.tp * dp), place % self.tp
        seed = torch.Generator().manual_seed(100 * stage + part)
        self.weight = torch.randn(WIDTH, WIDTH // self.tp, generator=seed, dtype=torch.float64) / WIDTH
        self.momentum: torch.Tensor | None = None

    def own_shard(self) -> slice:
        """The rows whose optimizer state this rank holds."""
        rows = WIDTH // self.groups.shards
        return slice(self.groups.shard * rows, (self.groups.shard + 1) * rows)

    def batch(self, step: int, index: int) -> torch.Tensor:
        """Micro-batch ``index`` of ``step``: a function of the step, so the data iterator rolls back with it."""
        return torch.randn(
            BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + index), dtype=torch.float64
        )

    def forward_backward(self, step: int) -> tuple[torch.Tensor, float]:
        """Gradient and loss of this rank's micro-batches; stages hand activations on, and gradients back."""
        grad, total = torch.zeros_like(self.weight), 0.0
        groups = self.groups
        for index in range(groups.dp_index, self.plan["batches"], groups.dp):
            data = self.batch(step, index)
            if groups.pp_index > 0:
                self.receive(data, groups.pp_index - 1, index)
            out = torch.zeros(BATCH, WIDTH, dtype=torch.float64)
            columns = slice(groups.tp_index * self.weight.shape[1], (groups.tp_index + 1) * self.weight.shape[1])
            out[:, columns] = torch.tanh(data @ self.weight)
            reduce(groups.tp, out, self.stopped)
            if groups.pp_index < len(groups.pp_ranks) - 1:
                self.send(out, groups.pp_index + 1, index)
                back = torch.zeros_like(out)
                self.receive(back, groups.pp_index + 1, 1000 + index)
            else:
                back, total = 2 * (out - 0.1), total + float(((out - 0.1) ** 2).sum())
            local = back[:, columns] * (1 - out[:, columns] ** 2)
            grad += data.T @ local
            if groups.pp_index > 0:
                down = local @ self.weight.T
                reduce(groups.tp, down, self.stopped)
                self.send(down, groups.pp_index - 1, 1000 + index)
        return grad, total

    def send(self, tensor: torch.Tensor, stage: int, tag: int) -> None:
        """To the neighbour at ``stage``."""
        unless(self.stopped, self.groups.pp.send([tensor], stage, tag).wait)

    def receive(self, tensor: torch.Tensor, stage: int, tag: int) -> None:
        """From the neighbour at ``stage``."""
        unless(self.stopped, self.groups.pp.recv([tensor], stage, tag).wait)

    def reduce_gradients(self, grad: torch.Tensor, loss: float) -> tuple[torch.Tensor, float]:
        """Summed in the order of micro-batches, so that a smaller group gives the same bits is not asked for."""
        pair = torch.cat([grad.flatten(), torch.tensor([loss], dtype=torch.float64)])
        reduce(self.groups.dp_group, pair, self.stopped)
        pair *= self.scale
        return pair[:-1].view_as(grad), float(pair[-1])

    def update(self, grad: torch.Tensor) -> None:
        """Momentum on the own shard, then the shards are gathered."""
        rows = self.own_shard()
        if self.momentum is None:
            self.momentum = torch.zeros_like(self.weight[rows])
        self.momentum = 0.9 * self.momentum + grad[rows]
        fresh = torch.zeros_like(self.weight)
        fresh[rows] = self.weight[rows] - 0.05 * self.momentum
        reduce(self.groups.os_shard, fresh, self.stopped)
        self.weight = fresh

    def digest(self) -> str:
        """What the rank holds, in short."""
        return hashlib.sha256(self.weight.numpy().tobytes() + self.momentum.numpy().tobytes()).hexdigest()[:16]

    # -- callbacks -----------------------------------------------------------------------------------------------

    def rebuild(self, ranks=None) -> None:
        """Groups of this generation."""
        generation = framework.runner.machine.generation
        self.groups = self.meet(generation, self.copies)
        self.declare()

    def meet(self, generation: int, copies: int) -> Groups:
        """Groups with the other ranks; a stop ends the wait for them."""
        return Groups(self.store_port, generation, self.rank, self.world, self.tp, self.pp, copies, self.stopped)

    def declare(self) -> None:
        """Replica groups (adaptation point 3)."""
        info = [{"rank_list": self.groups.dp_ranks, "replica_cnt": self.copies, "replica_shift": 0}]
        tft.tft_set_optimizer_replica(self.rank, info)
        tft.tft_set_dp_group_info(self.rank, self.groups.dp_ranks)

    def register(self) -> None:
        """All callbacks (adaptation points 6 to 11)."""

        def stop(args, ctx):
            self.say("stop")
            self.stopped.set()
            Groups.free(self.others, self.plan["port"])

        def clean(is_uce, args, ctx):
            self.say("clean", uce=is_uce)
            self.disturb("clean", at=0)
            self.stopped.clear()  # here only: a stop may overtake the callbacks after this one
            if tft.tft_get_repair_type() == "retry":
                self.rebuild()
            return 0

        def rebuild(ranks, args, ctx):
            self.say("rebuild", ranks=ranks)
            self.rebuild()

        def repair(step, need_rebuild, error_ranks, info, args, ctx):
            self.say("repair", step=step, need_rebuild=need_rebuild, info=info)
            self.disturb("repair", at=0)
            self.exchange(info)

        def rollback(step, args, ctx):
            self.say("rollback", step=step)
            self.step = step

        def save(step, info, args, ctx):
            self.say("save", step=step, info=info)
            torch.save({"step": step, "weight": self.weight, "momentum": self.momentum},
                       Path(self.plan["folder"]) / f"saving-{self.groups.shard}-{self.rank}.pt")  # fmt: skip

        def rename(step, args):
            self.say("rename", step=step)
            folder = Path(self.plan["folder"])
            for path in folder.glob("saving-*.pt"):
                path.rename(folder / path.name.replace("saving", f"step{step}"))

        def smaller(dp_ranks, world, args, param):
            self.say("downgrade", dp=dp_ranks, world=world, param=param)
            self.world = list(world)
            self.copies = max(1, min(self.plan["copies"], len(dp_ranks)))
            generation = framework.runner.machine.generation
            self.groups = self.meet(generation, len(dp_ranks))
            self.step = tft.tft_get_repair_step()

        def larger(ranks, args, param):
            self.say("upgrade rebuild", ranks=ranks)
            self.world, self.copies = list(range(self.plan["world"])), self.plan["copies"]
            self.rebuild()

        tft.tft_register_stop_handler(stop)
        tft.tft_register_clean_handler(clean)
        tft.tft_register_rebuild_group_handler(rebuild)
        tft.tft_register_repair_handler(repair)
        tft.tft_register_rollback_handler(rollback)
        tft.tft_register_save_ckpt_handler(save)
        tft.tft_register_rename_handler(rename)
        tft.tft_register_exit_handler(lambda ctx: self.say("exit"))
        tft.tft_register_stream_sync_handler(lambda: self.say("sync"))
        tft.tft_register_zit_downgrade_rebuild_handler(smaller)
        tft.tft_register_zit_upgrade_rebuild_handler(larger)
        tft.tft_register_zit_upgrade_repair_handler(lambda step, need, errors, info, args, param: self.exchange(info))
        tft.tft_register_zit_upgrade_rollback_handler(lambda step, args, param: rollback(step, args, None))

    def exchange(self, info: dict) -> None:
        """Weights and optimizer state from donors to receivers (adaptation point 10), by way of the store. A donor
        does not wait; a receiver waits until the state is there or a stop comes.
        """
        if info["repair_type"] in (RepairType.RT_LOAD_CKPT.value, RepairType.RT_LOAD_REBUILD.value):
            raise RuntimeError("there is no periodic checkpoint")
        for source, target in zip(info["src"], info["dst"], strict=True):
            key = f"{framework.runner.machine.generation}/{source}/{target}"
            if info["repair_type"] == RepairType.RT_SEND.value:
                self.store.set(key, torch.cat([self.weight, self.momentum]).numpy().tobytes())
            else:
                while not self.store.check([key]):
                    if self.stopped.wait(0.001):
                        raise RuntimeError("FORCE STOP")
                state = torch.frombuffer(bytearray(self.store.get(key)), dtype=torch.float64)
                state = state.view(-1, self.weight.shape[1])
                self.weight, self.momentum = state[:WIDTH].clone(), state[WIDTH:].clone()

    # -- the loop ------------------------------------------------------------------------------------------------

    def disturb(self, where: str, at: int = 1) -> None:
        """What the plan has in store for this rank at this step: for its first process, or for the second one."""
        for act in self.plan["acts"]:
            due = act["step"] == self.step + 1 or (not at and where == act["where"])
            if act["rank"] != self.rank or act["where"] != where or not due or act.get("again", False) != self.again:
                continue
            if self.done_once:
                return
            mark = Path(self.plan["folder"]) / f"done-{self.rank}-{where}"
            if mark.exists():
                return
            mark.touch()
            self.done_once = True
            self.say(act["do"], step=self.step)
            if act["do"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif act["do"] == "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                raise RuntimeError(act["text"])

    def one_step(self) -> None:
        """A step."""
        self.disturb("begin")
        time.sleep(self.plan["pause"])
        grad, loss = self.forward_backward(self.step + 1)
        self.disturb("reduce")
        grad, loss = self.reduce_gradients(grad, loss)
        tft.tft_start_updating_os()
        self.disturb("update")
        self.update(grad)
        self.step += 1
        tft.tft_end_updating_os(self.step)
        self.say("step", step=self.step, loss=loss, digest=self.digest())
        tft.tft_pause_train(self.step)

    def run(self) -> None:
        """From the start of the process to its end."""
        plan = self.plan
        if self.rank in [plan.get("controller", -1), *plan.get("backups", [])]:
            # backups live on other hosts, which are other addresses here
            host = "127.0.0.1" if self.rank == plan.get("controller") else f"127.0.0.{self.rank + 1}"
            tft.tft_init_controller(self.rank, plan["world"], False, plan["arf"], plan["zit"])
            tft.tft_start_controller(host, plan["port"], False)
        tft.tft_init_processor(self.rank, plan["world"], False, False, "", plan["uce"], plan["arf"], plan["zit"])
        tft.tft_start_processor("127.0.0.1", plan["port"])
        self.others = connected()
        self.register()
        again = tft.tft_is_reboot_node()
        self.say("start", again=again, kind=tft.tft_get_reboot_type())
        self.again = again
        if again:
            tft.tft_report_error(ReportState.RS_INIT_FINISH.value)
            assert tft.tft_wait_next_action() == Action.RETRY.value
        else:
            self.rebuild()
        arrived = [again]

        @tft.tft_exception_handler
        def train(args):
            if arrived[0]:
                arrived[0] = False
                raise RuntimeError("ARF FINISH")
            while self.step < plan["steps"]:
                if self.stopped.is_set():
                    raise RuntimeError("FORCE STOP")
                try:
                    self.one_step()
                except RuntimeError as error:
                    known = ("FORCE STOP", "STEP FINISH", "HCCL", "UCE", "PRECISION", "planned")
                    if any(text in str(error) for text in known):
                        raise
                    # a broken connection: the controller stops us soon
                    if not self.stopped.wait(60):
                        raise
                    raise RuntimeError("FORCE STOP") from error

        train({"trainer": self.rank})
        self.say("done")
