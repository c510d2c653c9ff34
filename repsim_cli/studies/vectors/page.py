"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

pages.register("vector_map", "What do vectors keep when they are mapped into the space of another model?")(
    lambda whole: ()
)
