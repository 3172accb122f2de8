"""Files with a product in each line, as JSON: read line by line within limits, checked by type."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import count
from typing import Any

import msgspec

from ..errors import UnsupportedProblem
from ..planning import strict_json as strictjson

__all__ = ["check_words", "lines_of"]

_LONGEST = 16 << 20  # characters of a line
_MOST = 1 << 14  # lines of a file
_EXAMPLE = '{"m": [1, 64], "n": 4096, "k": 4096, "dtype": "bfloat16"}'


class _Words(msgspec.Struct):
    """What is text in a product in words; the other options check themselves."""

    dtype: str
    out_dtype: str | None = None
    layout: str = ""
    epilogue: str | None = None
    along: str = ""
    backend: str | None = None
    precision: str | None = None


def check_words(spec: Mapping[str, Any]) -> None:
    """Refuse a product in words that has something else where a text belongs.

    Raises
    ------
    UnsupportedProblem
        It says which word.
    """
    try:
        msgspec.convert(
            {name: spec[name] for name in _Words.__struct_fields__ & spec.keys()}, _Words
        )
    except msgspec.ValidationError as error:
        raise UnsupportedProblem(f"{error}; a product is as {_EXAMPLE}") from None


def lines_of(name: str) -> Iterator[tuple[str, Any]]:
    """Yield where each line of a file is, and its data; "-" is stdin.

    Raises
    ------
    UnsupportedProblem
        A line is no JSON in UTF-8, or too long; there are too many lines, or none.
    OSError
        The file cannot be read.
    """
    empty = True
    with nullcontext(sys.stdin) if name == "-" else open(name, encoding="utf-8") as file:
        for number in count(1):
            where = f"line {number} of {name}"
            try:
                line = file.readline(_LONGEST + 1)
                data = strictjson.loads(line, _LONGEST) if line.strip() else None
            except UnicodeDecodeError as error:
                raise UnsupportedProblem(
                    f"{where} is no text in UTF-8 ({error.reason}); give a JSON object in each line"
                ) from None
            except ValueError as error:
                raise UnsupportedProblem(f"{where} is no JSON ({error}); give one object") from None
            if not line:
                break
            if number > _MOST:
                raise UnsupportedProblem(
                    f"{where} is one too many: a list has at most {_MOST}; give ranges of m, or "
                    "several lists"
                )
            if line.strip():
                empty = False
                yield where, data
    if empty:
        raise UnsupportedProblem(
            f"{name} holds no product; record some with unigemm.record, or write lines such as "
            f"{_EXAMPLE}"
        )
