"""Network namespaces for tests: hosts of their own beside this one, whose packets a test can drop.

`network` is a fixture; it skips where the machine cannot make namespaces, and fails there in CI.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.needs import lacking

#: Addresses for measurements between networks, which are not routed (RFC 2544); one /30 for each host.
RANGE = (198 << 24) + (18 << 16)


class Host:
    """One namespace joined to this machine by a pair of virtual interfaces."""

    def __init__(self, name: str, subnet: int) -> None:
        self.name, self.near, self.far = name, _text(subnet + 1), _text(subnet + 2)
        self.interface = f"{name}n"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self.interface, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "address", "add", f"{self.near}/30", "dev", self.interface)
        run("ip", "link", "set", self.interface, "up")
        self.exec("ip", "address", "add", f"{self.far}/30", "dev", "eth0")
        self.exec("ip", "link", "set", "eth0", "up")
        self.exec("ip", "link", "set", "lo", "up")
        self.exec("nft", "add", "table", "inet", "wall")

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def exec(self, *words: str) -> str:
        return run(*self.command(*words))

    def drop(self) -> None:
        """From now on no packet of this host arrives, nor reaches it; no host gets an error."""
        for hook in ("input", "output"):
            chain = f"{{ type filter hook {hook} priority 0; policy drop; }}"
            self.exec("nft", "add", "chain", "inet", "wall", hook, chain)

    def pass_again(self) -> None:
        self.exec("nft", "flush", "table", "inet", "wall")
        self.exec("nft", "delete", "table", "inet", "wall")
        self.exec("nft", "add", "table", "inet", "wall")

    def unplug(self) -> None:
        run("ip", "link", "set", self.interface, "down")

    def plug(self) -> None:
        run("ip", "link", "set", self.interface, "up")

    def close(self) -> None:
        subprocess.run(["ip", "link", "del", self.interface], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


class Network:
    """The hosts of one test."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self._first = os.getpid() % 256 * 64

    def host(self) -> Host:
        number = len(self.hosts)
        assert number < 64
        self.hosts.append(Host(f"kv{os.getpid()}x{number}", RANGE + 4 * (self._first + number)))
        return self.hosts[-1]

    def close(self) -> None:
        for host in self.hosts:
            host.close()


@pytest.fixture
def network() -> Iterator[Network]:
    why = missing()
    if why:
        lacking(f"no network namespaces: {why}")
    made = Network()
    try:
        yield made
    finally:
        made.close()


def missing() -> str:
    """Why there can be no namespaces here, empty when there can."""
    absent = [package for tool, package in (("ip", "iproute2"), ("nft", "nftables")) if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} is not installed: make test-packages"
    name = f"kv{os.getpid()}t"
    try:
        Host(name, RANGE + 4 * 16383).close()
    except RuntimeError as error:
        Host.close(_Remains(name))  # type: ignore[arg-type]
        return str(error)
    return ""


class _Remains:
    """What a host that could not be made whole may have left."""

    def __init__(self, name: str) -> None:
        self.name, self.interface = name, f"{name}n"


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _text(address: int) -> str:
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))
