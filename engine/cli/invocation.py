"""Shared by all commands: options, exit codes, and errors printed as one line instead of a traceback.

Exit codes: 0 done, 1 findings or differences, 2 the command failed, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, ParamSpec

import click

from belay.engine.errors import INTERRUPTED, leave

P = ParamSpec("P")
DEBUG: Final = "BELAY_DEBUG"
_FORMATS: Final = ("table", "wide", "json", "yaml")
_LONGEST: Final = 500


class KindChoice(click.Choice[str]):
    """Plural names that may be written in the singular and in capitals too, as with kubectl."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).lower()
        plurals = (text, f"{text}s", f"{text.removesuffix('y')}ies")
        known = next((name for name in plurals if name in self.choices), value)
        return str(super().convert(known, param, ctx))


def fails_clearly(command: Callable[P, None]) -> Callable[P, None]:
    """Ends a command with one line and an exit code on any error."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from belay.engine.errors import BelayError

        try:
            _open_closed()
            _tolerate(sys.stdout, sys.stderr)
            with _raised_interrupts():
                try:
                    command(*args, **kwargs)
                finally:
                    sys.stdout.flush()
        except BelayError as error:
            _fail(str(error), error.code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _leave_pipe()
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except OSError as error:
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error) or type(error).__name__
            _fail(text, "SystemError")
        except Exception as error:
            # a bug: print one line, and the traceback on request
            text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
            report = f"This is a bug in Belay; please report it with the output of {DEBUG}=1."
            _fail(f"internal error: {text}. {report}", "InternalError")

    return run


@contextlib.contextmanager
def _raised_interrupts() -> Iterator[None]:
    """Within, an interrupt is a KeyboardInterrupt, which verbs clean up after; before and after it ends the process."""
    if signal.getsignal(signal.SIGINT) is not leave:
        yield
        return
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, leave)


class WholeNumber(click.IntRange):
    """A whole number within bounds, called a whole number in the message about a word that is none."""

    name = "whole number"


class Number(click.FloatRange):
    """The same of any number."""

    name = "number"


def output_option(default: str = "table") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``-o table|wide|json|yaml``."""
    return click.option(
        "-o", "--output", type=click.Choice(_FORMATS), default=default, show_default=True, help="How to print."
    )


def seconds(text: str | None, option: str) -> float | None:
    """A Go-style duration of an option; None if the option is absent.

    Raises:
        InputError: no duration.
    """
    from belay.engine.errors import InputError
    from belay.engine.model.durations import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InputError(str(error), where=option) from error


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options for the inputs of a plan."""
    for option in (
        click.option(
            "--desired",
            metavar="DIR",
            help="State repository (desired/ and policies/) or a desired folder. Default: what the cluster records; "
            "diff needs it.",
        ),
        click.option("--policies", metavar="DIR", multiple=True, help="Policies laid over; may be given again."),
        click.option(
            "--cluster",
            metavar="FILE|live",
            default="live",
            show_default=True,
            help="What `kubectl get … -o json|yaml` printed (- for standard input), or the live cluster.",
        ),
        click.option("--now", metavar="RFC3339", help="Default: the clock (live) or the newest report (FILE)."),
        *_ACCESS,
    ):
        command = option(command)
    return command


_ACCESS: Final = (
    click.option("--kubeconfig", metavar="FILE", help="Default: $KUBECONFIG, ~/.kube/config, in-cluster."),
    click.option("--context", metavar="NAME", help="A context of the kubeconfig. Default: its current one."),
)


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which live cluster, and as whom."""
    for option in _ACCESS:
        command = option(command)
    return command


def debugging() -> bool:
    """Whether tracebacks are asked for."""
    return os.environ.get(DEBUG, "0") not in ("", "0")


def _fail(text: str, code: str) -> None:
    if debugging():
        import traceback

        traceback.print_exc()
    from belay.engine.cli.output import plain

    click.echo(f"belay: {plain(text)} [{code}]", err=True)
    sys.exit(2)


def _leave_pipe() -> None:
    """End quietly after the reader closed the pipe (``| head``), also when Python flushes its buffers."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(0)


def _open_closed() -> None:
    """Let a stream that the shell closed (``>&-``) lead nowhere: Python has None for it."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _tolerate(*streams: Any) -> None:
    """Print the escape of a character that the terminal cannot show, instead of failing."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
