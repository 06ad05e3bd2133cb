"""The runtime compiled to end at the first bad access to memory, fed with damaged input of every kind."""

from __future__ import annotations

import io
import json
import random
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from belay.agents.runtime.build import RUNTIME, build
from tests.runtime_host import HOME, LISTS, Host, libdcmi, oci_programs, possible
from tests.test_oci_json import damaged, text
from tests.test_oci_runtime import BAD, GOOD

__all__ = ["libdcmi", "oci_programs"]

ENV = {"PATH": "/usr/bin:/bin", "ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "UBSAN_OPTIONS": "exitcode=99"}
DONE = (0, 1)
"""Exit codes of a program that found its own words for what is wrong."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    return build(tmp_path_factory.mktemp("sanitized"), sanitize=True)


def check(programs: Sequence[Path], *arguments: str, text: bytes = b"") -> None:
    done = subprocess.run([programs[0], *arguments], input=text, capture_output=True, env=ENV, timeout=60)
    assert done.returncode in DONE, (arguments, done.stderr.decode(errors="replace"))


@pytest.mark.parametrize("seed", range(2))
def test_documents(programs: Sequence[Path], seed: int) -> None:
    dice = random.Random(seed)
    documents = [damaged(dice) if dice.random() < 0.7 else text(dice) for _ in range(800)]
    framed = b"".join(b"%d\n%s" % (len(document), document) for document in documents)
    check(programs, "belay-check", "documents", text=framed)
    check(programs, "belay-check", "documents", text=framed[: len(framed) // 2])
    for document in documents[:40]:
        check(programs, "belay-check", "append", "a.b", "1", text=document)
        cut = document[: dice.randrange(len(document) + 1)]
        check(programs, "belay-check", "json", text=cut)


def test_chips(programs: Sequence[Path]) -> None:
    dice = random.Random(3)
    for value in [*GOOD, *BAD, "0-128," * 200, "9" * 500, "Ascend" * 300]:
        check(programs, "belay-check", "devices", value)
    for _ in range(60):
        check(programs, "belay-check", "devices", "".join(dice.choices("0123456789-, Ascendpu+", k=dice.randrange(20))))


def test_arguments(programs: Sequence[Path], tmp_path: Path) -> None:
    program = str(programs[0].parent / RUNTIME)
    for arguments in (
        [], ["create"], ["create", "--bundle"], ["--log"], ["--root", "", "create", "--bundle", "", ""],
        ["create", "-b", str(tmp_path), "x"], ["belay-mount"], ["belay-mount", "--pid"], ["belay-check"],
        ["--log=/dev/null", "--log-format=json", "create", "--bundle=" + "x" * 5000, "c"],
        ["belay-mount", "--pid", "1", "--rootfs", "/" + "a/" * 3000, "--options", "NODRV"],
        ["belay-mount", *["--mount-file", "/etc/hostname"] * 600], ["belay-destroy"],
        ["belay-destroy", "1", "2", "3" * 400],
    ):  # fmt: skip
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=ENV | {"PATH": "/nowhere"},
            timeout=60,
        )
        assert done.returncode in DONE, (arguments, done.stderr.decode(errors="replace"))


@pytest.mark.skipif(bool(possible()), reason=f"another root {possible()}")
def test_layers(programs: Sequence[Path], tmp_path: Path) -> None:
    dice, whole, outside = random.Random(7), layer(), tmp_path / "outside"
    outside.mkdir()
    codes = set()
    for number in range(150):
        document = bytearray(whole)
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(document))
            document[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(4))
        if number % 3 == 0:
            mend(document)
        root = tmp_path / f"root-{number}"
        root.mkdir()
        done = subprocess.run(
            [programs[0], "belay-check", "layer", str(root)], input=bytes(document[: dice.choice([None, 5000])]),
            capture_output=True, env=ENV, timeout=60,
        )  # fmt: skip
        said = done.stderr.decode(errors="replace")
        assert done.returncode in DONE and "Sanitizer" not in said and "runtime error" not in said, said
        assert "was killed" not in said
        codes.add(done.returncode)
    assert codes == {0, 1} and list(outside.iterdir()) == []


@pytest.mark.skipif(bool(possible()), reason=f"another root {possible()}")
@pytest.mark.parametrize("name", [".wh...", "a/.wh...", "a/b/.wh...", "a/.wh..", "a/.wh../", "./a/.wh..."])
def test_a_whiteout_takes_nothing_away_above_itself(programs: Sequence[Path], tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    (root / "a/b").mkdir(parents=True)
    for file in ("kept", "a/kept", "a/b/kept"):
        (root / file).write_text("kept")
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    done = subprocess.run(
        [programs[0], "belay-check", "layer", str(root)],
        input=body.getvalue(),
        capture_output=True,
        env=ENV,
        timeout=60,
    )
    assert done.returncode == 1 and b"a whiteout in the layer leads upwards" in done.stderr, done.stderr
    assert sorted(str(one.relative_to(root)) for one in root.rglob("kept")) == ["a/b/kept", "a/kept", "kept"]


def layer() -> bytes:
    """A layer with an entry of every kind that is read."""
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for kind, name, link, pax in (
            (tarfile.DIRTYPE, "a", "", {}),
            (tarfile.REGTYPE, "a/b", "", {"SCHILY.xattr.user.x": "y", "mtime": "12.5"}),
            (tarfile.REGTYPE, "long/" * 40 + "ü", "", {}),
            (tarfile.SYMTYPE, "a/out", "../outside", {}),
            (tarfile.LNKTYPE, "a/c", "a/b", {}),
            (tarfile.REGTYPE, "a/.wh.c", "", {}),
            (tarfile.REGTYPE, "a/.wh..wh..opq", "", {}),
            (tarfile.FIFOTYPE, "pipe", "", {}),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.pax_headers = kind, link, dict(pax)
            info.size = 700 if kind == tarfile.REGTYPE and ".wh." not in name else 0
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return body.getvalue()


def mend(document: bytearray) -> None:
    """Make the sums of all headers right, or damage would never get past them."""
    for at in range(0, len(document) - 511, 512):
        if document[at + 257 : at + 262] == b"ustar":
            document[at + 148 : at + 156] = b" " * 8
            document[at + 148 : at + 156] = b"%06o\0 " % sum(document[at : at + 512])


# -- whole creations

RUNC = "#!/bin/sh\necho ran >>/etc/ran\n"
SCRIPT = """
for file in "$1"/*.json; do
  rm -rf /etc/bundle; mkdir /etc/bundle; cp "$file" /etc/bundle/config.json; : >/etc/ran
  code=0; PROGRAM --log /etc/log create --bundle /etc/bundle c >/etc/out 2>&1 || code=$?
  echo "$(basename "$file") $code $(wc -l </etc/ran)"
  case $code in 0|1) ;; *) cat /etc/out >&2; exit 1;; esac
  printf '{"pid":1,"bundle":"/etc/bundle"}' | HOOK >/etc/out 2>&1 || case $? in 1) ;; *) cat /etc/out >&2; exit 1;; esac
done
"""


@pytest.fixture(scope="module")
def host(programs: Sequence[Path], libdcmi: Path) -> Iterator[Host]:
    with Host() as made:
        made.install(programs)
        made.driver(libdcmi)
        made.write("/usr/local/bin/runc", RUNC, "0755")
        made.nodes(dict.fromkeys(("davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"), (240, 1)))
        # nothing exists: the hook must not mount into this machine's own namespace
        made.write(f"{LISTS}/base.list", "/nowhere\n/nowhere/*\n//\x01\n", "0440")
        made.env |= {name: value for name, value in ENV.items() if name != "PATH"}
        yield made


def config(dice: random.Random, asks: bool) -> bytes:
    env = ["A=b", "LD_LIBRARY_PATH=" + ":".join(dice.choices(["/usr/lib64", "/x", ""], k=3)), "broken"]
    env += dice.sample(
        ["ASCEND_RUNTIME_OPTIONS=NODRV", "ASCEND_RUNTIME_OPTIONS=x", "MOUNT_BY_RUNTIME_FOR_DP=1", "B=c"], 2
    )
    dice.shuffle(env)
    if asks:
        env += [f"ASCEND_VISIBLE_DEVICES={dice.choice(['0', '0-1', '1,0', 'npu-0', '5', 'x', '0-'])}"]
    spec = {"process": {"env": env}, "root": {"path": "rootfs"}, "linux": dice.choice([{}, None, {"devices": []}])}
    return json.dumps(spec, indent=dice.choice([None, 1])).encode()


@pytest.mark.skipif(bool(possible()), reason=f"a private host {possible()}")
def test_creations(host: Host, tmp_path: Path) -> None:
    dice = random.Random(5)
    asks = {}
    for number in range(120):
        document = bytearray(config(dice, asks=number % 2 == 0))
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(document))
            document[at : at + dice.randrange(2)] = bytes(dice.choices(b'{}[]",:=\\x01\xc3', k=dice.randrange(2)))
        (tmp_path / f"{number:03}.json").write_bytes(document)
        asks[f"{number:03}.json"] = b"ASCEND_VISIBLE" in document
    script = SCRIPT.replace("PROGRAM", f"{HOME}/belay-oci-runtime").replace("HOOK", f"{HOME}/ascend-docker-hook")
    lines = host.run("bash", "-euc", script, "creations", str(tmp_path)).stdout.splitlines()
    assert len(lines) == 120
    for line in lines:
        name, code, ran = line.split()
        assert (code, ran) in (("0", "1"), ("1", "0")), f"{line}: neither runc nor a refusal"
        assert asks[name] or code == "0", f"{line}: a container that asks for nothing did not start"
    assert {line.split()[1] for line in lines} == {"0", "1"}
