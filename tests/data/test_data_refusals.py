"""A table of one's own that cannot be used: one sentence says why, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedatlas.data.config import DataConfig
from fedatlas.data.sources import load_dataset
from fedatlas.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("a,b\n1,2\n", {}, "data.label must name the target: one of a, b"),
        ("a,b\n1,2\n", {"label": "c"}, "data.label = 'c': 't.csv' has no such column; its columns are a, b"),
        ("a,b\n1,2,3\n", {"label": "b"}, "line 2 has 3 cells, but the header has 2"),
        ("a,b\n1\n", {"label": "b"}, "line 2 has 1 cells, but the header has 2"),
        ('a,b\n1,2\n"3,4\n5,6\n', {"label": "b"}, "a quotation mark in line 3 opens a cell that does not end"),
        ('a,b\n1,2\n"3,4\n5,6"\n', {"label": "b"}, "line 3 to 4 .one quoted cell. has 1 cells, but the header has 2"),
        ("a,a\n1,2\n", {"label": "a"}, "two columns called 'a'"),
        ("a,b\n", {"label": "b"}, "a header but no rows"),
        ("a,b\n1,2\n1,2\n", {"label": "b"}, "only one class"),
        ("a\n1\n2\n", {"label": "a"}, "no column is left"),
        (
            "a,b\ninf,1\n2,0\n",
            {"label": "b"},
            "column 'a' is infinite as a 32-bit number in line 2, with the value inf",
        ),
        (
            "a,b\n1,1\n2e39,0\n",
            {"label": "b"},
            "column 'a' is infinite .* in line 3, with the value 2e\\+39",
        ),
        ("a,b\n1,0.5\n2,1e300\n", {"label": "b"}, "the target 'b' is infinite .* 1e\\+300"),
        ("a,b,w\n1,0,1\n2,1,1e99\n", {"label": "b", "weight": "w"}, "the weight column 'w' is infinite .* 1e\\+99"),
        ("a,b\n1,x\n2,y\n", {"label": "b", "task": "numbers"}, "it cannot be a number"),
        (
            "a,b,c\n1,x,\n2,y,q\n",
            {"label": "b", "client": "c"},
            "client column 'c' is missing in line 2",
        ),
        ("a,b,c\n1,x,-1\n2,y,2\n", {"label": "b", "weight": "c"}, "numbers of 0 or more, .* found '-1' in line 2"),
        ("a,b,c\n1,x,1\n2,y,'2,5'\n3,y,2.x\n", {"label": "b", "weight": "c"}, "line 3 has 4 cells"),
        (
            "a,b,c\n1,x,1\n2,y,2 x\n3,y,3 x\n",
            {"label": "b", "weight": "c"},
            "found '2 x' in 2 rows, first in line 3",
        ),
        ("a,b,c\n1,x,0\n2,y,0\n", {"label": "b", "weight": "c"}, "not all of them 0\\.$"),
        (
            "a,b,c\n1,x,1e308\n2,y,1e308\n",
            {"label": "b", "weight": "c"},
            "'c' add up to more than a 64-bit number holds",
        ),
        (
            "a,b,c\n1,x,\n2,y,2\n",
            {"label": "b", "weight": "c"},
            "weight column 'c' is missing in line 2",
        ),
        ("a,b\n1,x\n2,y\n", {"label": "b", "client": "b"}, "data.client = 'b' is the label"),
        ("a,b\n" + "\n".join(f"name{i},{i % 2}" for i in range(300)), {"label": "b"}, "300 different texts.*data.drop"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path: Path, text: str, keys: dict[str, Any], message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises((DataError, ConfigError), match=message) as error:
        load_dataset(DataConfig(name="file", path=str(tmp_path / "t.csv"), **keys), 1)
    assert "\n" not in str(error.value)
