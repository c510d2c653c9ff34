"""One folder per question: `study.py` measures it, `finding.py` reads the run folder without torch."""
