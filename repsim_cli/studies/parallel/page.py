"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

pages.register("parallel", "Does a model give the two texts of a pair, or their words, the same place?")(
    lambda whole: ()
)
