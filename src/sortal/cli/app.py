"""The command line: every command parses, makes one library call and prints; heavy imports stay inside commands."""

import errno
import io
import logging
import os
import platform
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from cyclopts import App, CycloptsError, Group

from sortal import __version__
from sortal.cli import benchmark, decisions, discover, images, predict, runs, start
from sortal.cli.mistakes import explain, whole_numbers
from sortal.cli.options import processes, settings_of_methods, spell, words
from sortal.errors import NO_SPACE, NO_TEMPORARY, ElsewhereError, InputError, SortalError, no_space, quoted
from sortal.system.progress import is_first, say
from sortal.system.signals import answer_signals, handling

EXAMPLES = """\
Examples:
  sortal app                   do all of this in the browser
  sortal discover photos       sort a folder of images, and write a report
  sortal predict RUN new       sort more images with an existing run
  sortal export RUN --format folders --out sorted
  sortal review RUN            name, merge, split and confirm, in the browser
  sortal import RUN FILE       what was annotated in another tool, as decisions
  sortal decisions RUN         what people decided about a run
  sortal report RUN            draw the report again, with those decisions
  sortal figures RUN           draw figures of a run for print
  sortal benchmark presets     the rows of the paper's tables, one command each
  sortal check photos          count the images in a folder, and find problems
  sortal demo                  sort digits: five classes are known, five are new
"""

FULL_OUTPUT = "Cannot write to standard output: no space left. Free some space, or send the output elsewhere."
SERVING = (("review",), ("app",))  # ended by Ctrl-C, as their documentation says
NARROWEST, WIDEST = 20, 1000  # columns of a terminal that text is laid out for
# The machine lacks something at the moment: not a bug of the program
SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}  # by permissions, or because a disk is read-only
NO_MEMORY = (  # from Python, from torch and from the loader of libraries
    "can't start new thread",
    "can't allocate memory",
    "not enough memory",
    "failed to map segment",
    "cannot allocate memory",
)
EPILOGUES = {("discover",): discover.DISCOVER_EXAMPLES, ("benchmark",): benchmark.BENCHMARK_EXAMPLES}
RESUMABLE = (("discover",), ("benchmark",))  # these also run in several processes

app = App(
    name="sortal",
    help="Sortal sorts partly labelled images into classes: the ones you have named and the ones nobody has named yet.",
    help_epilogue=EXAMPLES,
    help_format="plaintext",
    version=__version__,
    group_parameters=Group("Parameters", validator=whole_numbers),
    # Errors, Ctrl-C and the exit code are handled in one place, main().
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
app.command(start.start_page, name="app", help_epilogue=start.APP_EXAMPLES)
app.command(discover.discover, help_epilogue=discover.DISCOVER_EXAMPLES)
app.command(predict.predict, help_epilogue=predict.PREDICT_EXAMPLES)
app.command(runs.export, help_epilogue=runs.EXPORT_EXAMPLES)
app.command(runs.figures, help_epilogue=runs.FIGURES_EXAMPLES)
app.command(runs.review, help_epilogue=runs.REVIEW_EXAMPLES)
app.command(decisions.decisions)
app.command(decisions.import_annotations, name="import", help_epilogue=decisions.IMPORT_EXAMPLES)
app.command(runs.report, help_epilogue=runs.REPORT_EXAMPLES)
app.command(benchmark.benchmark)
app.command(discover.demo, help_epilogue=discover.DEMO_EXAMPLES)
app.command(images.check, help_epilogue=images.CHECK_EXAMPLES)
app.command(images.features, help_epilogue=images.FEATURES_EXAMPLES)
app.command(images.sample, help_epilogue=images.SAMPLE_EXAMPLES)


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0 done, 1 failed, 2 bad usage or input, 3 done but files were left out, 130 interrupted.
    """
    words.set(tuple(sys.argv[1:] if tokens is None else tokens) or (("app",) if start.is_for_page() else ()))
    command = words.get()[:1]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # escape what the encoding lacks
    _limit_width()
    if tokens is None:  # in a process of its own
        _hush_libraries()
    try:
        with handling("SIGTERM", signal.default_int_handler), _answered(command):  # systems end programs with it
            _check_processes(command)
            _describe_methods(command)
            code = app(words.get())
            print(end="", flush=True)  # report a closed pipe here, not while Python shuts down
    except CycloptsError as error:
        return _fail(explain(error, app), 2) if is_first() else 2
    except ElsewhereError as error:  # each process in which it happened reports it; of the others, only the first
        return _fail(error.text(spell), 1) if is_first() else 1
    except SortalError as error:
        where = "" if is_first() else f"In process {os.environ['RANK']}, on {platform.node()}: "
        return _fail(where + error.text(spell), 2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        return _interrupted(command)
    except (MemoryError, RuntimeError, ImportError) as error:
        if _is_interrupt(error):
            return _interrupted(command)
        if (too_many := os.strerror(errno.EMFILE)) in str(error):  # from libraries that are not written in Python
            return _refused(too_many)
        if not isinstance(error, MemoryError) and not any(each in str(error) for each in NO_MEMORY):
            raise
        return _fail("There is not enough memory. Close other programs, or use a machine with more.", 1)
    except OSError as error:
        return _stopped_by_machine(error)
    return code if isinstance(code, int) else 0


def _stopped_by_machine(error: OSError) -> int:
    """Report what the machine lacks and return the exit code; raise an error that is a bug of the program."""
    try:
        os.getcwd()
    except OSError:
        return _fail("The current folder does not exist any more. Change to another, and repeat the command.", 2)
    if error.errno == errno.ENAMETOOLONG:  # no such file can exist, so nothing that reads or writes expects it
        return _fail(f"The name {quoted(error.filename, 200)} is too long for the file system. Choose another.", 2)
    if error.errno in NO_SPACE and error.filename is not None:
        return _fail(no_space(error, repr(os.fsdecode(error.filename))).message, 1)
    if isinstance(error, BrokenPipeError) or error.errno in NO_SPACE:
        # Errors of files have a name, or are a NoSpaceError: this one is of standard output.
        with suppress(AttributeError, OSError):  # unless it is closed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # lets the final flush succeed
        return 1 if isinstance(error, BrokenPipeError) else _fail(FULL_OUTPUT, 1)
    if error.errno in DENIED and error.filename is not None:
        where = quoted(os.fsdecode(error.filename), 200)
        return _fail(f"Access to {where} was denied: {error.strerror}. Change that, or use another folder.", 2)
    if error.errno == errno.ENOENT and error.filename is None:  # raised by tempfile, which tries several folders
        return _fail(NO_TEMPORARY, 2)
    if error.errno not in SHORTAGES:
        raise error
    where = "" if error.filename is None else f" ({quoted(error.filename, 200)})"
    return _refused(f"{error.strerror}{where}")


def _refused(what: str) -> int:
    return _fail(f"The system refused a request: {what}. Resolve that, then repeat the command.", 1)


def _limit_width() -> None:
    """Limit the width for which libraries lay out text, whatever COLUMNS and LINES say."""
    columns = shutil.get_terminal_size().columns
    limited = str(min(max(columns, NARROWEST), WIDEST))
    if os.environ.get("COLUMNS", str(columns)) != limited:
        os.environ["COLUMNS"] = limited
    if not os.environ.get("LINES", "25").isdecimal():
        del os.environ["LINES"]


def _hush_libraries() -> None:
    """Print warnings of this package as messages, and hide those of libraries, which are meant for programmers."""

    class Messages(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.partition(".")[0] == "sortal" and is_first():
                say(f"sortal: {record.getMessage()}")

    logging.basicConfig(level=logging.WARNING, handlers=[Messages()])
    os.environ.setdefault("HF_HUB_VERBOSITY", "critical")  # its logger has a handler of its own
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


def _describe_methods(command: tuple[str, ...]) -> None:
    """Let help also describe the settings of the methods that are named with it."""
    if command in EPILOGUES and {"--help", "-h"} & {*words.get()}:
        app[command[0]].help_epilogue = "\n".join(filter(None, (settings_of_methods(), EPILOGUES[command])))


def _check_processes(command: tuple[str, ...]) -> None:
    """Refuse torchrun for commands that run in one process."""
    if processes() > 1 and (command not in RESUMABLE or "--dry-run" in words.get()):
        message = f"Only discover and benchmark run in several processes, got {processes()}. Do without torchrun."
        raise InputError(message) if is_first() else ElsewhereError(message)


def _fail(message: str, code: int) -> int:
    say(f"sortal: error: {message}")
    return code


def _is_interrupt(error: BaseException | None) -> bool:
    """Tell whether Ctrl-C caused an error: while a class is being defined, Python turns it into a RuntimeError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _interrupted(command: tuple[str, ...]) -> int:
    if is_first():
        say(f"sortal: interrupted{'; run the same command to resume' if command in RESUMABLE else ''}")
    return 130


@contextmanager
def _answered(command: tuple[str, ...]) -> Iterator[None]:
    """Confirm Ctrl-C at once, and end on a second one, which is safe: files are only replaced as a whole.

    Not while the start page runs: it ends the commands that it has started.
    """
    if command == ("app",):
        yield
        return

    def stopping() -> None:
        if is_first() and command not in SERVING:
            say("sortal: stopping… (press Ctrl-C again to stop at once)")

    def end() -> None:
        code = _interrupted(command)
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)

    with answer_signals(stopping, end):
        yield
