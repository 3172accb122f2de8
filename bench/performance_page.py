"""The text of the page that `bench.performance` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.model_sizes import FAMILIES
from bench.report import geometric_mean
from bench.scales_page import QUANTIZED, SCALES, quantized_parts, scales_parts

if TYPE_CHECKING:
    from bench.measured_problems import Counted, Fresh, Measured

_WORST = 12
#: The order of the rows.
KINDS = ("bfloat16", "float16", "tf32", "3xtf32", "float32", "float64", "float8_e4m3fn", "int8")
#: What stands beside a kind, where it is not `torch.mm` in the same numbers.
_BESIDE = {
    "3xtf32": "cuBLAS's SGEMM",
    "float8_e4m3fn": "`torch._scaled_mm`",
    "int8": "`torch._int_mm`",
}


@dataclass(frozen=True)
class Facts:
    """What the page is made of.

    Attributes
    ----------
    found
        Problems that were measured.
    counts
        What each file of launches holds.
    families
        What is meant by each family of shapes.
    origins
        For a file: at which commits it was measured, and the note that tells of it.
    commit
        That changed the planner last.
    hosts, grouped, scales, quantized
        What `bench.host_times`, `bench.grouped`, `bench.scales` and `bench.quantized` have written,
        by the file's name.
    pictures
        The pictures that were drawn, by what they show.
    fresh
        Picks of ``families:SEED``, by the file.
    """

    found: Sequence[Measured]
    counts: Sequence[Counted]
    families: Mapping[str, str]
    origins: Mapping[str, Mapping[str, str]]
    commit: str
    hosts: Mapping[str, Any] = field(default_factory=dict)
    grouped: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, Any] = field(default_factory=dict)
    quantized: Mapping[str, Any] = field(default_factory=dict)
    pictures: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    fresh: Sequence[Fresh] = ()


def kinds_of(found: Iterable[Measured]) -> list[str]:
    """Return the kinds of numbers that occur, in the order of the rows."""
    there = {x.kind for x in found}
    return [*(kind for kind in KINDS if kind in there), *sorted(there - {*KINDS})]


def short(card: str) -> str:
    """Return a device's name without its maker."""
    return card.removeprefix("NVIDIA ")


def page(facts: Facts) -> str:
    """Return the page."""
    parts = [
        _INTRODUCTION,
        *_families(facts),
        *_fresh(facts),
        _held_out(facts),
        _fitted(facts),
        _worst(facts),
        *_of_files(facts, _GROUPED, facts.grouped, _grouped_parts),
        *_of_files(facts, SCALES, facts.scales, scales_parts),
        *_of_files(facts, QUANTIZED, facts.quantized, quantized_parts),
        _roofline(facts),
        _host(facts),
        _sources(facts),
    ]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """# Performance

<!-- Made by `python -m bench.performance`; change that. -->

A ratio is cuBLAS's time over unigemm's in the same run: above 1 unigemm is faster. unigemm is what
`auto` picks with no tuning. Means are geometric. Every time was taken on the device that is named,
and a pick that nobody has measured is left out, and counted. The fastest launch's mean is of all
problems, those too whose pick was left out, and so may be below the picks'. Other cards were not at
hand. What was learned on the way is in the [measurements](../bench/NOTES.md) and the
[lab notes](lab-notes/README.md)."""

_BY_FAMILY = """## By family of shapes and kind of numbers

Picks for shapes that nothing was fitted to. How a kernel comes there, from one thread an element
to the top: [the ladder](ladder.md)."""

_FRESH = """## Fresh problems, the same number of each family

Shapes drawn by a seed that no fit, no tile and no sweep had seen, of each family in turn until the
time of the run was over. Of several runs on a card the last is the newest, of the planner of then.
What the planner picked was measured, and nothing else was tried: every pick counts. The mean of a
kind is that of its families' means, so that no family weighs more than another. The families, the
first that fits: """

_HELD_OUT = """## Shapes that nothing was fitted to

Sizes of models as people run them, and skinny, deep, odd, small and stacked ones. No coefficient
was fitted to these shapes, and no tile was made for them."""

_FITTED = """## Shapes that the cost models were fitted to

They flatter the planner, since it was fitted to launches of these problems. Where few picks were
measured, their mean says little; the fastest launch that was measured, of all problems, says what
the kernels can do. Many problems of the H200 were measured with one backend alone, which is not
always the one that is picked. The families, the first that fits: """

_WORST_OF_ALL = """## Where it loses most

Beside the pick's ratio stands that of the fastest launch measured for the problem: where it is
above 1 the planner loses. Of fresh problems only the pick was measured: it is the fastest."""

_GROUPED = """## Grouped products

Layers of experts in bfloat16: sizes of groups are drawn by a seed, or are equal. Beside unigemm's
pick stand the times of others over its own, so that it is faster where they are above 1: PyTorch's
`_grouped_mm`, one dense product of as much work by cuBLAS, and a copy of as many bytes as all
operands and the result have. Where each expert has few rows its weights decide, and the copy is
what to compare with. Several seeds stand as their geometric mean."""

_ROOFLINES = """## Rooflines

The rates of the picks above, and of cuBLAS, below what the card could do at most by its data sheet:
bandwidth of the memory on the left, rate of the units that multiply on the right. Operands come
from memory, not from the L2."""

_METHOD = """Calls are captured in CUDA graphs; cuBLAS (`torch.mm(out=)`) and unigemm are replayed
in turns in the same run. Inputs are random numbers and rotate past twice the L2. A problem's ratio
is the median over the runs of its pick. For float32 TF32 is off; for `tf32` cuBLAS may use it
too; `3xtf32` is held against its SGEMM; 8 bits against `torch._scaled_mm` and `torch._int_mm`, in
layout nt alone. [More](../bench/README.md)."""


def _rows(found: Sequence[Measured]) -> str:
    lines = [
        "| | picks measured | mean | worst | at 1 or above | all problems | fastest launch, mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds_of(found):
        of_kind = [x for x in found if x.kind == kind]
        ratios = [x.ratio for x in of_kind if x.plan]
        mean = "| | |"
        if ratios:
            share = 100 * sum(ratio >= 1 for ratio in ratios) // len(ratios)  # 100 stands for all
            mean = f"| **{geometric_mean(ratios):.3f}** | {min(ratios):.3f} | {share}%"
        best = f"{len(of_kind)} | {geometric_mean([x.best for x in of_kind]):.3f}"
        lines.append(f"| {_beside(kind)} | {len(ratios)} {mean} | {best} |")
    return "\n".join(lines)


def _by_family(found: Sequence[Measured], families: Iterable[str]) -> str:
    found = [x for x in found if x.plan]
    names = [name for name in families if any(x.family == name for x in found)]
    lines = [f"| | {' | '.join(names)} |", "|---" * (1 + len(names)) + "|"]
    for kind in kinds_of(found):
        cells = [kind]
        for name in names:
            cells.append(_cell([x.ratio for x in found if (x.kind, x.family) == (kind, name)]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside(kind: str) -> str:
    return f"{kind}, over {_BESIDE[kind]}" if kind in _BESIDE else kind


def _of_cards(facts: Facts, held_out: bool) -> list[str]:
    parts = []
    for card in sorted({x.card for x in facts.found if x.held_out == held_out}):
        found = [x for x in facts.found if (x.card, x.held_out) == (card, held_out)]
        picked = [x for x in found if x.plan]
        parts.append(f"### {short(card)}{', held out' if held_out else ''}")
        parts.append(
            f"{len(found)} problems were measured on it; of {len(picked)} the launch that the "
            f"planner picks (commit {facts.commit}) is among those measured."
        )
        parts.append(_rows(found))
        if picked:
            parts.append("By families of shapes, mean / worst (problems):")
            parts.append(_by_family(found, facts.families))
        picture = facts.pictures.get(("ratios", card, "heldout" if held_out else "fitted"))
        if picture:
            parts.append(f"![Ratio to cuBLAS of each problem, by kind of numbers]({picture})")
    return parts


def _fresh(facts: Facts) -> list[str]:
    if not facts.fresh:
        return []
    parts = [_FRESH + "; ".join(f"*{name}*: {what}" for name, what in FAMILIES.items()) + "."]
    for each in facts.fresh:
        measured_at = facts.origins.get(each.file, {}).get("commits", "not noted")
        parts.append(f"### {short(each.card)}, {measured_at}: {len(each.problems)} problems")
        parts.append(_by_mean_of_families(each.problems))
    return ["\n\n".join(parts)]


def by_kind_and_family(problems: Sequence[Measured]) -> dict[str, dict[str, list[float]]]:
    """Return the ratios of problems by kind of numbers, and by family."""
    found: dict[str, dict[str, list[float]]] = {}
    for kind in kinds_of(problems):
        ratios = {
            name: [x.ratio for x in problems if (x.kind, x.family) == (kind, name)]
            for name in FAMILIES
        }
        found[kind] = {name: some for name, some in ratios.items() if some}
    return found


def _by_mean_of_families(problems: Sequence[Measured]) -> str:
    names = [name for name in FAMILIES if any(x.family == name for x in problems)]
    lines = [f"| mean / worst (problems) | families' mean | {' | '.join(names)} |"]
    lines.append("|---" * (2 + len(names)) + "|")
    for kind in kinds_of(problems):
        cells, means = [], []
        for name in names:
            some = [x.ratio for x in problems if (x.kind, x.family) == (kind, name)]
            cells.append(_cell(some))
            means += [geometric_mean(some)] if some else []
        row = [_beside(kind), f"**{geometric_mean(means):.3f}**", *cells]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def _cell(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    return f"{geometric_mean(ratios):.2f} / {min(ratios):.2f} ({len(ratios)})"


def _families(facts: Facts) -> list[str]:
    """Return the pictures of the means of families, one for each card."""
    parts = []
    for (what, *card), picture in facts.pictures.items():
        if what == "families":
            said = f"Mean and worst ratio to cuBLAS on an {short(card[0])}, by family and numbers"
            parts.append(f"### {short(card[0])}\n\n![{said}]({picture})")
    return ["\n\n".join([_BY_FAMILY, *parts])] if parts else []


def _held_out(facts: Facts) -> str:
    return "\n\n".join([_HELD_OUT, *_of_cards(facts, held_out=True)])


def _fitted(facts: Facts) -> str:
    families = "; ".join(f"*{name}*: {what}" for name, what in facts.families.items())
    return "\n\n".join([_FITTED + families + ".", *_of_cards(facts, held_out=False)])


def _worst(facts: Facts) -> str:
    parts = [_WORST_OF_ALL]
    for held_out, what in ((True, "nothing was fitted to"), (False, "the models were fitted to")):
        found = [x for x in facts.found if x.held_out == held_out and x.plan]
        if held_out:
            found += [x for each in facts.fresh for x in each.problems]
        found = list({(x.card, x.kind, x.name, x.us): x for x in found}.values())
        if not found:
            continue
        lines = [
            f"| Shapes that {what} | | card | ratio | fastest measured | us | pick |",
            "|---|---|---|---|---|---|---|",
        ]
        for x in sorted(found, key=lambda each: each.ratio)[:_WORST]:
            ratios = f"{x.ratio:.3f} | {x.best:.3f} | {x.us:.1f}"
            lines.append(
                f"| {x.name} | {x.kind} | {short(x.card).split()[0]} | {ratios} | {x.pick} |"
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


_FORMS = {"m": "rows", "k": "K", "rows": "stacks"}


def _grouped_parts(found: Mapping[str, Any], heading: str, name: str) -> list[str]:
    """Return what `bench.grouped` has measured, under a heading of the card; `name` is the file."""
    lines = [
        "| groups | divided | rows in all | N x K | unigemm, us | PyTorch | dense | copy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cases: dict[str, list[dict[str, Any]]] = {}
    for record in found["records"]:
        if "form" in record:
            cases.setdefault(record["case"], []).append(record)
    lines += [f"| {_of_case(case, records)} |" for case, records in cases.items()]
    clocked = [record for record in found["records"] if "form" not in record]
    told = [
        f"By the clock a jitted call of {case} takes "
        + " and ".join(f"{x['us']:.0f} us by `{x['way']}`" for x in clocked if x["case"] == case)
        + "."
        for case in dict.fromkeys(x["case"] for x in clocked)
    ]
    origin = f"From `bench/data/{name}`, by `python -m bench.grouped`."
    return [heading, "\n".join(lines), *told, origin]


def _heading(facts: Facts, name: str, found: Mapping[str, Any]) -> str:
    """Return a heading with the card on which a file was measured, and the commit."""
    commits = facts.origins.get(name, {}).get("commits", "not noted")
    return f"### {short(found['device'])}, PyTorch {found['torch']}, {commits}"


def _of_files(
    facts: Facts,
    introduction: str,
    files: Mapping[str, Any],
    parts_of: Callable[[Mapping[str, Any], str, str], list[str]],
) -> list[str]:
    """Return a section of files that have a heading each; nothing where there are none."""
    parts = [
        part
        for name, found in files.items()
        for part in parts_of(found, _heading(facts, name, found), name)
    ]
    return ["\n\n".join([introduction, *parts])] if parts else []


def _of_case(case: str, records: Sequence[Mapping[str, Any]]) -> str:
    """Return the cells of a case: of each way the mean of what it takes over ours."""
    first = records[0]
    ours = {x["seed"]: x["us"] for x in records if x["plan"]}
    cells = [case, _FORMS[first["form"]], str(first["tokens"]), f"{first['n']}x{first['k']}"]
    cells.append(f"{geometric_mean(list(ours.values())):.0f}")
    for way in ("torch", "dense", "copy"):
        times = [x["us"] / ours[x["seed"]] for x in records if x["way"] == way]
        cells.append(f"{geometric_mean(times):.2f}" if times else "")
    return " | ".join(cells)


def _roofline(facts: Facts) -> str:
    parts = [_ROOFLINES]
    for (what, *card), picture in facts.pictures.items():
        if what == "roofline":
            said = f"Rates of unigemm and cuBLAS below the roofline of an {short(card[0])}"
            parts += [f"### Roofline of an {short(card[0])}", f"![{said}]({picture})"]
    return "\n\n".join(parts)


_HOST = """\
Microseconds until a known call of 64x64 float16 matrices returns: the least, and in brackets the
median, of batches in which all functions take turns (`python -m bench.host_times`). A prepared call
is held against its launch with all arguments at hand. Here the ratio is unigemm's time over the
other's: below 1 unigemm is faster. What is left of them, and why a layer with gelu takes longer, is
in [the note](lab-notes/2026-11-27-nodes-that-only-run.md)."""


def host_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what `bench.host_times` has measured as the rows of a table."""
    rows = ["| call | us | beside | us | ratio |", "|---|---|---|---|---|"]
    for ours, theirs in found["pairs"]:
        us, other = found["us"][ours], found["us"][theirs]
        said = f"| `{ours}` | {us[0]:.1f} ({us[1]:.1f}) | `{theirs}` | {other[0]:.1f} "
        rows.append(f"{said}({other[1]:.1f}) | {us[0] / other[0]:.2f} |")
    return rows


def _host(facts: Facts) -> str:
    parts = ["## Host time of a call", _HOST]
    for name, found in facts.hosts.items():
        told = f"host of an {short(found['card'])}, PyTorch {found['torch']}"
        parts += [
            f"`bench/data/{name}`: {told}, commit {found['commit']}.", "\n".join(host_lines(found))
        ]  # fmt: skip
    return "\n\n".join(parts)


def _sources(facts: Facts) -> str:
    lines = [
        "| launches, in `bench/data` | card | measured at | problems, launches | fitted | how |",
        "|---|---|---|---|---|---|",
    ]
    for count in facts.counts:
        origin = facts.origins.get(count.file, {})
        note = origin.get("note")
        how = f"[note](lab-notes/{note})" if note else origin.get("how", "")
        cards = ", ".join(short(card) for card in sorted(count.cards))
        alone = f" ({count.alone} with no time of cuBLAS: left out)" if count.alone else ""
        fitted = "yes" if count.fitted else "no"
        number = f"{count.problems}, {count.launches}{alone}"
        commits = origin.get("commits", "not noted")
        lines.append(f"| `{count.file}` | {cards} | {commits} | {number} | {fitted} | {how} |")
    made = f"The picks are those of the planner of commit {facts.commit}."
    return "\n\n".join(["## How each figure was taken", "\n".join(lines), _METHOD, made])
