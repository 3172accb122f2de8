"""Shapes that hypothesis draws."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def broadcasting(draw, shape):
    """Return a shape that broadcasts to another one: shorter, or with ones."""
    own = tuple(extent if draw(st.booleans()) else 1 for extent in shape)
    dropped = draw(st.integers(0, len(shape)))
    while dropped and any(extent != 1 for extent in own[:dropped]):
        dropped -= 1
    return own[dropped:]
