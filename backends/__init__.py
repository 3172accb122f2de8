"""The kernel frontends, one sub-package each, imported on first use by `planning.registry`."""
