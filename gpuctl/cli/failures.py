"""Every way in which a command can end, turned into an exit code and at most one message on stderr."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable

import click

from gpuctl.cli import output
from gpuctl.errors import GpuctlError

INTERRUPTED = 130
_PIPE_CLOSED = 141  # as a shell reports a program that SIGPIPE ended
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what only a write to stdout leaves to us to say


class Interrupted(Exception):
    """Ctrl-C, after the command has said what was done and what goes on. Exit 130, no further message."""


def reported(command: Callable[[], int | None]) -> int:
    """Runs it; what it raises is told in one short message. The exit code."""
    try:
        code = command() or 0
        sys.stdout.flush()
    except Interrupted:
        return INTERRUPTED
    except (KeyboardInterrupt, click.Abort):
        output.note("interrupted")
        return INTERRUPTED
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.ClickException as wrong:
        return _usage(wrong)
    except BrokenPipeError:
        _give_up_stdout()  # whoever read us (`| head`) has what it wanted
        return _PIPE_CLOSED
    except OSError as error:
        return _unwritable(error) if error.errno in _UNWRITABLE and error.filename is None else _bug(error)
    except GpuctlError as failure:
        output.error(failure.what, failure.hint)
        return failure.exit_code
    except ExceptionGroup as group:
        first = _first(group)
        return reported(lambda: _raise(first))
    except Exception as bug:  # noqa: BLE001 - the last resort: whatever it is, a person gets a message
        return _bug(bug)
    return code


def _unwritable(error: OSError) -> int:
    _give_up_stdout()
    output.error(f"can't write the output: {error.strerror}", "look at the disk that it goes to")
    return 1


def _give_up_stdout() -> None:
    """The interpreter's own flush at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(wrong: click.ClickException) -> int:
    if isinstance(wrong, click.exceptions.NoArgsIsHelpError):
        output.note(wrong.format_message())
        return 2
    hint = ""
    if isinstance(wrong, click.UsageError) and wrong.ctx is not None:
        hint = f"see: {wrong.ctx.command_path} --help"
    output.error(wrong.format_message(), hint)
    return 2


def _raise(error: Exception) -> int:
    raise error


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """The error that a person should hear of: ours before others."""
    ours, others = group.split(GpuctlError)
    error: Exception = (ours or others or group).exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error


def _bug(bug: Exception) -> int:
    if os.environ.get("GPUCTL_TRACEBACK"):
        traceback.print_exception(bug)
    frame = traceback.extract_tb(bug.__traceback__)[-1]
    output.error(
        f"internal error: {type(bug).__name__}: {bug} ({os.path.basename(frame.filename)}:{frame.lineno})",  # noqa: PTH119
        "this is a bug in gpuctl, please report it; GPUCTL_TRACEBACK=1 shows where",
    )
    return 1
