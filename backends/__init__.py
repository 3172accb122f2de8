"""The kernel frontends, one sub-package each; `unigemm.registry` imports them on first use."""
