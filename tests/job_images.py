"""Builds the images for jobs without a daemon, with stand-ins for what needs an account: ``make job-images``.

System packages, Python from its source, pip and every script of the recipe are real; CANN, torch, torch_npu and
mindspore are stand-ins that hold the files that the recipe looks for. Each image is then started: without chips it must
say what is missing. These containers share /dev with the host, so a chip's files cannot be shown to them; the scripts
themselves are tested with such files. Python's source is Debian's (``apt-get source``), or PYTHON_SOURCE=FILE. TARGETS=
names the images; BASE= and OPTIONS= are those of `make images`.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.images import BUILDAH, ROOT, SURROUNDINGS, base, run, say

FOLDER = ROOT / "deploy" / "job-images"
CANN = "8.5.0"
MACHINE = platform.machine()
SERVICE = "service-stand-in.tar"
#: Target → name of each stand-in wheel, its version, and its files.
WHEELS: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "pytorch": [
        ("torch", "2.7.1", {"torch/__init__.py": "", "torch/distributed/__init__.py": "",
                            "torch/distributed/run.py": '"""Run."""\nimport os\nimport sys\n'}),
        ("torch_npu", "2.7.1", {"torch_npu/__init__.py": ""}),
    ],
    "mindspore": [("mindspore", "2.7.0", {"mindspore/__init__.py": ""})],
    "inference": [],
}  # fmt: skip
#: As CANN's packages behave since 8.5: the toolkit goes to cann/, and the operators refuse a folder.
RUN = """#!/bin/bash
set -e
to=
for word in "$@"; do case $word in --install-path=*) to=${word#*=} ;; esac; done
case $0 in
  *toolkit*) ;;
  *) [ -z "$to" ] || { echo "ERROR: 'install-path' parameter is not supported" >&2; exit 1; }; exit 0 ;;
esac
[ -f "$to/driver/version.info" ] || { echo "no driver" >&2; exit 1; }
mkdir -p "$to/cann"
echo 'export ASCEND_TOOLKIT_HOME=/usr/local/Ascend/cann' > "$to/cann/set_env.sh"
"""


def source() -> tuple[str, bytes]:
    """(version, packed source) of Python."""
    if given := os.environ.get("PYTHON_SOURCE"):
        data = Path(given).read_bytes()
    else:
        with tempfile.TemporaryDirectory(prefix="belay-source-") as folder:
            lists = Path(folder) / "lists"
            (lists / "partial").mkdir(parents=True)
            (Path(folder) / "sources").mkdir()
            for file in Path("/etc/apt/sources.list.d").glob("*.sources"):
                text = file.read_text().replace("Types: deb\n", "Types: deb-src\n")
                (Path(folder) / "sources" / file.name).write_text(text)
            options = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={folder}/sources",
                       "-o", f"Dir::State::lists={lists}"]  # fmt: skip
            run("apt-get", "-qq", *options, "update")
            # only the upstream archive is used, so it does no harm when the description of Debian's changes is gone
            subprocess.run(["apt-get", "-qq", *options, "source", "--download-only", "python3.11"], cwd=folder,
                           capture_output=True)  # fmt: skip
            found = sorted(Path(folder).glob("python3.11_*.orig.tar.*"))
            if not found:
                sys.exit("Python's source is not to be had by apt-get source: name a file, PYTHON_SOURCE=")
            data = found[-1].read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (notes,) = [one for one in archive if one.name.endswith("/Include/patchlevel.h")]
        stream = archive.extractfile(notes)
        assert stream is not None
        (line,) = [line for line in stream.read().decode().splitlines() if line.startswith("#define PY_VERSION ")]
    return line.split('"')[1].rstrip("+"), data


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """A wheel of these files."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: belay\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, text in files.items():
            made.writestr(path, text)
        made.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))


def packages(folder: Path, version: str, data: bytes) -> None:
    """What the recipe reads from packages/, and its sums."""
    folder.mkdir()
    packed = data if data[:2] == b"\x1f\x8b" else gzip.compress(_unpacked(data), 1)
    (folder / f"Python-{version}.tgz").write_bytes(packed)
    for name in (f"Ascend-cann-toolkit_{CANN}_linux-{MACHINE}.run", f"Ascend-cann-910b-ops_{CANN}_linux-{MACHINE}.run"):
        (folder / name).write_text(RUN)
    (folder / "ascend_install.info").write_text("UserName=HwHiAiUser\n")
    (folder / "version.info").write_text("Version=25.0.rc1\n")
    for wheels in WHEELS.values():
        for one in wheels:
            wheel(folder, *one)
    with tarfile.open(folder / SERVICE, "w") as service:
        text = b"a model\n"
        member = tarfile.TarInfo("model/weights")
        member.size = len(text)
        service.addfile(member, io.BytesIO(text))
    (folder / "install.sh").write_text(f"#!/bin/bash\nset -e\ntar -xf {SERVICE}\n")
    (folder / "run.sh").write_text('#!/bin/bash\necho "serving $(cat model/weights) with $1"\n')
    names = sorted(path.name for path in folder.iterdir())
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(sums))


def _unpacked(data: bytes) -> bytes:
    import lzma

    return lzma.decompress(data)


def build(context: Path, target: str, version: str, under: str) -> str:
    """Build one target; its image's name."""
    name = f"localhost/belay-job-{target}"
    mounts = [f"--volume={path}:{path}:ro" for path in SURROUNDINGS if Path(path).exists()]
    arguments = {
        "BASE": under,
        "PYTHON_VERSION": version,
        "CANN_VERSION": CANN,
        "SERVER": "service",
        "DIST_PKG": SERVICE,
    }
    run(*BUILDAH, "build", "--isolation", "chroot", "--layers", *mounts, "--target", target,
        *(f"--build-arg={key}={value}" for key, value in arguments.items()),
        "-f", str(context / "Containerfile"), "-t", name, *shlex.split(os.environ.get("OPTIONS", "")),
        str(context))  # fmt: skip
    return name


@contextlib.contextmanager
def container(image: str) -> Iterator[str]:
    made = run(*BUILDAH, "from", image)
    try:
        yield made
    finally:
        run(*BUILDAH, "rm", made)


def started(made: str, words: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """(exit status, what it printed) of a process in a container."""
    given = [f"--env={key}={value}" for key, value in variables.items()]
    done = subprocess.run(
        [*BUILDAH, "run", "--isolation", "chroot", *given, made, "--", *words],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def check(target: str, image: str) -> str:
    """Whether the image starts as it should; a line that says so. Ends the program where it does not."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    words = ["serve.sh", "hello"] if target == "inference" else ["check.sh", "pod", target]
    with container(image) as made:
        status, said = started(made, words, job)
        if not status or "no chip is visible" not in said or "the driver is not mounted" not in said:
            sys.exit(f"{target}: without chips it ended with {status} and said: {said}")
        _, version = started(made, ["python3", "-c", "import ssl, ctypes, lzma, sqlite3, sys; print(sys.version)"], {})
        if "3." not in version or "Error" in version:
            sys.exit(f"{target}: its Python lacks parts: {version}")
    return f"{target:<10} says what is missing; Python {version.split()[0]}"


def main() -> None:
    for program in ("buildah", "runc"):
        if shutil.which(program) is None:
            sys.exit(f"{program} is not on PATH: make images-packages")
    targets = (os.environ.get("TARGETS") or " ".join(WHEELS)).split()
    if unknown := [one for one in targets if one not in WHEELS]:
        sys.exit(f"TARGETS: there is no {unknown[0]}; there are {', '.join(WHEELS)}")
    under, (version, data) = base(), source()
    with tempfile.TemporaryDirectory(prefix="belay-job-") as folder:
        context = Path(folder) / "context"
        shutil.copytree(FOLDER, context)
        packages(context / "packages", version, data)
        for target in targets:
            say(check(target, build(context, target, version, under)))


if __name__ == "__main__":
    main()
