"""Checkpoint files from and to torch's zip and safetensors.

Between ``.mindio`` and torch's zip records are copied as they are: the structure inside is never unpickled, so classes
that only the user's code knows come through. safetensors holds named tensors only.
"""

from __future__ import annotations

import mmap
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from belay.agents.training.checkpoint import durable, image, layout, reading, sums
from belay.agents.training.checkpoint.errors import CheckpointError, NotThisFormat, Unsupported
from belay.agents.training.checkpoint.sources import FileSource, read

Progress = Callable[[int], None]
"""Gets the bytes of each part that is written."""


def to_zip(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Write the ``.mindio`` file ``source`` as a zip for ``torch.load``. Raises ``CheckpointError``, ``OSError``."""
    found_in = FileSource(source)
    stage = durable.staging(target)
    try:
        found = reading.contents(found_in)
        if found.length is not None:
            raise Unsupported(
                f"{source} holds plain bytes; torch's zip has no place for them: copy the first "
                f"{found.length} bytes instead"
            )
        writer = torch._C.PyTorchFileWriter(str(stage))
        for name, (start, size) in found.records.items():
            writer.write_record(name, read(found_in, start, size), size)
            if progress:
                progress(size)
        writer.write_end_of_file()
        give_name(stage, target)
    except RuntimeError as error:
        raise CheckpointError(f"{target} cannot be written: {str(error).splitlines()[0][:300]}") from error
    finally:
        found_in.close()
        stage.unlink(missing_ok=True)


def from_zip(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Write torch's zip ``source`` as a ``.mindio`` file. Raises ``CheckpointError``, ``OSError``."""
    sizes = _check_zip(source)
    try:
        reader = torch._C.PyTorchFileReader(str(source))
        names = reader.get_all_records()
        order = bytes(reader.get_record("byteorder")) if "byteorder" in names else b"little"
        if order != b"little":
            raise Unsupported(f"{source} was written with byte order {order!r:.20}; only little-endian files convert")
        keys = sorted((name for name in names if name.startswith("data/")), key=_natural)
        _check_keys(source, keys)
        places = [(reader.get_record_offset(key), sizes[key]) for key in (layout.STRUCTURE, *keys)]
    except (RuntimeError, KeyError) as error:
        raise NotThisFormat(f"{source} is not a zip of torch.save: {str(error).splitlines()[0][:200]}") from error
    trailer = layout.tensors_map(places[0][1], [size for _, size in places[1:]])
    trailer += layout.tail(sum(size for _, size in places), len(trailer))
    with open(source, "rb") as file:
        # not closed here: the traceback of an error may still refer to it
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if any(start + size > len(view) for start, size in places):
        raise NotThisFormat(f"{source} has {len(view)} bytes, its records go beyond them")
    _store(target, [*(view[start : start + size] for start, size in places), trailer], progress)


def _check_zip(source: Path) -> dict[str, int]:
    """Sizes of the records, by their names below the zip's one folder. Refuses what would unpack to more than the file
    has: ``torch.save`` stores records as they are.
    """
    try:
        with zipfile.ZipFile(source) as found:
            records = found.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, UnicodeDecodeError) as error:
        raise NotThisFormat(f"{source} is not a zip of torch.save: {str(error)[:200]}") from error
    size = source.stat().st_size
    for record in records:
        if record.compress_type != zipfile.ZIP_STORED:
            raise Unsupported(
                f"{source}: {record.filename[:80]!r} is compressed; torch.save stores records as they are"
            )
    if (total := sum(record.file_size for record in records)) > size:
        raise NotThisFormat(f"{source} has {size} bytes, its records claim {total}")
    return {record.filename.partition("/")[2]: record.file_size for record in records}


def _check_keys(source: Path, keys: list[str]) -> None:
    if keys != [f"data/{number}" for number in range(len(keys))]:
        raise Unsupported(f"{source}: its storages are not numbered 0..{len(keys) - 1}")


def _natural(name: str) -> tuple[int, str]:
    tail = name.removeprefix("data/")
    return (int(tail) if tail.isdecimal() else 1 << 62, name)


def to_safetensors(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Write the tensors of ``source`` under dotted names (``model.layer.weight``).

    Raises :class:`Unsupported` naming what safetensors cannot hold: values that are no tensors, layouts that are not
    dense. Tensors that share memory are written one by one.
    """
    library = _safetensors()
    tensors: dict[str, Any] = {}
    taken: set[int] = set()
    for name, value in _flat(reading.load(source)):
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            kind = type(value).__name__
            if isinstance(value, torch.Tensor):
                kind = "quantized tensor" if value.is_quantized else f"{value.layout} tensor"
            raise Unsupported(f"{source}: {name or 'the whole'} is a {kind}; safetensors holds dense tensors only")
        if name in tensors:
            raise Unsupported(f"{source}: two tensors get the name {name}")
        value, storage = value.detach(), value.untyped_storage()
        if value.is_contiguous() and storage.nbytes() == value.nbytes and storage._cdata not in taken:
            tensors[name] = value
        else:
            tensors[name] = value.clone(memory_format=torch.contiguous_format)
        taken.add(storage._cdata)
    stage = durable.staging(target)
    try:
        library.save_file(tensors, str(stage))
        if progress:
            progress(stage.stat().st_size)
        give_name(stage, target)
    finally:
        stage.unlink(missing_ok=True)


def from_safetensors(source: Path, target: Path, progress: Progress | None = None) -> None:
    """Write a safetensors file as a ``.mindio`` file that holds one dictionary by name."""
    library = _safetensors()
    try:
        tensors = library.load_file(str(source))
    except Exception as error:
        raise NotThisFormat(f"{source} is not a safetensors file: {str(error)[:200]}") from error
    _store(target, image.image(tensors).chunks(), progress)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise Unsupported("safetensors is not installed: pip install safetensors") from error
    return safetensors.torch


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _store(target: Path, parts: list[Any], progress: Progress | None) -> None:
    """Write parts as one durable file with its sums."""
    size = sum(len(part) for part in parts)
    # not closed here: the traceback of an error may still refer to it
    view, position = memoryview(mmap.mmap(-1, max(size, 1))), 0
    for part in parts:
        view[position : position + len(part)] = part
        position += len(part)
    durable.write(target, view[:size], progress=progress)


def give_name(stage: Path, target: Path) -> None:
    """Make a finished staging file durable under its name; old sums belong to the replaced content."""
    handle = os.open(stage, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(stage, target)
    sums.forget(target)
    sums.sync_folder(target.parent)


FORMATS: dict[tuple[str, str], Callable[[Path, Path, Progress | None], None]] = {
    ("mindio", "torch"): to_zip,
    ("torch", "mindio"): from_zip,
    ("mindio", "safetensors"): to_safetensors,
    ("safetensors", "mindio"): from_safetensors,
}
"""Ways from one format to another."""


def kind(path: Path) -> str:
    """``mindio``, ``torch`` or ``safetensors``, by content. Raises :class:`NotThisFormat`, ``OSError``."""
    source = FileSource(path)
    try:
        last = read(source, max(0, source.size - 64), min(64, source.size))
        first = read(source, 0, min(10, source.size))
    finally:
        source.close()
    if last.endswith(layout.FLAG):
        return "mindio"
    if first.startswith(b"PK\x03\x04"):
        return "torch"
    if len(first) == 10 and first[8:9] == b"{" and int.from_bytes(first[:8], "little") < source.size:
        return "safetensors"
    raise NotThisFormat(f"{path} is neither a .mindio file nor torch's zip nor safetensors")


def convert(source: Path, target: Path, wanted: str | None = None, progress: Progress | None = None) -> str:
    """Convert by content; without ``wanted``, to torch's zip, or from another format to ``.mindio``.

    Returns the format written. Raises :class:`NotThisFormat`, :class:`Unsupported`, ``OSError``.
    """
    given = kind(source)
    wanted = wanted or ("torch" if given == "mindio" else "mindio")
    if source.resolve() == target.resolve():
        raise CheckpointError(f"{source} and {target} are the same file")
    if (given, wanted) not in FORMATS:
        raise Unsupported(f"{source} is {given}; it cannot be converted to {wanted} directly (convert to mindio first)")
    FORMATS[given, wanted](source, target, progress)
    return wanted
