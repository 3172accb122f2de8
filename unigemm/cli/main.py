"""The command line: `unigemm demo | info | targets | plan | compile | warmup | tune | ...`.

All of them take ``--json``.

Exit codes: 0 if all went well, 1 if a product was wrong or a kernel damaged, 2 if the request
cannot be met, which one sentence on stderr (or a JSON object on stdout) explains.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnigemmError, UnsupportedProblem
from ..info import BackendInfo
from ..planning.explanation import screen
from ..planning.plan import Plan
from ..planning.planner import KEPT
from ..planning.target import name_of
from ..runtime.rounding_kernels import RoundingKernel
from ..runtime.warmup import plans_for
from ..support.version import __version__
from ..tuning.plan_plot import write_plan_plot
from ..tuning.plot import check_picture
from . import render as show
from .cache import cache_app
from .calibrate import calibrate_command
from .options import Json, Targets
from .product import Product, operands_of, plans_of, takes_product
from .report import report_command
from .sweep import sweep_command
from .targets import targets_command

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands
    help="One matmul for NumPy, CuPy, PyTorch, JAX and other DLPack arrays.",
)
app.add_typer(cache_app, name="cache", help="The on-disk cache of compiled kernels.")


Top = Annotated[
    int | None,
    typer.Option(
        "--top",
        min=1,
        help="Rank this many configurations, best first, with the parts of their estimated times "
        "in us: those left of | add up, those right of it are lower bounds of the main loop and "
        "its waves. Default: what fits one screen.",
    ),
]

# The base class of usage errors: click's, or that of the copy of click in newer Typers.
_UsageProblem: Any = typer.BadParameter.__mro__[2]


def main() -> None:
    """Run the command line with the arguments of the process, and exit."""
    # The user of a command does not want to see its source: no file and no line.
    warnings.formatwarning = lambda message, *_, **__: f"unigemm: {message}\n"
    try:
        show.forget_tiny_sizes()
        with show.guarded_streams():
            code = _run("--json" in sys.argv)
    except show.OutputLost as lost:
        code = 141 if lost.closed else 2  # 128 + SIGPIPE, as if the signal had ended us
    sys.exit(code)


def _run(as_json: bool) -> int:
    """Run a command, explain what it cannot do, and return its exit code."""
    try:
        code = app(standalone_mode=False)
    except UnigemmError as error:
        return _failed(as_json, type(error).__name__, str(error), 2)
    except _UsageProblem as error:
        context, message = getattr(error, "ctx", None), error.format_message()
        if not as_json and not message:  # no arguments at all: the help has been printed
            return error.exit_code
        if not as_json and context is not None:
            show.say(context.get_usage(), error=True)
            show.say(f"Try '{context.command_path} -h' for help.", error=True)
        return _failed(as_json, "UsageError", message or "no command", error.exit_code)
    except OSError as error:  # a file that the command names
        where = f" ({error.filename})" if error.filename else ""
        return _failed(as_json, type(error).__name__, f"{error.strerror or error}{where}", 2)
    except typer.Abort:  # Ctrl-C, in older Typers
        return 130
    except SystemExit as exit:  # how shell completion ends
        code = exit.code
    return code if isinstance(code, int) else 0


def _failed(as_json: bool, kind: str, message: str, code: int) -> int:
    if as_json:
        show.print_json({"error": {"type": kind, "message": message}})
    else:
        show.say(f"unigemm: {message}", error=True)
    return code


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return a plan's JSON, with the name of the target in place of its sizes and rates."""
    return {**plan.to_dict(), "target": name_of(plan.target)}


@app.command("plan")
@takes_product()
def plan_command(
    product: Product,
    top: Top = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw roofline, tiles and times into this file: .svg, .png or .pdf."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which kernel computes an M x N x K product, and why. A named target needs no GPU."""
    if plot is not None:
        check_picture(plot)
        if len(product.target or ()) > 1:
            raise UnsupportedProblem("--plot draws one plan; name one --target")
    with show.waiting("planning", as_json):
        plans = plans_of(product, keep=KEPT if top is None else top - 1)
    if plot is not None:
        with show.waiting("drawing", as_json):
            write_plan_plot(plot, plans[0])
    if as_json:
        data = [plan_json(plan) for plan in plans]
        show.print_json(data[0] if len(data) == 1 else data)
        return
    for plan in plans:
        if top is None:
            _print_screen(plan, f"--top {KEPT + 1}")
        else:
            show.print_laid_out(plan.explain(show.width()))


def _print_screen(plan: Plan, more: str) -> None:
    """Print what fits one screen with a prompt; a screen under 24 lines scrolls."""
    lines = max(show.height() or 0, 24) - 1
    show.print_laid_out(screen(plan, show.width() or 80, lines, more))


@app.command("compile")
@takes_product()
def compile_command(
    product: Product,
    as_json: Json = False,
) -> None:
    """Compile the kernel of an M x N x K product into the cache."""
    with show.waiting("planning", as_json):
        plans = plans_of(product)
    _compile(plans, as_json)


def _compile(plans: Sequence[Plan | RoundingKernel], as_json: bool) -> None:
    """Compile the kernels of plans into the cache, and print them."""
    made = show.compile_all(plans, quiet=as_json)
    if as_json:
        show.print_json(show.compiled_json(made))
        return
    show.print_table(show.kernel_table(made))
    show.say(show.compiled_line(made))


@app.command()
@takes_product("target", "batch_invariant")
def tune(
    product: Product,
    candidates: Annotated[int, typer.Option(min=1, help="Measure this many configurations.")] = 8,
    budget: Annotated[float, typer.Option(help="Device time to spend, in seconds.")] = 1.0,
    file: Annotated[
        Path | None, typer.Option(help="Tuning file to add the result to. Default: your own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure configurations of an M x N x K product, and use the fastest from then on."""
    from ..tuning.autotune import autotune

    a, b, ends, requested = operands_of(product)
    with show.progress(as_json) as bar:
        task = bar.add_task("tuning", total=None)
        plan = autotune(
            a,
            b,
            dtype=product.out_dtype,
            precision=product.precision,
            backend=product.backend,
            candidates=candidates,
            budget=budget,
            file=file,
            report=lambda what, done, of: bar.update(
                task, description=what, completed=done, total=of
            ),
            **ends,
            **requested,
        )
    if as_json:
        show.print_json(plan_json(plan))
    else:
        _print_screen(plan, "unigemm plan --top 9")


@app.command("warmup")
def warmup_command(
    file: Annotated[
        str,
        typer.Argument(
            help='Products, one JSON object a line: what unigemm.record wrote, or {"m": [1, 64], '
            '"n": 4096, "k": 4096, "dtype": "bfloat16"}; - is stdin.'
        ),
    ],
    target: Targets = None,
    epilogue: Annotated[
        list[str] | None,
        typer.Option(
            "--epilogue",
            help="Words as of `unigemm compile`, or '' for none; for products in words that have "
            "no epilogue of their own. May be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile the kernels of a list of products into the cache, side by side."""
    with show.waiting("planning", as_json):
        plans = plans_for(file, target, epilogue)
    _compile(plans, as_json)


app.command("sweep")(sweep_command)
app.command("calibrate")(calibrate_command)
app.command("targets")(targets_command)
app.command("report")(report_command)


def _print_version(requested: bool) -> None:
    if requested:
        show.say(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """One matmul for NumPy, CuPy, PyTorch, JAX and other DLPack arrays."""


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, variables, devices, backends and the cache, and what is missing."""
    from .machine import look

    with show.waiting("looking", as_json):
        found = look()
    if as_json:
        show.print_json(found.to_dict())
        return
    show.print_list(f"{name} {version or '-'}" for name, version in found.versions.items())
    variables = [(x.name, _shown(x.value), x.source, x.meaning) for x in found.variables]
    show.print_table(show.table("variables", ("name", "value", "from", "meaning"), variables))
    for x in found.variables:
        if x.problem:
            show.say(f"{x.name}: {x.problem}")
    for name in found.unknown_variables:
        show.say(f"{name} is set and is no variable of unigemm")
    rows = [(backend.name, _availability(backend)) for backend in found.backends]
    show.print_table(show.table("backends", ("name", "available"), rows))
    if found.devices:
        devices = [
            (f"cuda:{x.index}", str(x.target or x.problem), x.calibration or "-")
            for x in found.devices
        ]
        show.print_table(show.table("devices", ("name", "target", "calibration"), devices))
    caches = [
        (x.layer, str(x.path), str(x.entries), show.size(x.size_bytes), x.problem or "-")
        for x in found.cache.layers
    ]
    head = ("layer", "folder", "kernels", "size", "problem")
    show.print_table(show.table("caches", head, caches))
    for sentence in found.missing:
        show.say(f"missing: {sentence}")


def _shown(value: Any) -> str:
    """Return a cell with the value of a variable."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(int(value))
    return show.size(value) if isinstance(value, int) else str(value or "-")


def _availability(backend: BackendInfo) -> str:
    """Return a cell of the table of backends."""
    if backend.compiler_missing is not None and backend.missing is None:
        return f"kernels of the cache only: {backend.compiler_missing}"
    return backend.missing or "yes"


@app.command()
def demo(as_json: Json = False) -> None:
    """Multiply matrices and check the results; without a GPU, also compile for four GPUs."""
    from .demo import run_demo

    if not run_demo(as_json=as_json):
        raise typer.Exit(1)
