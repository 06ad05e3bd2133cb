"""Whether the addresses that documents name answer: ``make links``. Not a part of CI, which needs no network."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parents[1]
_CODE = re.compile(r"^```[\s\S]*?^```|`[^`\n]*`|^(?: {4,}|\t).*$", re.MULTILINE)
_ADDRESS = re.compile(r"https?://[^\s<>()\[\]\"'|]+")
#: Addresses of samples, of this machine, and of services inside a cluster, whose names have no dot.
_OURS = re.compile(r"https?://(127\.|\$|\{|[\w.-]*example\.(org|com)|[\w-]+(:\d+)?(/|$))")
_AT_ONCE, _SECONDS, _TRIES = 8, 20.0, 2
#: Answers that say that there is a page, but not for a program.
_GUARDED = (401, 403, 405, 429)


def addresses(text: str) -> Iterator[str]:
    """The addresses in the prose of a document, without what is code, a sample or this machine."""
    for match in _ADDRESS.finditer(_CODE.sub("", text)):
        address = match[0].rstrip(".,;:!?")
        if not _OURS.match(address):
            yield address


async def answer(session: aiohttp.ClientSession, address: str, gate: asyncio.Semaphore) -> str:
    """Empty when the address answers; else why not."""
    said = ""
    async with gate:
        for _ in range(_TRIES):
            try:
                async with session.get(address, allow_redirects=True) as found:
                    if found.status < 400 or found.status in _GUARDED:
                        return ""
                    said = f"answers {found.status}"
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                said = f"{type(error).__name__}: {error}"[:200]
    return said


async def _work() -> int:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    places: dict[str, list[str]] = defaultdict(list)
    for name in names.split():
        for address in addresses((ROOT / name).read_text()):
            places[address].append(name)
    gate = asyncio.Semaphore(_AT_ONCE)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=True) as session:
        said = await asyncio.gather(*(answer(session, address, gate) for address in places))
    lost = [(address, why) for address, why in zip(places, said, strict=True) if why]
    for address, why in lost:
        sys.stdout.write(f"{address}: {why} ({', '.join(sorted(set(places[address])))})\n")
    sys.stdout.write(f"{len(places)} addresses, {len(lost)} without an answer\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_work()))
