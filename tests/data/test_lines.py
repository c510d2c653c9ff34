"""Lines of text files that nobody would have written."""

import pytest
import zstandard

from repsim_cli.base.errors import BadInput
from repsim_cli.data.files import lines_of


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst"])
def test_a_line_that_is_too_long(tmp_path, name):
    file, content = tmp_path / name, b"abc\n" + b"a" * 1000
    file.write_bytes(zstandard.compress(content) if name.endswith(".zst") else content)
    with lines_of(file, longest=1000) as lines:
        assert [len(line) for line in lines] == [4, 1000]
    message = f"{name}, line 2: too long, got more than 999 characters; split it"
    with pytest.raises(BadInput, match=message), lines_of(file, longest=999) as lines:
        list(lines)
