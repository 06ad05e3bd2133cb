"""Unpickles data only: tensors, storages, containers, scalars, plain records of settings.

The restricted reader is torch's own (``torch.load(weights_only=True)`` uses it too), with a few more classes of
checkpoints of training frameworks, whose creation runs no code.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import _weights_only_unpickler as restricted

from belay.agents.training.checkpoint.errors import Damaged, Unsupported

_guard = threading.Lock()
_PLAIN: list[Any] = [
    frozenset,
    slice,
    range,
    argparse.Namespace,
    types.SimpleNamespace,
    collections.deque,
    datetime.datetime,
    datetime.date,
    datetime.timedelta,
]


def load(name: str, data: bytes, persistent: Callable[[Any], Any], weights_only: bool = True) -> Any:
    """The object pickled in ``data``; ``persistent`` makes storages of persistent ids.

    Raises :class:`Unsupported` naming the class that is not data, :class:`Damaged` for bytes that are not a
    pickle. ``weights_only=False`` runs any code in the file: for trusted files only.
    """
    if not weights_only:
        return _anything(name, data, persistent)
    try:
        with _guard:
            extra = [kind for kind in _plain() if kind not in restricted._get_safe_globals()]
            with restricted._safe_globals(extra):
                reader = restricted.Unpickler(io.BytesIO(data), encoding="utf-8")
                reader.persistent_load = persistent
                found = reader.load()
                torch._utils._validate_loaded_sparse_tensors()
                return found
    except pickle.UnpicklingError as error:
        if "global" in str(error).lower() or "allowlisted" in str(error):
            raise Unsupported(
                f"{name}: {str(error)[:300]} (only data is loaded: permit the class by "
                "torch.serialization.add_safe_globals, or pass weights_only=False for a file that you trust)"
            ) from error
        raise Damaged(f"{name}: the pickled structure is damaged: {str(error)[:300]}") from error
    except (Damaged, Unsupported):
        raise
    except Exception as error:
        raise Damaged(
            f"{name}: the pickled structure is damaged: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def _anything(name: str, data: bytes, persistent: Callable[[Any], Any]) -> Any:
    class Reader(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return persistent(pid)

        def find_class(self, module: str, symbol: str) -> Any:
            if module == "torch" and symbol.endswith("Storage") and symbol != "UntypedStorage":
                return torch.serialization.StorageType(symbol)
            return super().find_class(module, symbol)

    try:
        found = Reader(io.BytesIO(data)).load()
        torch._utils._validate_loaded_sparse_tensors()
        return found
    except Damaged:
        raise
    except Exception as error:
        raise Damaged(f"{name}: the object cannot be made: {type(error).__name__}: {str(error)[:300]}") from error


def _plain() -> list[Any]:
    """The classes permitted beside torch's; NumPy's arrays when this process has NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return _PLAIN
    core: Any = getattr(numpy, "_core", None) or numpy.core
    kinds = [type(numpy.dtype(code)) for code in "?bBhHiIlLqQefdgFDGSUV"]
    return [
        *_PLAIN,
        numpy.ndarray,
        numpy.dtype,
        core.multiarray._reconstruct,
        (core.multiarray._reconstruct, "numpy.core.multiarray._reconstruct"),
        (core.multiarray.scalar, "numpy.core.multiarray.scalar"),
        core.multiarray.scalar,
        *dict.fromkeys(kinds),
    ]
