"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

ASKED = "How far apart are the models by the likelihoods that they give to the same texts?"
pages.register("likelihoods", ASKED)(lambda whole: ())
