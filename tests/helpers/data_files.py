"""Files of labelled text, and what reads them."""

from repsim_cli.base import registry


def load(kind, path=None, **settings):
    """The data of a kind."""
    return registry.data.get(kind).function(path=None if path is None else str(path), **settings)


def table(file, columns, rows, between="\t"):
    """Writes a table of rows that are given by column; a cell that is not given is x."""
    lines = [columns, *([str(row.get(column, "x")) for column in columns] for row in rows)]
    file.write_text("".join(between.join(line) + "\n" for line in lines))
    return file
