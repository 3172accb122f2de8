"""All mutants."""

from host_mutants import HOST_MUTANTS
from kernel_mutants import KERNEL_MUTANTS

__all__ = ["MUTANTS"]

MUTANTS = (*KERNEL_MUTANTS, *HOST_MUTANTS)
