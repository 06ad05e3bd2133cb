"""The bill of materials of an image, CycloneDX 1.6 as JSON: what its lock pins, and every Debian package.

    python3 sbom.py LOCK --licences requirements-licences.toml [--root FOLDER] [--dpkg STATUS] [--system OS-RELEASE]
      --output FILE

It runs in the image it describes, after the last package was installed, and needs nothing but Python 3.11. The same
packages give the same file: the time is $SOURCE_DATE_EPOCH, the serial number follows from the contents. With --root,
packages that the lock names but the folder does not hold are left out (those of other systems), and one that is held
in another version, or without being locked, ends the program with code 1.

Sources: CycloneDX 1.6 JSON reference (cyclonedx.org/docs/1.6/json); package URL types pypi and deb (package-url.org).
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
OWN = "belay"


class SbomError(Exception):
    """What is installed is not what the lock says; the text names it."""


def pins(text: str) -> dict[str, tuple[str, list[str]]]:
    """Name → (version, sha256 of each file that may be installed) of a lock with hashes."""
    found: dict[str, tuple[str, list[str]]] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.startswith("#"):
            continue
        pin, hashes = PIN.match(entry), HASH.findall(entry)
        if pin is None or not hashes:
            raise SbomError(f"no NAME==VERSION with hashes: {entry[:80]}")
        found[normal(pin["name"])] = (pin["version"], sorted(hashes))
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(root: Path) -> dict[str, str]:
    """Name → version of the Python packages below a folder."""
    found = {}
    for metadata in sorted(root.glob("**/*.dist-info/METADATA")):
        fields = dict(
            line.partition(": ")[::2]
            for line in metadata.read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        )
        found[normal(fields["Name"])] = fields["Version"]
    return found


def system(text: str) -> tuple[str, str]:
    """(name, release) of the distribution, as debian and debian-12, from the text of os-release(5)."""
    fields = dict(line.partition("=")[::2] for line in text.splitlines())
    name, number = (fields.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID"))
    name = name or "debian"
    return name, f"{name}-{number}" if number else name


def debian(status: str, release: tuple[str, str] = ("debian", "debian")) -> list[dict[str, Any]]:
    """Components of the packages that dpkg's status file calls installed."""
    found = []
    vendor, distribution = release
    for paragraph in status.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in paragraph.splitlines() if not line.startswith(" "))
        if fields.get("Status") != "install ok installed":
            continue
        name, version, machine = fields["Package"], fields["Version"], fields.get("Architecture", "all")
        purl = f"pkg:deb/{vendor}/{quote(name)}@{quote(version, safe='')}?arch={machine}&distro={distribution}"
        found.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return sorted(found, key=lambda one: one["bom-ref"])


def components(
    lock: dict[str, tuple[str, list[str]]], licences: dict[str, str], held: dict[str, str] | None
) -> list[dict[str, Any]]:
    """Components of the locked packages, of those only that are ``held`` where that is known.

    Raises:
        SbomError: a package is held that is not locked, in another version, or has no reviewed licence.
    """
    if held is not None:
        for name, version in held.items():
            if name != OWN and lock.get(name, ("none",))[0] != version:
                raise SbomError(f"{name} {version} is installed, the lock has {lock.get(name, ('none',))[0]}")
    found = []
    for name, (version, _) in sorted(lock.items()):
        if held is not None and name not in held:
            continue
        if name not in licences:
            raise SbomError(f"{name} has no reviewed licence")
        purl = f"pkg:pypi/{name}@{quote(version)}"
        found.append(
            {
                "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
                "licenses": [{"expression": licences[name]}],
            }
        )  # fmt: skip
    return found


def bill(name: str, version: str, lock: bytes, parts: list[dict[str, Any]], epoch: int) -> dict[str, Any]:
    """The whole document. The lock, which holds the hashes of all files that may be installed, is named by its own."""
    own = {
        "type": "container", "bom-ref": f"{name}@{version}", "name": name, "version": version,
        "properties": [{"name": "belay:lock:sha256", "value": hashlib.sha256(lock).hexdigest()}],
    }  # fmt: skip
    body = {"component": own, "components": parts}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(body, sort_keys=True))
    moment = datetime.datetime.fromtimestamp(epoch, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"timestamp": moment, "component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Write the bill; the exit status is 1 when what is installed is not what is locked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("lock", type=Path)
    parser.add_argument("--licences", type=Path, required=True)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--dpkg", type=Path, default=Path("/var/lib/dpkg/status"))
    parser.add_argument("--system", type=Path, default=Path("/etc/os-release"))
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    licences = tomllib.loads(options.licences.read_text())["packages"]
    held = installed(options.root) if options.root else None
    try:
        parts = components(pins(options.lock.read_text()), licences, held)
    except SbomError as error:
        sys.stderr.write(f"{options.lock}: {error}\n")
        return 1
    if options.dpkg.is_file():
        release = options.system.read_text(errors="replace") if options.system.is_file() else ""
        parts += debian(options.dpkg.read_text(encoding="utf-8", errors="replace"), system(release))
    version = (held or {}).get(OWN, "0")
    document = bill(
        f"belay-{options.lock.stem}",
        version,
        options.lock.read_bytes(),
        parts,
        int(os.environ.get("SOURCE_DATE_EPOCH") or 0),
    )
    options.output.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
