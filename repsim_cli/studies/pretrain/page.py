"""What the page of a run says first: what was asked, and what was found."""

from repsim_cli.base.registry import pages

pages.register("pretrain", "What does a small language model reach, checkpoint by checkpoint?")(lambda whole: ())
