"""Published findings as functions, one file per kind of result that they are about; `finding.py` is what they share."""
