"""What needs numba (the extra `fast`): apart from the measures, which are all imported."""
