"""The light wheel `belay-training`: built, installed alone beside PyTorch, and run."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests import needs

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("training"), pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "agents/training/packages/belay_training"
PACKAGES = ("belay_training", "taskd", "mindio_ttp", "mindio_acp", "mindx_elastic", "llm_datadist")
SCRIPT = ROOT / "tests/training/scripts/ddp.py"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(PROJECT)], check=True, capture_output=True, timeout=120)
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_needs_few_packages_and_holds_no_engine(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        needed = [line for line in archive.read(metadata).decode().splitlines() if line.startswith("Requires-Dist")]
    assert [line.split()[1].partition("<")[0].partition(">")[0] for line in needed] == ["grpcio", "msgspec", "protobuf"]
    assert {name.split("/")[2] for name in names if name.startswith("belay/engine/")} == {
        "__init__.py",
        "build.json",
        "model",
        "versions.py",
        "wire",
    }
    assert {f"{package}/__init__.py" for package in PACKAGES} <= set(names)
    assert not [name for name in names if "__pycache__" in name]


def test_processes_that_link_find_llm_datadist_in_the_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import belay.agents, llm_datadist, sys;"
        "end = llm_datadist.LLMDataDist(llm_datadist.LLMRole.MIX, 1);"
        "end.init({'llm.listenIpInfo': '127.0.0.1:0'}); end.keep_links('links'); end.finalize();"
        "print(belay.__file__, llm_datadist.__file__)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.stdout.split() == [str(tmp_path / f"{name}/__init__.py") for name in ("belay", "llm_datadist")], ran


def test_a_script_runs_with_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    needs.torch()
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True, timeout=60)
    site = bare / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=120)
    # PyTorch, grpcio and protobuf as they are installed here; nothing else of this environment
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    ours = Path(sysconfig.get_path("purelib"))
    for name in LIBRARIES:
        for path in ours.glob(name):
            (borrowed / path.name).symlink_to(path)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = str(borrowed)
    folder = tmp_path / "ranks"
    folder.mkdir()
    command = [
        str(bare / "bin/python"),
        "-c",
        "from belay.agents.training.train.agent.launcher import main; exit(main())",
    ]
    ended = subprocess.run(
        [*command, "--nproc", "2", str(SCRIPT), str(folder), "4", "0", "16"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    assert [len((folder / f"rank-{rank}").read_text().splitlines()) for rank in range(2)] == [4, 4]


LIBRARIES = (
    "torch",
    "torchgen",
    "functorch",
    "torch.libs",
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
    "sympy",
    "typing_extensions.py",
    "grpc",
    "google",
)
