"""`unigemm cache`: list, check, prune, export and import compiled kernels."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ..cache import EntrySummary, default_cache
from ..errors import BackendUnavailable, CacheError
from ..planning.registry import BUILTIN, backend_names
from ..planning.target import named_target
from ..runtime.compile_many import kernel_key
from ..runtime.warmup import plans_for
from ..support.arguments import shown
from ..support.env import parse_size
from . import render as show
from .options import Json, among, named_targets

__all__ = ["cache_app"]

cache_app = typer.Typer(no_args_is_help=True)

BackendName = Annotated[
    str | None,
    typer.Option("--backend", help="Only this backend's kernels.", autocompletion=among(*BUILTIN)),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Only kernels for this target: sm_90a, h100, 'RTX 4090', ...",
        autocompletion=named_targets,
    ),
]


def _those_of(backend: str | None, target: str | None) -> dict[str, str | None]:
    """Return what chooses kernels of the cache, by names as all commands take them.

    Raises
    ------
    BackendUnavailable, UnsupportedProblem
        A name is neither known nor that of a kernel.
    """
    if backend is None and target is None:
        return {}
    kept = default_cache().entries()  # perhaps of a backend or a device that this version lacks
    if backend is not None and backend not in {*backend_names(), *(x.backend for x in kept)}:
        known = ", ".join(backend_names())
        raise BackendUnavailable(f"there is no backend {shown(backend)}; use one of {known}")
    if target is not None and target not in {x.arch for x in kept}:
        target = named_target(target).arch
    return {"backend": backend, "arch": target}


def _print(as_json: bool, report: Any, text: str) -> None:
    if as_json:
        show.print_json(msgspec.to_builtins(report))
    else:
        show.say(text)


@cache_app.command("ls")
def list_command(backend: BackendName = None, target: Arch = None, as_json: Json = False) -> None:
    """List the kernels, the last used first."""
    with show.waiting("looking for kernels", as_json):
        entries = default_cache().entries(**_those_of(backend, target))
    if as_json:
        show.print_json(msgspec.to_builtins(entries))
        return
    if not entries:
        show.say("no kernels in the cache")
        return
    headings = ("key", "backend", "target", "size", "regs", "last used", "layer", "kernel")
    show.print_table(show.table("", headings, map(_entry_row, entries)))


def _entry_row(entry: EntrySummary) -> tuple[str, ...]:
    kernel = entry.kernel
    what = " ".join(
        f"{name.upper()} {part.get('dtype')} {part.get('major')}/{part.get('alignment')}"
        for name in ("a", "b", "d")
        if isinstance(part := kernel.get(name), dict)
    )
    tile = kernel.get("tile")
    extents = "x".join(str(extent) for extent in tile) if isinstance(tile, list) else ""
    return (
        entry.digest[:12],
        entry.backend,
        entry.arch,
        show.size(entry.size_bytes),
        str(entry.registers),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used)),
        entry.layer,
        _printable(f"{what} {extents}"),
    )


def _printable(text: str) -> str:
    """Leave out control characters, as a bundle may have come from anyone."""
    return "".join(c for c in text if c.isprintable())[:200]


@cache_app.command()
def stats(as_json: Json = False) -> None:
    """Count the kernels in the cache, and their bytes."""
    with show.waiting("counting kernels", as_json):
        report = default_cache().stats()
    lines = [
        f"{layer.layer} {layer.path}: {layer.entries} kernels, {show.size(layer.size_bytes)}"
        + (f" ({layer.problem})" if layer.problem else "")
        for layer in report.layers
    ]
    lines += [
        f"  {name} {arch}: {count} kernels, {show.size(total)}"
        for name, arch, count, total in report.groups
    ]
    lines.append(f"limit {show.size(report.limit_bytes)}, set aside {report.quarantined}")
    _print(as_json, report, "\n".join(lines))


@cache_app.command()
def verify(
    repair: Annotated[bool, typer.Option(help="Set damaged kernels aside.")] = False,
    as_json: Json = False,
) -> None:
    """Hash every file again; exit code 1 if something is damaged or cannot be read."""
    with show.waiting("checking kernels", as_json):
        report = default_cache().verify(repair=repair)
    lines = [f"{report.sound} kernels are sound, {len(report.damaged)} damaged"]
    if report.other_versions:
        lines.append(f"{report.other_versions} are of another version of unigemm, which reads them")
    lines += [f"{found.path}: {found.reason}" for found in report.damaged]
    _print(as_json, report, "\n".join(lines))
    if report.damaged:
        raise typer.Exit(1)


@cache_app.command()
def prune(
    limit: Annotated[str | None, typer.Option(help="Size to come down to, such as 512M.")] = None,
    as_json: Json = False,
) -> None:
    """Remove the kernels used longest ago until the rest fits."""
    try:
        size = None if limit is None else parse_size(limit)
    except ValueError as error:
        raise CacheError(str(error)) from None
    with show.waiting("removing kernels", as_json):
        report = default_cache().prune(size)
    _print(as_json, report, _removed(report))


@cache_app.command()
def clear(backend: BackendName = None, target: Arch = None, as_json: Json = False) -> None:
    """Remove all kernels, or those of a backend or an architecture."""
    with show.waiting("removing kernels", as_json):
        report = default_cache().clear(**_those_of(backend, target))
    _print(as_json, report, _removed(report))


def _removed(report: Any) -> str:
    return f"{report.entries} kernels removed ({show.size(report.size_bytes)}), {report.left} left"


def _path(text: str) -> Path:
    """Read a path; an empty one, of an unset variable, would be the current folder."""
    if not text.strip():
        raise typer.BadParameter("the path is empty; name a folder or an archive")
    return Path(text)


@cache_app.command("export")
def export_command(
    destination: Annotated[
        Path, typer.Argument(help="A new folder, or a .tar.gz or .zip.", parser=_path)
    ],
    key: Annotated[list[str] | None, typer.Option(help="Only these keys (first digits).")] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Only the kernels of a list of products, as `unigemm warmup` reads it.",
        ),
    ] = None,
    backend: BackendName = None,
    target: Arch = None,
    digest: Annotated[
        bool, typer.Option("--digest", help="Print what `cache import --expect` takes.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write kernels to a bundle for other machines; exit code 1 where some are damaged."""
    if of is not None and key is not None:
        raise CacheError("--key and --from both say which kernels; give one of them")
    with show.waiting("writing kernels", as_json):
        if of is None:
            chosen: dict[str, Any] = {"digests": key, **_those_of(backend, target)}
        else:
            chosen = {"digests": _kernels_of(of, target), "backend": backend}
        report = default_cache().export_bundle(destination, **chosen)
    lines = [f"{report.entries} kernels ({show.size(report.size_bytes)}) to {report.path}"]
    lines += [f"left out: {found.path}: {found.reason}" for found in report.damaged]
    if digest:
        lines += [f"{content}  {name}/{key}" for name, key, content in report.kernels]
        lines.append(f"{report.digest}  all of them")
    _print(as_json, report, "\n".join(lines))
    if report.damaged:
        raise typer.Exit(1)


def _kernels_of(file: str, target: str | None) -> list[str]:
    """Return the digests of the kernels of a list of products; all of them are there.

    Raises
    ------
    CacheError
        One is not in the cache.
    """
    keys = [key for plan in plans_for(file, target, None) if (key := kernel_key(plan)) is not None]
    lacking = [key for key in keys if default_cache().get(key) is None]
    if lacking:
        names = f"{lacking[0].backend} {lacking[0].digest[:16]}"
        raise CacheError(
            f"{len(lacking)} of {len(keys)} kernels of {file} are not in the cache ({names}); run "
            f"unigemm warmup {file} first"
        )
    return [key.digest for key in keys]


@cache_app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="A folder or an archive.", parser=_path)],
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DIGEST",
            help="Take only the bundle, or the kernels, with these digests (`cache export "
            "--digest` prints them).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Take the kernels of a bundle into the cache; exit code 1 where some are damaged.

    A bundle is native code of whoever made it, and runs with your rights: import only what comes
    from someone you trust. Checksums find damage, not malice. With --expect nothing is taken but
    what has a digest that you were told in another way.
    """
    with show.waiting("taking kernels in", as_json):
        report = default_cache().import_bundle(source, expect=expect or None)
    refused = len(report.refused)
    lines = [f"{report.imported} kernels imported, {report.present} were here, {refused} refused"]
    lines += [f"{found.path}: {found.reason}" for found in report.refused]
    _print(as_json, report, "\n".join(lines))
    if report.refused:
        raise typer.Exit(1)
