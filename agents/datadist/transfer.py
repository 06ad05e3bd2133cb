"""Block bytes between tensors and a channel: runs of neighbouring blocks travel without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from belay.agents.datadist.caches import Cache, HostTensor
from belay.agents.datadist.channels import Channel
from belay.agents.datadist.frames import BadFrame, Blocks
from belay.agents.datadist.streams import read_into

GATHER = 256 * 1024  # bytes of small runs that are sent in one call


def runs(blocks: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Yield byte ranges (start, end) of ``blocks`` in their order; ascending neighbours become one range."""
    start = end = -1
    for block in blocks:
        if block * size == end:
            end += size
            continue
        if end >= 0:
            yield start, end
        start, end = block * size, (block + 1) * size
    if end >= 0:
        yield start, end


def check(cache: Cache, wanted: Blocks) -> None:
    """Check that ``wanted`` lies inside ``cache``. Raises BadFrame that states what does not."""
    desc = cache.cache_desc
    if wanted.size != desc.block:
        raise BadFrame(f"blocks of {wanted.size} bytes asked, the cache has blocks of {desc.block}")
    if any(not 0 <= number < desc.num_tensors for number in wanted.tensors):
        raise BadFrame(f"a tensor beyond {desc.num_tensors}")
    if any(not 0 <= number < desc.blocks for number in wanted.blocks):
        raise BadFrame(f"a block beyond {desc.blocks}")


async def send_blocks(channel: Channel, cache: Cache, tensors: Sequence[int], blocks: Sequence[int]) -> None:
    """Send the bytes of ``blocks`` of each of ``tensors``."""
    gathered = bytearray()
    for number in tensors:
        memory = cache.tensors[number]
        for start, end in runs(blocks, cache.cache_desc.block):
            if end - start < GATHER:
                gathered += memory.read(start, end)
                if len(gathered) < GATHER:
                    continue
            if gathered:
                await channel.send(gathered)
                gathered = bytearray()
            if end - start >= GATHER:
                await channel.send(memory.read(start, end))
    if gathered:
        await channel.send(gathered)


async def receive_blocks(channel: Channel, cache: Cache, tensors: Sequence[int], blocks: Sequence[int]) -> None:
    """Fill ``blocks`` of each of ``tensors`` from the channel."""
    for number in tensors:
        memory = cache.tensors[number]
        for start, end in runs(blocks, cache.cache_desc.block):
            if isinstance(memory, HostTensor):
                await read_into(channel, memory.read(start, end))
                continue
            buffer = memoryview(bytearray(end - start))
            await read_into(channel, buffer)
            memory.write(start, buffer)


async def skip(channel: Channel, length: int) -> None:
    """Read and drop ``length`` bytes, so that the next frame is found."""
    buffer = bytearray(min(length, GATHER))
    while length:
        part = memoryview(buffer)[: min(length, len(buffer))]
        await read_into(channel, part)
        length -= len(part)
