"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

pages.register("barycentre", "What shape do the models share, and how far does each stand from it?")(lambda whole: ())
