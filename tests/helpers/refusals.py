"""What every test of malformed input asks: one line per problem that says what to do, exit code 2, and no file."""

import os

MANY = ("model=[tiny_a]", "measure=[cka]")


def check(code, out, err, outputs):
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith("WARNING: ")]
    assert lines
    for line in lines:
        assert line.startswith("error: "), line
        assert "allow_pickle" not in line, f"passes a library's advice on, which is not safe: {line}"
        assert ";" in line, f"does not say what to do: {line}"
    assert not [path for path in outputs.rglob("*") if path.is_file()]


def pipe(name):
    def change(folder):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change
