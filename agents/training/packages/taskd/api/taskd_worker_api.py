"""A training process on the bus: profiling, link switch, stress test."""

import os

from belay.agents.training.compat.taskd.bus_worker import destroy_taskd_worker, init_taskd_worker, start_taskd_worker

if "TORCHELASTIC_RUN_ID" in os.environ:
    # a process of torchrun: each attempt's rendezvous has a prefix of its own in the launcher's store
    from belay.agents.training.compat.taskd.torch_hook import wrap_rendezvous

    try:
        wrap_rendezvous()
    except ImportError:
        # MindSpore under a launcher that sets the same variables
        pass

__all__ = ["destroy_taskd_worker", "init_taskd_worker", "start_taskd_worker"]
