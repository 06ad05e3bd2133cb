"""What-if over time: the real planner on a copied world with a virtual clock.

``objects`` stores objects as an API server does, ``agents`` carry out orders, ``world`` carries out actions and
simulates the rest of the cluster, ``server`` is one node's hardware, ``workloads`` the controllers of Kubernetes,
``rehearsal`` plays the tests of fault policies, ``timeline`` holds events from outside, ``run`` plays passes until
nothing is left to do.
"""

from belay.engine.simulate.objects import merged
from belay.engine.simulate.server import SimulatedServer
from belay.engine.simulate.world import World

__all__ = ["SimulatedServer", "World", "merged"]
