"""`belay check storage` and checkpoints on real NFS exports: ``make nfs``. NFS-Ganesha serves them on this machine, and
in a network namespace that is cut off. tests/nfs_bridge.py mounts them, since kernels of build machines often have no
NFS client. Needs root, /dev/fuse and Debian's packages.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from belay.agents.storage.check import check_folder
from tests.netns import Host, Network, missing
from tests.ports import free_port
from tests.training.checkpoint_cuts import gone
from tests.walking import ROOT, Heard

#: Name of an export → its squashing, access, and the mode of its folder, which user 9000 owns.
EXPORTS = {
    "open": ("No_Root_Squash", "RW", 0o750),
    "squashed": ("Root_Squash", "RW", 0o750),
    "shared": ("Root_Squash", "RW", 0o777),
    "all": ("All_Squash", "RW", 0o777),
    "read-only": ("No_Root_Squash", "RO", 0o777),
}
#: What FUSE itself lacks (tests/nfs_bridge.py), whatever the server does.
OF_THE_BRIDGE = {"rename"}
Findings = dict[str, dict[str, Any]]


@contextlib.contextmanager
def process(*command: str, words: str, seconds: float = 60.0) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed these words."""
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
    try:
        if words:
            Heard(started).until(words, seconds)
        yield started
    finally:
        started.send_signal(signal.SIGCONT)
        started.kill()
        started.wait(20)


@contextlib.contextmanager
def server(folder: Path, host: Host | None = None) -> Iterator[tuple[int, int, subprocess.Popen[str]]]:
    """NFS-Ganesha with every export, on this machine or on ``host``; its ports for NFS and for mounts, its process."""
    port, mounts = free_port(), free_port()
    text = f"""NFS_CORE_PARAM {{
  NFS_Port = {port}; MNT_Port = {mounts}; Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false;
}}
NFSV4 {{ Graceless = true; RecoveryRoot = "{folder}/recovery"; }}
LOG {{ Default_Log_Level = EVENT; }}
"""
    for number, (name, (squash, access, mode)) in enumerate(EXPORTS.items(), 1):
        path = folder / "exports" / name
        path.mkdir(parents=True)
        os.chown(path, 9000, 9000)
        path.chmod(mode)
        text += (
            f"EXPORT {{ Export_Id = {number}; Path = {path}; Pseudo = /{name}; Access_Type = {access};"
            f" Squash = {squash}; SecType = sys; Protocols = 3; Transports = TCP; FSAL {{ Name = VFS; }} }}\n"
        )
    (folder / "recovery").mkdir()
    (folder / "ganesha.conf").write_text(text)
    command = ["ganesha.nfsd", "-F", "-f", str(folder / "ganesha.conf"), "-L", "/dev/stdout", "-p", str(folder / "pid")]
    with contextlib.ExitStack() as stack:
        if host is not None:
            # its rpcbind has sockets in /run of its own, and ends with it
            script = "mount -t tmpfs tmpfs /run && mkdir /run/ganesha && rpcbind && exec " + shlex.join(command)
            command = host.command("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script)
        elif subprocess.run(["rpcinfo", "-p", "127.0.0.1"], capture_output=True, timeout=20).returncode:
            stack.enter_context(process("rpcbind", "-f", "-w", words=""))
        running = stack.enter_context(process(*command, words="NFS SERVER INITIALIZED"))
        yield port, mounts, running


@contextlib.contextmanager
def mounted(folder: Path, name: str, port: int, mounts: int, address: str = "127.0.0.1") -> Iterator[Path]:
    place = folder / "mounts" / name
    place.mkdir(parents=True)
    url = f"nfs://{address}{folder}/exports/{name}?version=3&nfsport={port}&mountport={mounts}"
    with process("/usr/bin/python3", str(ROOT / "tests" / "nfs_bridge.py"), url, str(place), words="mounted") as bridge:
        assert bridge.poll() is None
        try:
            yield place
        finally:
            subprocess.run(["umount", "-l", str(place)], capture_output=True)


def as_root(place: Path, seconds: float = 60.0) -> Findings:
    found: Findings = {}
    for one in check_folder(place, 8 << 20, seconds):
        if one.state != "ok" and one.check not in OF_THE_BRIDGE:
            found.setdefault(one.check, {"state": one.state, "found": one.found, "cause": one.cause})
    return found


def as_user(place: Path) -> Findings:
    """The probes as user 9000."""
    code = "import os, sys; from pathlib import Path; from belay.agents.storage.probes import main; os.setgroups([]); "
    code += f"os.setgid(9000); os.setuid(9000); main(Path({str(place)!r}), 8 << 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["check"]: one for one in lines if one.get("state", "ok") != "ok" and one["check"] not in OF_THE_BRIDGE}


def says(title: str, found: Findings, check: str, state: str, words: str) -> None:
    """End the program when the finding is not among those, or there are others than it and notes."""
    others = {name: one for name, one in found.items() if one["state"] != "note"}
    one = others.pop(check, {})
    text = f"{one.get('found', '')}; {one.get('cause', '')}"
    if one.get("state", "") != state or words not in text or set(others) - {"fsync", "small files"}:
        sys.exit(f"{title}: wanted {check} {state} with {words!r}, found {found}")
    sys.stdout.write(f"{title}: {text if check else 'sound'}\n")
    sys.stdout.flush()


class Export:
    """An export for the torture of checkpoints: the packets of its host are dropped."""

    def __init__(self, place: Path, host: Host) -> None:
        self.place, self.host = place, host

    def do(self, what: str, **_: int) -> dict[str, int]:
        (self.host.drop if what == "hang" else self.host.pass_again)()
        return {}


def checkpoints(folder: Path) -> None:
    """Saves go on while the server is gone from the network, and arrive when it is back."""
    network = Network()
    try:
        host = network.host()
        with server(folder, host) as (port, mounts, _), mounted(folder, "open", port, mounts, host.far) as place:
            sys.stdout.write(f"a server cut off: {gone(place / 'job', Export(place, host), folder / 'work')}\n")
    finally:
        network.close()


def main() -> None:
    if os.geteuid() or not os.access("/dev/fuse", os.W_OK):
        sys.exit("make nfs needs root and /dev/fuse")
    with tempfile.TemporaryDirectory(prefix="belay-nfs-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        port, mounts, running = stack.enter_context(server(folder))
        places = {one: stack.enter_context(mounted(folder, one, port, mounts)) for one in EXPORTS}
        says("no_root_squash, root", as_root(places["open"]), "", "", "")
        says("root_squash, root, a folder of mode 0750", as_root(places["squashed"]), "write", "error", "root_squash")
        says("root_squash, root, a folder of mode 0777", as_root(places["shared"]), "owner", "warning", "root_squash")
        says("root_squash, the folder's owner", as_user(places["squashed"]), "", "", "")
        says("all_squash, user 9000", as_user(places["all"]), "owner", "error", "all_squash")
        says("exported read-only", as_root(places["read-only"]), "write", "error", "read-only")
        running.send_signal(signal.SIGSTOP)
        says("a server that does not answer", as_root(places["open"], 3.0), "write", "error", "does not answer")
        running.send_signal(signal.SIGCONT)
        if why := missing():
            sys.exit(f"no network namespaces: {why}")
        logging.disable(logging.CRITICAL)
        away = folder / "away"
        away.mkdir(mode=0o755)
        checkpoints(away)


if __name__ == "__main__":
    main()
