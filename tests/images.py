"""Builds the images of deploy/image without a daemon, and starts each as the manifests do: `make images`.

Needs buildah and runc; without BASE= also mmdebstrap, which makes a base of Debian's packages alone. ROLES= names the
targets, REPEAT=1 builds the packages a second time and compares every byte, OPTIONS= are further options of
`buildah build`. The images stay in buildah's storage as localhost/belay-<role>.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port
from tests.walking import Heard

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "deploy" / "image" / "Containerfile"
BUILDAH = ("buildah", "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"))
BASE = "localhost/belay-base"
#: Role → the largest that its packages may be, in MiB, beyond the base.
ROLES = {"worker": 280, "server": 280, "admission": 280, "controller": 280, "exporter": 120, "agent": 120, "all": 280}
#: Role → what it calls beside Python (docs/images.md).
EXTRA = {
    "controller": {"git", "gnupg", "openssh-client"},
    "agent": {"ipmitool"},
    "all": {"git", "gnupg", "openssh-client", "ipmitool"},
}
#: Files by which apt and pip of this machine know where packages are; mounted while building, never part of an image.
SURROUNDINGS = ("/etc/apt/sources.list.d/debian.sources", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")
DEVELOPMENT = ("pytest", "mypy", "ruff", "hypothesis", "highspy", "numpy", "torch", "grpc_tools", "pip", "setuptools")


def run(*command: str, **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **more)
    if done.returncode:
        sys.exit(f"{shlex.join(command)[:300]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def base() -> str:
    """The base image: $BASE, or one made of Debian's packages."""
    if given := os.environ.get("BASE"):
        return given
    if subprocess.run([*BUILDAH, "inspect", "--type", "image", BASE], capture_output=True).returncode:
        with tempfile.TemporaryDirectory() as folder:
            archive = f"{folder}/base.tar"
            packages = "ca-certificates,python3-minimal,libpython3-stdlib"
            run("mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", archive)
            made = run(*BUILDAH, "from", "scratch")
            run(*BUILDAH, "add", "-q", made, archive, "/")
            run(*BUILDAH, "config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", made)
            run(*BUILDAH, "commit", "-q", "--timestamp", "0", "--rm", made, BASE)
    return BASE


def build(target: str, under: str, *more: str) -> str:
    """Build one target; its image's name."""
    mounts = [f"--volume={path}:{path}:ro" for path in SURROUNDINGS if Path(path).exists()]
    name = f"localhost/belay-{target}"
    own = shlex.split(os.environ.get("OPTIONS", ""))
    run(*BUILDAH, "build", "--isolation", "chroot", "--layers", "--timestamp", "0", f"--build-arg=BASE={under}",
        *mounts,
        "--target", target, "-f", str(RECIPE), "-t", name, *own, *more, str(ROOT))  # fmt: skip
    return name


@contextlib.contextmanager
def mounted(image: str) -> Iterator[Path]:
    """The root file system of an image."""
    container = run(*BUILDAH, "from", image)
    try:
        yield Path(run(*BUILDAH, "mount", container))
    finally:
        run(*BUILDAH, "rm", container)


def contents(folder: Path) -> dict[str, str]:
    """Path → mode, owner and a hash of what it holds, of a whole tree."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state, held = path.lstat(), b""
        if path.is_symlink():
            held = os.readlink(path).encode()
        elif path.is_file():
            held = path.read_bytes()
        digest = hashlib.sha256(held).hexdigest()
        found[str(path.relative_to(folder))] = f"{state.st_mode:o} {state.st_uid}:{state.st_gid} {digest}"
    return found


class Pod:
    """A process in an image as a pod of the manifests has it: its user, a read-only root, no rights, /tmp in memory."""

    def __init__(
        self, root: Path, words: list[str], folder: Path, environment: dict[str, str], bind: str = "", uid: int = 9000
    ) -> None:
        self._name = f"belay-images-{os.getpid()}-{time.monotonic_ns()}"
        run("runc", "spec", "--bundle", str(folder))
        spec = json.loads((folder / "config.json").read_text())
        given = {"PATH": "/opt/belay/bin:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **environment}
        nothing = {kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")}
        spec["process"] |= {
            "terminal": False, "args": ["belay", *words], "cwd": "/", "noNewPrivileges": True, "capabilities": nothing,
            "user": {"uid": uid, "gid": uid}, "env": [f"{key}={value}" for key, value in given.items()],
        }  # fmt: skip
        spec["root"] = {"path": str(root), "readonly": True}
        for path in ("/tmp", "/var/lib/belay"):
            spec["mounts"].append(
                {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", f"uid={uid}"]}
            )
        if bind:
            spec["mounts"].append(
                {"destination": "/etc/belay", "type": "bind", "source": bind, "options": ["bind", "ro"]}
            )
        # its network is this machine's, so that it can be asked
        spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] != "network"]
        (folder / "config.json").write_text(json.dumps(spec))
        self._process = subprocess.Popen(
            ["runc", "run", "--bundle", str(folder), self._name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        self.heard = Heard(self._process)

    def ended(self, seconds: float = 60) -> tuple[int, str]:
        """(exit status, what it printed)."""
        return self._process.wait(seconds), self.heard.whole(10)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        if self.runs:
            subprocess.run(["runc", "kill", self._name, "TERM"], capture_output=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        subprocess.run(["runc", "delete", "--force", self._name], capture_output=True)


@contextlib.contextmanager
def pod(root: Path, *words: str, bind: str = "", **environment: str) -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="belay-images-") as folder:
        made = Pod(root, list(words), Path(folder), environment, bind)
        try:
            yield made
        finally:
            made.close()


def check(role: str, image: str) -> str:
    """What an image holds and whether its process starts; a line that says so. Ends the program where it does not."""
    config = json.loads(run(*BUILDAH, "inspect", "--type", "image", image))["OCIv1"]["config"]
    if config.get("User") != "9000" or config.get("Entrypoint") != ["belay"]:
        sys.exit(f"{role}: user {config.get('User')!r} and entry {config.get('Entrypoint')!r}, wanted 9000 and belay")
    with mounted(image) as root:
        own = root / "opt" / "belay"
        size = sum(path.lstat().st_size for path in own.rglob("*") if path.is_file() and not path.is_symlink()) // 2**20
        packages = sorted(path.parent.name for path in own.glob("lib/python3*/site-packages/*.dist-info/METADATA"))
        if extra := [name for name in packages if name.rpartition("-")[0] in DEVELOPMENT]:
            sys.exit(f"{role}: holds what only development needs: {extra}")
        if size > ROLES[role]:
            sys.exit(f"{role}: its packages are {size} MiB, more than {ROLES[role]}")
        bill = json.loads((own / "sbom.cdx.json").read_text())
        listed = {(one["name"], one["version"]) for one in bill["components"]}
        if len([one for one in bill["components"] if one["purl"].startswith("pkg:pypi")]) != len(packages) - 1:
            sys.exit(f"{role}: the bill of materials lists {len(listed)} packages, {len(packages)} are installed")
        packed = (root / "var/lib/dpkg/status").read_text(errors="replace")
        held = {
            re.findall(r"(?m)^Package: (.+)$", part)[0]
            for part in packed.split("\n\n")
            if "\nStatus: install ok installed\n" in part
        }
        if (named := {one["name"] for one in bill["components"] if one["purl"].startswith("pkg:deb/")}) != held:
            sys.exit(f"{role}: the bill of materials and dpkg differ in {', '.join(sorted(named ^ held))[:500]}")
        if lacks := EXTRA.get(role, set()) - named:
            sys.exit(f"{role}: lacks {', '.join(sorted(lacks))}")
        with pod(root, "version") as once:
            status, said = once.ended()
            if status:
                sys.exit(f"{role}: belay version ended with {status}: {said}")
        verb = {"all": "controller"}.get(role, role)
        with pod(root, verb, "--help") as once:
            status, text = once.ended()
            if status:
                sys.exit(f"{role}: belay {verb} --help ended with {status}: {text}")
        if role == "server":
            served(root)
    shown = said.splitlines()[0]
    return f"{role:<11} {size:>4} MiB of packages, {len(packages):>2} of them; runs read-only as 9000: {shown}"


def served(root: Path) -> None:
    """The server answers although neither Redis nor Kubernetes is there."""
    port, nowhere = free_port(), free_port()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "k", "users": [{"name": "u", "user": {"token": "t"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{nowhere}"}}],
        "contexts": [{"name": "k", "context": {"cluster": "k", "user": "u"}}],
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="belay-images-") as folder:
        os.chmod(folder, 0o755)
        (Path(folder) / "kubeconfig").write_text(yaml.safe_dump(config))
        environment = {
            "BELAY_REDIS_URL": f"redis://127.0.0.1:{nowhere}/0", "BELAY_KUBECONFIG": "/etc/belay/kubeconfig",
            "BELAY_GRPC_LISTEN": "off", "BELAY_GRPC_HEALTH_PORT": "0",
        }  # fmt: skip
        with pod(root, "server", "--listen", f"127.0.0.1:{port}", bind=folder, **environment) as running:
            ends, lines = time.monotonic() + 60, 0
            while True:
                url = f"http://127.0.0.1:{port}/healthz"
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                    if answer.status == 200:
                        return
                if not running.runs or time.monotonic() > ends:
                    sys.exit(f"server: it does not answer:\n{running.heard.text[-3000:]}")
                # it says each thing that it begins: ask again after the next one
                lines = running.heard.more(lines, ends - time.monotonic())


def repeated(under: str) -> None:
    """Build the image of all roles twice from nothing; every byte of it must be the same."""
    found: list[tuple[str, dict[str, str]]] = []
    for _ in range(2):
        image = build("all", under, "--no-cache")
        identity = run(*BUILDAH, "inspect", "--type", "image", "--format", "{{.FromImageID}}", image)
        with mounted(image) as root:
            found.append((identity, contents(root)))
    (first, one), (second, other) = found
    if differ := sorted(path for path in one.keys() | other.keys() if one.get(path) != other.get(path)):
        sys.exit(f"two builds differ in {len(differ)} files: {', '.join(differ[:20])}")
    if first != second:
        sys.exit(f"two builds hold the same files, yet their images differ: {first} and {second}")
    say(f"two builds are one image: {first}, {len(one)} files")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    for program in ("buildah", "runc"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not on PATH: make images-packages")
    under = base()
    roles = (os.environ.get("ROLES") or " ".join(ROLES)).split()
    if unknown := [role for role in roles if role not in ROLES]:
        sys.exit(f"ROLES: there is no {unknown[0]}; there are {', '.join(ROLES)}")
    for role in roles:
        say(check(role, build(role, under)))
    if os.environ.get("REPEAT") == "1":
        repeated(under)


if __name__ == "__main__":
    main()
