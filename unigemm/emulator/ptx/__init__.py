"""PTX text: parsed, checked, and what is wrong with it."""
