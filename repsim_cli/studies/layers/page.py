"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

pages.register("layers", "Which layer should be read, probed, steered or left out?")(lambda whole: ())
