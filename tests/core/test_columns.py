"""Text for a terminal breaks between words and columns, and nothing of it is lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from unigemm.support.columns import folded, wrapped

WORDS = st.text("abcx12/", min_size=1, max_size=30)
SENTENCES = st.lists(WORDS, max_size=12).map(" ".join)


def fits(lines, width):
    """Whether each line fits, but for one that is a single word, which is longer."""
    return all(len(line) <= width or len(line.split()) == 1 for line in lines)


@settings(max_examples=40)
@given(st.lists(SENTENCES, max_size=4), st.integers(20, 130))
def test_sentences_break_between_words_and_keep_them_all(sentences, width):
    text = "\n".join(sentences)
    lines = wrapped(text, width).split("\n")
    assert fits(lines, width)
    assert [word for line in lines for word in line.split()] == text.split()
    assert wrapped(text, None) == text


def test_what_continues_a_line_is_indented_more():
    assert wrapped("  not a: b c d e f", 12) == "  not a: b c\n    d e f"


@settings(max_examples=40)
@given(
    st.integers(1, 8).flatmap(
        lambda n: st.lists(st.lists(SENTENCES, min_size=n, max_size=n), min_size=1, max_size=5)
    ),
    st.integers(40, 130),
)
def test_tables_fold_by_columns_and_keep_every_word(rows, width):
    headings = [f"h{i}" for i in range(len(rows[0]))]
    whole = folded(headings, rows, None)
    assert all(len(lines) == 1 for lines in whole)
    lines = folded(headings, rows, width)
    assert len(lines) == len(rows) + 1
    assert fits([line for each in lines for line in each], width)
    for row, each in zip([headings, *rows], lines, strict=True):
        assert sorted(" ".join(each).split()) == sorted(" ".join(row).split())


def test_numbers_are_flush_right_and_what_fits_stands_in_one_line():
    rows = [("a", "1.5", "9.0 KiB", "x y"), ("bcd", "10.25", "-", "z")]
    assert folded(("name", "us", "size", "note"), rows, 80) == [
        ["name     us     size  note"],
        ["a       1.5  9.0 KiB  x y"],
        ["bcd   10.25        -  z"],
    ]


def test_a_long_last_column_is_wrapped_in_place_and_others_go_below():
    reason = "needs a package that is not here; install it"
    assert folded(("name", "available"), [("one", reason)], 34)[1] == [
        "one   needs a package that is not",
        "      here; install it",
    ]
    assert folded(("key", "size", "kernel"), [("k" * 20, "1 B", "a" * 20)], 30) == [
        ["key                   size", "    kernel"],
        ["k" * 20 + "   1 B", "    " + "a" * 20],
    ]
