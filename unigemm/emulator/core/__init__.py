"""The machine: warps, memory, arithmetic, control flow."""
