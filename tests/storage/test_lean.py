"""Arrow asks for pandas when somebody has it, and makes the same of a series as ever."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pandas")

_CODE = """
import json, sys
import pyarrow as pa
from tokmill.storage.lean import spare_pandas

spare_pandas()
pa.array(["a"]), pa.array([1, 2]).take(pa.array([0]))
early = "pandas" in sys.modules
{between}
import pandas as pd
found = pa.array(pd.Series([1.0, float("nan")]))
print(json.dumps([early, found.null_count, pa.table({{"a": [1]}}).to_pandas()["a"].tolist()]))
"""


@pytest.mark.parametrize(
    "between",
    [
        pytest.param("", id="imported by others"),
        pytest.param('pa.table({"b": [2]}).to_pandas()', id="needed by arrow"),
        pytest.param('import importlib.util; importlib.util.find_spec("pandas")', id="looked for"),
    ],
)
def test_pandas_is_loaded_when_it_is_needed(between: str) -> None:
    code = _CODE.format(between=between)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, 1, [1]]
