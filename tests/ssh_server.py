"""A private Git remote by ssh: a real sshd on loopback that lets two keys in, to Git alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.needs import lacking

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {keys}
PasswordAuthentication no
KbdInteractiveAuthentication no
PubkeyAuthentication yes
PermitRootLogin prohibit-password
# the test's own folders belong to a common one for temporary files
StrictModes no
UsePAM no
DisableForwarding yes
PermitTTY no
PermitUserEnvironment no
ForceCommand git-shell -c "$SSH_ORIGINAL_COMMAND"
"""


class GitHost:
    """The running server. ``key`` is a person's private key; ``known_hosts`` says who the server is."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.key = folder / "person"
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "sshd.log"

    def address(self, repository: Path) -> str:
        """How to reach a repository of this machine through it."""
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}{repository}"

    @property
    def command(self) -> str:
        """``GIT_SSH_COMMAND`` of the person."""
        return (
            f"ssh -F none -i {self.key} -o IdentitiesOnly=yes -o UserKnownHostsFile={self.known_hosts} -o BatchMode=yes"
        )


@contextlib.contextmanager
def git_host(folder: Path, *deploy_keys: Path) -> Iterator[GitHost]:
    """Start it. ``deploy_keys`` are public keys that count as soon as their files are there."""
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if sshd is None:
        lacking("sshd is not on PATH: make test-packages")
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its empty folder for the time before a login
    for name in ("host", "person"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)],
            check=True,
            timeout=30,
        )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    host = GitHost(folder, port)
    kind, value, *_ = (folder / "host.pub").read_text().split()
    host.known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {value}\n")
    keys = " ".join(str(path) for path in (folder / "person.pub", *deploy_keys))
    (folder / "sshd_config").write_text(_CONFIG.format(port=port, folder=folder, keys=keys))
    with host.log.open("wb") as log:
        process = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stdout=log, stderr=log)
    try:
        ends = time.monotonic() + 30
        while b"Server listening" not in host.log.read_bytes():
            assert process.poll() is None and time.monotonic() < ends, host.log.read_text()
            time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait(10)
