"""How are models built? Blocks, widths, parameters, from their configurations."""
