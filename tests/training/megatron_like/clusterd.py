"""ClusterD as a script: the controller of rank -1 with its four callbacks, which answer at once as the plan says."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import torch.distributed as dist
from mindio_ttp import controller_ttp as ttp

from belay.agents.training.compat.mindio.controller_api import host


class ClusterD:
    """Answers reports; writes orders to start and kill ranks for the launcher."""

    def __init__(self, plan: dict, events: str, orders: int, ports: int) -> None:
        self.plan, self.orders, self.ports = plan, orders, ports
        self.events = os.open(events, os.O_WRONLY | os.O_APPEND)
        self.strategies = list(plan["strategies"])
        self.known: set[tuple] = set()
        self.replaced: set[int] = set()

    def say(self, what: str, **more) -> None:
        """A line in the story of the run."""
        os.write(self.events, (json.dumps({"t": time.monotonic(), "rank": -1, "what": what} | more) + "\n").encode())

    def order(self, what: str, rank: int) -> None:
        """Notify the launcher."""
        os.write(self.orders, f"{what} {rank}\n".encode())

    def serve(self) -> None:
        """Until killed."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        plan = self.plan
        if plan.get("controller", -1) == -1:
            for name in ("report_fault_ranks", "report_stop_complete", "report_strategies", "report_result"):
                if plan.get("clusterd", True):
                    ttp.tft_register_mindx_callback(name, getattr(self, name))
            ttp.tft_init_controller(-1, plan["world"], False, plan["arf"], plan["zit"])
            ttp.tft_start_controller("127.0.0.1", plan["port"], False)
        os.write(self.ports, str(store.port).encode())
        for act in plan.get("orders", []):
            threading.Thread(target=self.later, args=(act,), daemon=True).start()
        threading.Event().wait()

    def later(self, act: dict) -> None:
        """An order of an operator, once every rank reached a step."""
        wanted = f'"step": {act["step"]},'
        while wanted not in Path(self.plan["events"]).read_text():
            time.sleep(0.005)
        self.say("order", **act)
        if act["do"] == "pause":
            ttp.tft_notify_controller_stop_train({}, "pause", 30)
        elif act["do"] == "hot switch":
            ttp.tft_notify_controller_prepare_action("hot switch", {act["target"]: 1})
            time.sleep(0.05)
            self.order("start", act["target"])
        elif act["do"] == "upgrade":
            while host.server.machine.state.value != "downgrade":
                time.sleep(0.005)
            for rank in sorted(host.server.machine.isolated):
                self.order("kill", rank)
                time.sleep(0.1)
                self.order("start", rank)
            ttp.tft_notify_controller_change_strategy("upgrade", json.dumps({"scale-out-strategy": "DP"}))

    def report_fault_ranks(self, faults: dict, codes: dict) -> int:
        """Training is to stop; another report of the same faults is what it is."""
        self.say("report_fault_ranks", faults=faults, codes=codes)
        key = (tuple(sorted(faults)), "stop")
        if key not in self.known:
            self.known.add(key)
            ttp.tft_notify_controller_stop_train(faults, "stop", 0)
        if self.replaced:
            self.ensure(faults)
        return 0

    def ensure(self, faults: dict) -> None:
        """A process for each that was lost in the repair of others."""
        for rank, kind in faults.items():
            if kind == 1:
                self.order("ensure", rank)
                self.replaced.add(rank)

    def replace(self, faults: dict) -> None:
        """New processes for those that were lost; a report that comes again must not end the new ones."""
        self.ensure({rank: kind for rank, kind in faults.items() if rank in self.replaced})
        for rank, kind in faults.items():
            if kind == 1 and rank not in self.replaced:
                self.order("kill", rank)
                self.order("start", rank)
                self.replaced.add(rank)

    def report_stop_complete(self, code: int, msg: str, faults: dict) -> int:
        """Faults of all; a pause goes on after a moment."""
        self.say("report_stop_complete", code=code, msg=msg, faults=faults)
        if any(act["do"] == "pause" for act in self.plan.get("orders", [])) and not faults:
            time.sleep(0.3)
            ttp.tft_notify_controller_change_strategy("continue")
        else:
            ttp.tft_notify_controller_on_global_rank(faults, 1)
        return 0

    def report_strategies(self, faults: dict, strategies: list) -> int:
        """The next one of the plan; the last one again for what comes after."""
        self.say("report_strategies", faults=faults, strategies=strategies)
        choice = self.strategies[0] if self.strategies else "exit"
        self.strategies = self.strategies[1:] or self.strategies
        if choice == "recover":
            self.replace(faults)
        params = json.dumps({"scale-in-strategy": "DP"}) if choice == "downgrade" else ""
        ttp.tft_notify_controller_change_strategy(choice, params)
        return 0

    def report_result(self, code: int, msg: str, faults: dict, strategy: str) -> int:
        """How it went; after a dump the job leaves."""
        self.say("report_result", code=code, msg=msg, faults=faults, strategy=strategy)
        self.known.clear()
        self.replaced.clear()
        if strategy == "dump":
            ttp.tft_notify_controller_change_strategy("exit", "dump_exit")
        return 0
