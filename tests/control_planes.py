"""Real control planes, old and new: their version, the flags that differ, and which tests run on each.

`make test` runs everything on the control plane in $KUBEBUILDER_ASSETS; `make test-kubernetes` runs the tests that
touch one, and nothing else, so that a second version costs minutes.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

#: The minor version of the oldest control plane that is tested; Debian's source package builds it without its version.
OLDEST = 20
TESTS = Path(__file__).resolve().parent
#: What a test names that starts a real API server, or asks for one.
_SIGNS = re.compile(r"\breal_cluster\(|\bkubeconfig: str|\bown_kubeconfig\b|\breal_node\b|\bnode_assets\(|chain_world")
#: A fake of its own under these names; and the comparison with the sandbox, whose defaults are those of an old server.
_OTHERS = frozenset({"test_needs.py", "test_api_differential.py"})


def files() -> list[Path]:
    """The test files that touch a real control plane, by name."""
    found = TESTS.rglob("test_*.py")
    return sorted(path for path in found if path.name not in _OTHERS and _SIGNS.search(path.read_text()))


@functools.cache
def minor(program: Path) -> int:
    """The minor version of a program of Kubernetes: 20 of v1.20.2, and of a build that does not know its version."""
    done = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True, timeout=30)
    if "v0.0.0-" in done.stdout:
        return OLDEST
    match = re.search(r"v1\.(\d+)", done.stdout)
    if match is None:
        raise ValueError(f"{program} --version prints no version of Kubernetes: {done.stdout[:200]!r}")
    return int(match[1])


def closed_ports(controller_manager: Path) -> list[str]:
    """The flags by which a controller manager serves nothing: the insecure port ended with 1.24."""
    insecure = ["--port=0"] if minor(controller_manager) < 24 else []
    return [*insecure, "--secure-port=0"]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{path.relative_to(TESTS.parent)}\n" for path in files()))
