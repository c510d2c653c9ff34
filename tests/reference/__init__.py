"""Slow, obvious versions of all measures; they share nothing with the package.

One module per family: a function NAME(x, y, **settings) per measure, and CONVENTIONS: which of the golden entries
of a measure follow this package's convention (settings of the entry -> keyword arguments, None where it does not).
SETTINGS: of measures whose defaults are for thousands of rows, what fits the few of a test.
"""

import importlib
import pkgutil

CONVENTIONS, SETTINGS = {}, {}
for _module in pkgutil.iter_modules(__path__):
    _family = importlib.import_module(f"reference.{_module.name}")
    CONVENTIONS |= getattr(_family, "CONVENTIONS", {})
    SETTINGS |= getattr(_family, "SETTINGS", {})
    globals().update({name: value for name, value in vars(_family).items() if callable(value)})
