"""The kernel frontends, one sub-package each, imported on first use by `planning.registry`.

The package is also the public function `unigemm.backends()`: importing a frontend binds the name
`unigemm.backends` to this package, so the package answers calls itself.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Backends(ModuleType):
    def __call__(self) -> Any:
        """Return all backends, and what each one is missing here: `unigemm.api.backends`."""
        from unigemm.info import backends

        return backends()


sys.modules[__name__].__class__ = _Backends
