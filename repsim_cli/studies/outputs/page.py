"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

pages.register("outputs", "How far do the models differ in what they predict on the same rows?")(lambda whole: ())
