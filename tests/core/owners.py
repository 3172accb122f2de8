"""Which tests need owners and modes of files, and the right to give these away."""

from __future__ import annotations

import os

import pytest

STRANGER = 54321  # another user's number
posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away"
)
