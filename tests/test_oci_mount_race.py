"""A container that swings the target of a mount elsewhere while it is mounted: nothing outside its root is covered."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belay.agents.runtime.build import RUNTIME, build
from tests.runtime_host import possible

pytestmark = pytest.mark.skipif(bool(possible()), reason=f"another root {possible()}")
TRIES = 800
#: Exchanges two names for as long as it lives; renameat2(RENAME_EXCHANGE).
RACER = """
import ctypes, sys
libc, one, two = ctypes.CDLL(None), sys.argv[1].encode(), sys.argv[2].encode()
print("on", flush=True)
while True:
    libc.renameat2(-100, one, -100, two, 2)
"""


@pytest.fixture
def space() -> Iterator[int]:
    """A process in a mount namespace of its own, as runc's of a container before it leaves the host's root."""
    with subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "600"]) as child:
        ends = time.monotonic() + 20
        while Path(f"/proc/{child.pid}/ns/mnt").readlink() == Path("/proc/self/ns/mnt").readlink():
            assert time.monotonic() < ends
        yield child.pid
        child.kill()


@pytest.fixture
def swing() -> Iterator[Callable[[Path, Path], None]]:
    """Have two names exchanged without end, from the call to the end of the test."""
    racers: list[subprocess.Popen[bytes]] = []

    def begin(one: Path, two: Path) -> None:
        command = [sys.executable, "-c", RACER, str(one), str(two)]
        racers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert racers[-1].stdout is not None and racers[-1].stdout.readline() == b"on\n"

    yield begin
    for racer in racers:
        racer.kill()
        racer.communicate(timeout=20)


def test_a_link_put_at_the_target_meanwhile_leads_nowhere(
    tmp_path: Path, space: int, swing: Callable[[Path, Path], None]
) -> None:
    assert hasattr(ctypes.CDLL(None), "renameat2")
    program = build(tmp_path / "built")[0].parent / RUNTIME
    source = tmp_path / "source"
    source.write_text("of the host")
    outside = tmp_path / "outside"
    outside.write_text("not to be covered")
    root = tmp_path / "root"
    target = root / str(source).lstrip("/")
    target.parent.mkdir(parents=True)
    target.write_text("")
    link = target.with_name("link")
    link.symlink_to(outside)

    mounted = refused = 0
    swing(target, link)
    for _ in range(TRIES):
        arguments = ["belay-mount", "--pid", str(space), "--rootfs", str(root), "--mount-file", str(source)]
        done = subprocess.run([program, *arguments], capture_output=True, timeout=60)
        mounted, refused = mounted + (done.returncode == 0), refused + (done.returncode == 1)
        places = {line.split()[4] for line in Path(f"/proc/{space}/mountinfo").read_text().splitlines()}
        assert str(outside) not in places, "a mount outside the container's root"
    assert mounted + refused == TRIES
