"""Environment variables that MindIO TFT documents, with their ranges; a value out of range counts as not set."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("belay.tolerance")

LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}
LOG_FILES = 5
MAX_LOG = 10 * 1024 * 1024


def number(env: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """A whole number in ``least..most``; anything else is ``default``, with a warning."""
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        log.warning("%s=%.40r is not a whole number in %d..%d: %d is used", name, text, least, most, default)
        return default
    return value


@dataclass(frozen=True)
class Environment:
    """The values of the variables. Times in seconds."""

    retry_times: int
    action_limit: int
    wait_clusterd: int
    stop_before_dump: bool
    shifted: bool
    mindspore: bool
    task: str

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None) -> Environment:
        """The variables of this process, or of ``env``."""
        env = os.environ if env is None else env
        return cls(
            retry_times=number(env, "TTP_RETRY_TIMES", 10, 1, 300),
            action_limit=number(env, "TTP_NORMAL_ACTION_TIME_LIMIT", 180, 30, 1800),
            wait_clusterd=number(env, "MINDIO_WAIT_MINDX_TIME", 30, 1, 3600),
            stop_before_dump=number(env, "TTP_STOP_CLEAN_BEFORE_DUMP", 0, 0, 1) == 1,
            shifted=number(env, "TTP_FRAMEWORK_TYPE", 0, 0, 1) == 1,
            mindspore=env.get("MINDIO_FOR_MINDSPORE", "").strip().lower() in ("true", "1"),
            task=env.get("MINDX_TASK_ID", ""),
        )


def start_log(env: Mapping[str, str] | None = None) -> None:
    """Write the log to the folder TTP_LOG_PATH (default ``logs``), or to the standard output with TTP_LOG_STDOUT=1.

    Without a writable folder only warnings are written, to the standard error.
    """
    env = os.environ if env is None else env
    if log.handlers:
        return
    log.setLevel(LEVELS.get(env.get("TTP_LOG_LEVEL", "INFO").upper(), logging.INFO))
    form = logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(process)d %(message)s", "%Y-%m-%d %H:%M:%S")
    handler: logging.Handler
    if number(env, "TTP_LOG_STDOUT", 0, 0, 1):
        handler = logging.StreamHandler(sys.stdout)
    else:
        name = "ttp_log.log" if env.get("TTP_LOG_MODE") == "ONLY_ONE" else f"ttp_log.log.{os.getpid()}"
        try:
            folder = Path(env.get("TTP_LOG_PATH") or "logs")
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            handler = logging.handlers.RotatingFileHandler(
                folder / name, maxBytes=number(env, "TTP_LOG_SIZE", MAX_LOG, 1, MAX_LOG), backupCount=LOG_FILES - 1,
                delay=True,
            )  # fmt: skip
        except OSError as error:
            handler = logging.StreamHandler(sys.stderr)
            handler.setLevel(logging.WARNING)
            log.warning("the log folder cannot be used: %s", error)
    handler.setFormatter(form)
    log.addHandler(handler)
    log.propagate = False
