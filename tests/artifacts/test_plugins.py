"""Code of others, from a file beside the recipe:
a measure gets whole columns and gives one, mistakes are told as theirs."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from cleaned import clean
from tokmill.artifacts.plugins import Plugin, find_plugin, show_hooks
from tokmill.clean.measures import measure_by
from tokmill.errors import InputChanged, InputError, RecipeError

COLUMNS = {
    "text": pa.array(["one", "two words", "", "four"], pa.large_string()),
    "doc_id": pa.array(["a", "b", "c", "d"]),
}


TEXTS = ["one", "two words", "3", "four"]


def called(directory: Path, code: str) -> list[float]:
    """What a run writes as the measure of these texts."""
    path = directory / "hooks.py"
    path.write_text(code)
    found = clean(({"text": text} for text in TEXTS), filters=[{"measure": f"{path}:loud", "min": 0}])
    return [line[f"hook.{path}:loud"] for line in found.measures]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[len(t) for t in columns['text']]", [3.0, 9.0, 1.0, 4.0]),
        ("pc.utf8_length(columns['text'])", [3.0, 9.0, 1.0, 4.0]),
        ("np.array([0.5, 1, 2, 3], np.float32)", [0.5, 1.0, 2.0, 3.0]),
        ("[True, False, True, False]", [1.0, 0.0, 1.0, 0.0]),
        ("np.array([0, 1, 2, 2**64 - 1], np.uint64)", [0.0, 1.0, 2.0, 2.0**64]),
        ("np.array([0, 1, 2, 255], np.uint8)", [0.0, 1.0, 2.0, 255.0]),
    ],
)
def test_any_column_of_numbers_is_taken(tmp_path: Path, expression: str, expected: list[float]) -> None:
    code = f"import numpy as np\nimport pyarrow.compute as pc\ndef loud(columns):\n    return {expression}\n"
    found = called(tmp_path, code)
    assert [*map(type, found)] == [*map(type, expected)]
    assert found == expected


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("[1, 2, 3]", "returned int64 of shape (3,); 4 numbers are needed"),
        ("7", "of shape (); 4 numbers"),
        ("[[1, 2, 3, 4]]", "of shape (1, 4); 4 numbers"),
        ("['a', 'b', 'c', 'd']", "returned <U1 of shape (4,)"),
        ("None", "returned object of shape ()"),
        ("[1j, 2, 3, 4]", "returned complex128"),
        ("[1.0, float('nan'), 2.0, 3.0]", "a number that is not finite"),
        ("[1.0, float('inf'), 2.0, 3.0]", "a number that is not finite"),
        ("[1, [2, 3], 4, 5]", "the measure failed (ValueError: setting an array"),
        ("1 // 0", "the measure failed (ZeroDivisionError: integer division or modulo by zero; line 2)"),
        ("columns['texts']", "the measure failed (KeyError: \"no column 'texts'; there are text"),
        ("exit(3)", "the measure failed (SystemExit: 3; line 2)"),
    ],
)
def test_a_wrong_result_or_a_failure_names_the_file_and_the_function(
    tmp_path: Path, expression: str, what: str
) -> None:
    with pytest.raises(InputError) as caught:
        called(tmp_path, f"def loud(columns):\n    return {expression}\n")
    assert what in caught.value.what
    assert caught.value.where == f"{tmp_path / 'hooks.py'}:loud"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("def loud(:\n", "SyntaxError"),
        ("x = 1\nimport no_such_package\n", "No module named 'no_such_package'; line 2"),
        ("def quiet(columns):\n    return []\n", "there is no measure `loud`"),
        ("loud = 3\n", "the measure is int 3, not a function"),
        ("raise SystemExit\n", "SystemExit; line 1"),
        ("\0", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_an_error_before_anything_runs(
    tmp_path: Path, code: str, what: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        called(tmp_path, code)
    assert what in caught.value.what
    assert caught.value.where.removesuffix(":loud").endswith(f"filters[0]: {tmp_path / 'hooks.py'}")


def test_a_file_that_is_not_there_is_named_with_the_way_paths_are_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"filters\[0\]: my/hooks\.py:loud: no such file") as caught:
        clean([{"text": "one"}], filters=[{"measure": "my/hooks.py:loud", "min": 0}])
    assert "relative to the recipe" in caught.value.next


def test_other_bytes_than_the_known_ones_are_never_run(tmp_path: Path) -> None:
    path = tmp_path / "hooks.py"
    path.write_text("def loud(columns):\n    return [2] * len(columns['text'])\n")
    digest = show_hooks(path, hashlib.sha256(b"what the plan saw").hexdigest())
    with pytest.raises(InputChanged, match="changed while it was in use"):
        measure_by(Plugin("measures", "hooks.py:loud", digest), COLUMNS)


def test_a_hook_may_have_dataclasses_and_leaves_nothing_beside_itself(tmp_path: Path) -> None:
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Weight:\n    value: int = 3\n\n"
        "def loud(columns):\n    return [Weight().value for _ in columns['doc_id']]\n"
    )
    assert called(tmp_path, code) == [3, 3, 3, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["hooks.py"]
    assert "hooks" not in sys.modules


def test_no_documents_need_no_numbers(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text("def loud(columns):\n    return []\n")
    none = {name: column.slice(0, 0) for name, column in COLUMNS.items()}
    assert measure_by(find_plugin("measures", "hooks.py:loud", tmp_path, "filters"), none).tolist() == []
