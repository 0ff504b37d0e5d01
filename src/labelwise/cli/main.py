"""The command `labelwise`: registers the commands and turns errors into exit codes.

Exit codes: 0 done; 1 a bug of ours (with traceback) or a closed pipe; 2 something in the input or on the command line
is wrong, reported in one message; 130 stopped by Ctrl-C; 143 ended by SIGTERM.

Only typer is imported here: every command imports what it needs when it runs, so that --help is fast.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

import typer

from labelwise import __version__
from labelwise.cli import (
    data,
    models,
    plan,
    predict,
    report,
    train,
)
from labelwise.cli import models as calibrate
from labelwise.cli import models as import_model
from labelwise.cli import models as info
from labelwise.cli import models as learn
from labelwise.cli import models as shrink
from labelwise.cli import predict as encode
from labelwise.cli import predict as evaluate
from labelwise.cli import predict as explain
from labelwise.cli import predict as verify
from labelwise.cli import report as compare
from labelwise.cli import report as config
from labelwise.cli import report as demo
from labelwise.cli import report as serve
from labelwise.cli import train as auto
from labelwise.cli import train as sweep
from labelwise.cli.quiet import accept_quiet, be_quiet
from labelwise.cli.terminal import LogFormatter, echo, note_begin
from labelwise.cli.termination import ending_on_sigterm
from labelwise.errors import ConfigError, LabelwiseError
from labelwise.runtime.ranks import n_ranks

app = typer.Typer(
    name="labelwise",
    help="Classification with very many labels. Start with: labelwise demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("train")(train.train_command)
app.command("auto")(auto.auto_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("predict")(predict.predict_command)
app.command("encode")(encode.encode_command)
app.command("verify")(verify.verify_command)
app.command("explain")(explain.explain_command)
app.command("learn")(learn.learn_command)
app.command("shrink")(shrink.shrink_command)
app.command("import")(import_model.import_command)
app.command("info")(info.info_command)
app.command("serve")(serve.serve_command)
app.command("calibrate")(calibrate.calibrate_command)
app.command("sweep")(sweep.sweep_command)
app.command("compare")(compare.compare_command)
app.command("report")(report.report_command)
app.command("models")(models.models_command)
app.command("plan")(plan.plan_command)
app.command("demo")(demo.demo_command)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
accept_quiet(app)


ONE_PROCESS = (
    "predict", "encode", "sweep", "evaluate", "verify", "calibrate", "learn", "shrink", "import", "serve", "report",
    "demo", "data",
)  # fmt: skip
"""Commands that torchrun must not start: every rank would do all of the work and write the same files."""


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"labelwise {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Show the version."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="Only warnings and results."),
) -> None:
    """Settings of all commands."""
    del version
    screen = logging.StreamHandler(sys.stderr)
    screen.setLevel(logging.INFO)
    screen.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[screen])
    be_quiet(quiet)
    asks_for_help = any(word in context.help_option_names for word in sys.argv[1:])
    if context.invoked_subcommand in ONE_PROCESS and n_ranks() > 1 and not asks_for_help:
        raise ConfigError(
            f"labelwise {context.invoked_subcommand} is for one process, and torchrun has started {n_ranks()} "
            "(WORLD_SIZE); start it without torchrun. Only labelwise train is divided among ranks"
        )


def main(arguments: list[str] | None = None) -> None:
    """Entry point: run a command and exit with its code."""
    note_begin(whole_process=arguments is None)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning OpenMP threads halve the speed of a shared machine
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # label names are UTF-8 wherever they go
    try:
        try:
            with ending_on_sigterm():
                app(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except LabelwiseError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports it again at exit
        sys.exit(1)
    except OSError as error:
        _fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
    except MemoryError:
        _fail("not enough memory")


def _fail(message: str) -> None:
    if sys.stderr is not None:
        echo(f"labelwise: {message}", err=True)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python would try to write the rest again at exit
    sys.exit(2)


if __name__ == "__main__":
    main()
