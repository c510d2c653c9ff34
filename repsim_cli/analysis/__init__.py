"""From matrices to statements."""
