"""Hooks as somebody writes them at the first try: loops over strings, code and models beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill
from mill import tokmill as command
from tokmill.errors import InputError, RecipeError, TokmillError

TEXTS = {f"d{n}": "Corn! " * (n % 4) + f"Día {n} at the mill, wörd by word." for n in range(30)}


def write(directory: Path, files: dict[str, str], **sections: Any) -> Path:
    """The documents, these files, and a recipe that drops what measures more than 1."""
    directory.mkdir(exist_ok=True)
    lines = [json.dumps({"id": doc_id, "text": text, "n": 7}) for doc_id, text in TEXTS.items()]
    (directory / "mill.jsonl").write_text("\n".join(lines) + "\n")
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text)
    recipe = {
        "name": "mill",
        "sources": [{"name": "mill", "files": "mill.jsonl", "fields": {"id": "id", "meta": ["n"]}}],
        "filters": [{"measure": "hooks.py:count", "max": 1, "reason": "too_loud"}],
        "dedup": {"exact": False},
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def dropped(recipe: Path, **options: Any) -> set[str]:
    """Ids that the ledger says are dropped, read by pyarrow alone."""
    out = tokmill.run(recipe, workers=1, until="clean", **options).out
    rows = [row for path in (out / "clean/mill").glob("ledger-*") for row in pq.read_table(path).to_pylist()]
    return {row["doc_id"] for row in rows if row["verdict"] == "drop"}


def texts(out: Path) -> dict[str, str]:
    """Of all documents of the one shard, with the edits of cleaning put in, by pyarrow alone."""
    (documents,), (edits,) = (out / "ingest/mill").glob("documents-*"), (out / "clean/mill").glob("edits-*")
    rows = pq.read_table(documents).to_pylist()
    for edit in pq.read_table(edits).to_pylist():
        rows[edit["row"]]["text"] = edit["text"]
    return {row["doc_id"]: row["text"] for row in rows}


LOUD = {doc_id for doc_id, text in TEXTS.items() if text.count("!") > 1}


@pytest.mark.parametrize(
    "body",
    [
        "return [text.count('!') for text in columns['text']]",
        "return [len(re.findall('!', text)) for text in columns['text']]",
        "return [columns['text'][n].count('!') for n in range(len(columns['text']))]",
        "return np.array([text.count('!') for text in columns['text']])",
        "return pc.count_substring(columns['text'], '!')",
        "return pc.count_substring(columns['text'].arrow, '!').to_numpy()",
        "return pc.count_substring(pa.table(dict(columns)).column('text'), '!')",
        "return [text.count('!') for text in columns['text'].to_pylist()]",
        (
            "return [text.count('!') for text, name in zip(columns['text'], columns['doc_id']) if name[0] == "
            "'d']"
        ),
        "return list(map(lambda text: text.count('!'), columns['text']))",
    ],
)
def test_a_measure_loops_over_strings_or_hands_the_column_to_arrow(body: str, tmp_path: Path) -> None:
    code = (
        "import re\nimport numpy as np\nimport pyarrow as pa\nimport pyarrow.compute as pc\ndef "
        f"count(columns):\n    {body}\n"
    )
    assert dropped(write(tmp_path, {"hooks.py": code})) == LOUD


@pytest.mark.parametrize(
    "body",
    [
        "return [re.sub('Corn! ', '', text) for text in columns['text']]",
        "return pc.replace_substring(columns['text'], 'Corn! ', '')",
        (
            "texts = columns['text']\n    for n, text in enumerate(texts):\n        texts[n] = "
            "text.replace('Corn! ', '')\n    return texts"
        ),
    ],
)
def test_a_transform_gives_back_strings_changed_in_a_loop_in_place_or_by_arrow(
    body: str, tmp_path: Path
) -> None:
    code = f"import re\nimport pyarrow.compute as pc\ndef change(columns):\n    {body}\n"
    recipe = write(tmp_path, {"hooks.py": code}, filters=[], transforms=["hooks.py:change"])
    out = tokmill.run(recipe, workers=1, until="clean").out
    assert texts(out) == {doc_id: text.replace("Corn! ", "") for doc_id, text in TEXTS.items()}


def test_two_transforms_whose_functions_share_a_name_are_counted_together(tmp_path: Path) -> None:
    files = {
        "loud.py": "def fix(columns):\n    return [text.replace('Corn! ', '') for text in columns['text']]\n",
        "odd.py": (
            "def fix(columns):\n"
            "    return ['' if 'Día 9' in t else t.replace('Día 1', 'Day 1') for t in columns['text']]\n"
        ),
        "even.py": "def fix(columns):\n    return ['' if 'Día 8' in t else t for t in columns['text']]\n",
    }
    recipe = write(tmp_path, files, filters=[], transforms=[f"{name}:fix" for name in files])
    out = tokmill.run(recipe, workers=1, until="clean").out
    counts = json.loads((out / "clean/mill/manifest.json").read_bytes())["counts"]
    kept = {
        doc_id
        for doc_id, text in TEXTS.items()
        if ("Corn! " in text or "Día 1" in text) and doc_id not in ("d8", "d9")
    }
    assert counts["edited"] == {"fix": len(kept)}
    assert counts["emptied"] == {"fix": 2}
    rows = [row for path in (out / "clean/mill").glob("ledger-*") for row in pq.read_table(path).to_pylist()]
    assert {row["doc_id"] for row in rows if row["verdict"] == "edit"} == kept


def test_every_column_has_the_type_that_the_page_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs/how-to/hooks.md").read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| (str(?: or None)?) \|", page, re.M))
    code = f"""
import json
TYPES = {documented!r}
def count(columns):
    assert list(columns) == list(TYPES), list(columns)
    for name, values in columns.items():
        for value in values:
            assert type(value) is str or (value is None and "None" in TYPES[name]), (name, value)
    assert {{json.loads(meta)["n"] for meta in columns["meta"]}} == {{7}}
    return [0 for _ in columns["text"]]
"""
    assert dropped(write(tmp_path, {"hooks.py": code})) == set()


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    recipe = write(tmp_path, {"hooks.py": "def count(columns):\n    return columns['texts']\n"})
    with pytest.raises(InputError, match=r"no column 'texts'; there are text, .*meta.*; line 2"):
        tokmill.run(recipe, workers=1)


def test_a_function_of_one_text_is_told_that_it_gets_all_of_them(tmp_path: Path) -> None:
    recipe = write(tmp_path, {"hooks.py": "def count(text):\n    return text.count('!')\n"})
    with pytest.raises(InputError, match=r"all documents, loop over columns\['text'\]; line 2"):
        tokmill.run(recipe, workers=1)


# --- code beside it ---

USES_HELPER = (
    "from helper import loudness\ndef count(columns):\n    return [loudness(text) for text in "
    "columns['text']]\n"
)
USES_HELPER_LATE = (
    "def count(columns):\n    import helper\n    return [helper.loudness(text) for text in columns['text']]\n"
)
HELPER = "import signs\ndef loudness(text):\n    return text.count(signs.LOUD)\n"


@pytest.mark.parametrize("hooks", [USES_HELPER, USES_HELPER_LATE])
@pytest.mark.usefixtures("forked_workers")
def test_a_hook_imports_files_beside_it_and_they_import_others(hooks: str, tmp_path: Path) -> None:
    recipe = write(tmp_path, {"hooks.py": hooks, "helper.py": HELPER, "signs.py": "LOUD = '!'\n"})
    assert dropped(recipe) == LOUD
    assert dropped(recipe, out=tmp_path / "again") == LOUD
    several = tokmill.run(recipe, tmp_path / "several", workers=3).out
    assert tokmill.verify(several).digest == tokmill.verify(tokmill.run(recipe, workers=1).out).digest


def test_two_recipes_of_one_process_each_import_their_own_file(tmp_path: Path) -> None:
    for name, sign in (("one", "!"), ("two", "?")):
        recipe = write(
            tmp_path / name, {"hooks.py": USES_HELPER, "helper.py": HELPER, "signs.py": f"LOUD = {sign!r}\n"}
        )
        assert dropped(recipe) == (LOUD if sign == "!" else set())


def test_a_file_beside_it_hides_no_module_of_the_standard_library(tmp_path: Path) -> None:
    code = (
        "import json\ndef count(columns):\n    return [len(json.dumps(text)) * 0 for text in "
        "columns['text']]\n"
    )
    assert dropped(write(tmp_path, {"hooks.py": code, "json.py": "raise SystemExit\n"})) == set()


def is_done_again(recipe: Path) -> bool:
    """Whether the clean step is, by what the command prints."""
    ran = command("run", recipe, "--out", recipe.parent / "out", "--until", "clean")
    assert ran.returncode == 0, ran.stderr
    printed = ran.stdout + ran.stderr
    assert "clean/mill" in printed
    return re.search(r"= clean/mill +up to date", printed) is None


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("helper.py", lambda text: text.replace("text.count", "2 * text.count")),
        ("signs.py", lambda text: text + "# another comment\n"),
        ("model/weights.txt", lambda text: "3"),
        ("words.txt", lambda text: "corn"),
    ],
)
def test_a_change_of_what_a_hook_imports_or_declares_does_the_step_again_and_no_other_change_does(
    path: str, change: Callable[[str], str], tmp_path: Path
) -> None:
    files = {
        "hooks.py": f"INPUTS = ['model', 'words.txt']\n{USES_HELPER}",
        "helper.py": HELPER,
        "signs.py": "LOUD = '!'\n",
        "unused.py": "",
        "words.txt": "mill",
        "model/weights.txt": "1",
    }
    recipe = write(tmp_path, files)
    assert is_done_again(recipe)
    (tmp_path / "unused.py").write_text("raise SystemExit\n")
    assert not is_done_again(recipe)
    (tmp_path / path).write_text(change((tmp_path / path).read_text()))
    assert is_done_again(recipe)
    assert not is_done_again(recipe)


def test_a_model_is_read_from_beside_the_hook_wherever_the_command_is_run(tmp_path: Path) -> None:
    code = """
from pathlib import Path
INPUTS: list[str] = ["sign.bin"]
SIGN = Path(__file__).with_name(INPUTS[0]).read_text()
def count(columns):
    return [text.count(SIGN) for text in columns["text"]]
"""
    assert dropped(write(tmp_path, {"hooks.py": code, "sign.bin": "!"})) == LOUD


@pytest.mark.parametrize(
    ("files", "what", "where"),
    [
        ({"hooks.py": "import os\nINPUTS = ['model.bin']\n"},
         "declares the input model.bin, and there is no such file", "hooks.py, line 2"),
        ({"hooks.py": "INPUTS = ['a' + str(1)]\n"}, "INPUTS of a hook is a list of paths, written out",
         "hooks.py, line 1"),
        ({"hooks.py": "INPUTS = 'model.bin'\n"}, "INPUTS of a hook is a list of paths, written out",
         "hooks.py, line 1"),
        ({"hooks.py": "import helper\n", "helper.py": "INPUTS = ['b.bin']\n"}, "declares the input b.bin",
         "helper.py, line 1"),
        ({"hooks.py": "import helper\n", "helper.py": "\n1 / 0\n"},
         "ZeroDivisionError: division by zero; line 2 of helper.py", "hooks.py"),
        ({"hooks.py": "import helper\n", "helper.py": "def f(:\n"}, "SyntaxError", "hooks.py"),
        ({"hooks.py": "import helpr\n"}, "No module named 'helpr'; line 1", "hooks.py"),
    ],
)  # fmt: skip
def test_what_a_hook_lacks_is_told_by_the_check_of_the_recipe(
    files: dict[str, str], what: str, where: str, tmp_path: Path
) -> None:
    recipe = write(tmp_path, files)
    with pytest.raises(RecipeError) as caught:
        tokmill.run(recipe, workers=1)
    assert what in caught.value.what
    assert caught.value.where.endswith(where)
    assert caught.value.next
    assert not (tmp_path / "out/mill/ingest").exists()
    checked = command("recipe", "check", recipe)
    assert checked.returncode == 1
    assert what.split(";")[0] in checked.stderr.replace("\n", " ")


def test_what_fails_in_a_file_beside_it_is_told_with_the_line_there(tmp_path: Path) -> None:
    helper = "def loudness(text):\n    if '3' in text:\n        raise OverflowError(text[:4])\n    return 0\n"
    with pytest.raises(TokmillError, match=r"OverflowError: .*; line 3 of helper\.py"):
        tokmill.run(write(tmp_path, {"hooks.py": USES_HELPER, "helper.py": helper}), workers=1)


def test_documents_are_forgotten_with_the_files_of_a_hook_and_not_with_others(tmp_path: Path) -> None:
    recipe = write(
        tmp_path,
        {"hooks.py": USES_HELPER, "helper.py": HELPER, "signs.py": "LOUD = '!'\n", "gone.txt": "d4\n"},
    )
    out = tokmill.run(recipe, workers=1).out
    (tmp_path / "signs.py").write_text("LOUD = '?'\n")
    refused = command("forget", out, "--doc-ids", tmp_path / "gone.txt", "--base", tmp_path)
    assert refused.returncode != 0
    assert "is not the file that the run was made with" in refused.stderr.replace("\n", " ")
    (tmp_path / "signs.py").write_text("LOUD = '!'\n")
    done = command("forget", out, "--doc-ids", tmp_path / "gone.txt", "--base", tmp_path)
    assert done.returncode == 0, done.stderr
    (documents,) = (out / "ingest/mill").glob("documents-*")
    assert set(pq.read_table(documents).column("doc_id").to_pylist()) == set(TEXTS) - {"d4"}
