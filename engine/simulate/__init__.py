"""What-if over time: the real planner on a copied world with a virtual clock.

``objects`` holds what an API server would, ``agents`` obey orders, ``world`` acts and fakes the rest of the cluster,
``server`` is one node's hardware, ``workloads`` the controllers of Kubernetes, ``rehearsal`` plays the tests of fault
policies, ``timeline`` is what happens from outside, ``run`` the story until it is quiet.
"""

from engine.simulate.objects import merged
from engine.simulate.server import Server
from engine.simulate.world import World

__all__ = ["Server", "World", "merged"]
