"""DATACARD.md and croissant.json, read by those that they are for."""

from __future__ import annotations

import hashlib
import json
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mill import tokmill
from reports.reported import write_corpus
from tokmill import report, run
from tokmill.publish.hub_card import hub_license, scalar
from tokmill.reports.cards import front_matter


class Cards(NamedTuple):
    card: Path
    croissant: Path


class Made(NamedTuple):
    run: Path
    facts: dict[str, Any]
    cards: Cards


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The cards lie in the run, as they would be published."""
    directory = tmp_path_factory.mktemp("cards")
    out = run(write_corpus(directory), directory / "out", workers=1).out
    made = report(out, cards=True)
    assert made.page.parent == out
    return Made(out, json.loads(made.figures.read_bytes()), Cards(*made.cards))


def matter_of(card: Path) -> dict[str, Any]:
    text = card.read_text()
    assert text.startswith("---\n")
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_the_hub_reads_the_front_matter(made: Made) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="the card is read with huggingface_hub")
    card = hub.DatasetCard.load(made.cards.card)  # raises where a field has a form that the Hub refuses
    data = card.data.to_dict()
    assert data["pretty_name"] == "small"
    assert set(data["license"]) == {"apache-2.0", "cc-by-4.0", "mit"}
    assert data["size_categories"] == ["n<1K"]
    assert data["task_categories"] == ["text-generation"]
    assert "language" not in data  # nobody looked


def test_configs_name_the_files_that_are_there(made: Made) -> None:
    (config,) = matter_of(made.cards.card)["configs"]
    assert config["config_name"] == "table"
    files = [path.relative_to(made.run).as_posix() for path in made.run.glob("build/table/**/*.parquet")]
    patterns = {part["split"]: part["path"] for part in config["data_files"]}
    assert set(patterns) == {"train", "validation"}
    assert all(any(fnmatch(file, pattern) for file in files) for pattern in patterns.values())
    assert all(any(fnmatch(file, pattern) for pattern in patterns.values()) for file in files)


def test_the_card_has_the_measured_figures(made: Made) -> None:
    text = made.cards.card.read_text()
    totals = made.facts["totals"]
    written = totals["tokens_written"]
    assert (
        f"{totals['documents_in_builds']:,} documents, {written['rows']:,} tokens in the build rows" in text
    )
    assert made.facts["run"]["digest"] in text
    for drop in made.facts["drops"]:
        assert f"| {drop['docs']:,} |" in text
    for build in made.facts["builds"]:
        for row in build["shares"]["license"]:
            assert f"{row['name']} | {row['tokens']:,} |" in text
    for split, documents in (("train", 0), ("valid", 1)):
        built = made.facts["builds"][0]["splits"][documents]
        assert built["split"] == split
        assert f"| {split} | {built['docs']:,} | {built['packing']['written']:,} |" in text


def test_croissant_is_valid_and_every_file_is_the_one_it_names(made: Made) -> None:
    croissant = pytest.importorskip("mlcroissant", reason="croissant.json is checked with mlcroissant")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = croissant.Dataset(jsonld=str(made.cards.croissant))
    assert not dataset.metadata.issues.errors
    body = json.loads(made.cards.croissant.read_text())
    files = [part for part in body["distribution"] if part["@type"] == "cr:FileObject"]
    listed = {
        f"build/{build.parent.name}/{entry['path']}"
        for build in made.run.glob("build/*/manifest.json")
        for entry in json.loads(build.read_text())["files"]
    }
    assert {part["contentUrl"] for part in files} == listed
    for part in files:
        data = (made.run / part["contentUrl"]).read_bytes()
        assert part["sha256"] == hashlib.sha256(data).hexdigest()
        assert part["contentSize"] == f"{len(data)} B"
    assert "https://spdx.org/licenses/Apache-2.0.html" in body["license"]


def test_croissant_reads_the_tokens_of_a_parquet_build(made: Made) -> None:
    croissant = pytest.importorskip("mlcroissant", reason="croissant.json is checked with mlcroissant")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = croissant.Dataset(jsonld=str(made.cards.croissant))
        records = list(dataset.records("table-valid"))
    shards = sorted(made.run.glob("build/table/valid/*.parquet"))
    rows = [row for shard in shards for row in pq.read_table(shard).to_pylist()]
    found = [list(map(int, record["table-valid/input_ids"])) for record in records]
    assert found == [row["input_ids"] for row in rows]
    names = [record["table-valid/doc_id"] for record in records]
    assert [name.decode() if isinstance(name, bytes) else name for name in names] == [
        r["doc_id"] for r in rows
    ]


def test_the_command_writes_both_beside_the_page(made: Made, tmp_path: Path) -> None:
    found = tokmill("report", made.run, "--out", tmp_path, "--cards", "--json")
    told = json.loads(found.stdout)
    assert found.returncode == 0
    assert Path(told["card"]).read_bytes() == made.cards.card.read_bytes()
    assert Path(told["croissant"]).read_bytes() == made.cards.croissant.read_bytes()


@pytest.mark.parametrize(
    ("spdx", "name"),
    [
        ("Apache-2.0", "apache-2.0"),
        ("GPL-3.0-only", "gpl-3.0"),
        ("ODC-By-1.0", "odc-by"),
        ("CC-BY-2.0", "cc-by-2.0"),
        ("CC-BY-NC-4.0", "cc-by-nc-4.0"),
        ("CC-BY-SA-2.5", "other"),
        ("MIT OR Apache-2.0", "other"),
        ("LicenseRef-Public-Domain", "other"),
    ],
)
def test_licences_have_the_names_of_the_hub(spdx: str, name: str) -> None:
    assert hub_license(spdx) == name


def test_a_licence_that_the_hub_does_not_list_is_named(made: Made) -> None:
    shares = {
        **made.facts["shares"],
        "license": [{"name": "CC-BY-SA-2.5", "tokens": 20}, {"name": "MIT", "tokens": 10}],
        # `no` is a boolean to YAML, and Norwegian to us
        "language": [{"name": "no", "tokens": 20}, {"name": "en", "tokens": 10}],
    }
    found = front_matter({**made.facts, "builds": [], "shares": shares})
    matter = yaml.safe_load(found.split("---\n")[1])
    assert matter["license"] == ["other", "mit"]
    assert matter["license_name"] == "CC-BY-SA-2.5"
    assert matter["license_link"] == "https://spdx.org/licenses/CC-BY-SA-2.5.html"
    assert matter["language"] == ["no", "en"]
    assert matter["multilinguality"] == ["multilingual"]


@pytest.mark.parametrize(
    ("licenses", "name"),
    [
        (["CC-BY-SA-3.0 AND CC-BY-SA-4.0"], "CC-BY-SA-3.0 AND CC-BY-SA-4.0"),
        (["Apache-2.0 OR MIT"], "Apache-2.0 OR MIT"),
        (["Apache-2.0 OR MIT", "CC-BY-SA-2.5", "MIT"], "(Apache-2.0 OR MIT) AND CC-BY-SA-2.5"),
        (["GPL-2.0-only WITH Classpath-exception-2.0"], "GPL-2.0-only WITH Classpath-exception-2.0"),
        (["LicenseRef-Public-Domain"], "LicenseRef-Public-Domain"),
    ],
)
def test_licences_that_no_single_page_tells_have_no_link(made: Made, licenses: list[str], name: str) -> None:
    shares = {**made.facts["shares"], "license": [{"name": one, "tokens": 10} for one in licenses]}
    found = front_matter({**made.facts, "builds": [], "shares": shares})
    matter = yaml.safe_load(found.split("---\n")[1])
    assert matter["license_name"] == name
    assert "license_link" not in matter


@given(st.text(max_size=40))
def test_any_name_comes_back_from_yaml_as_it_was(name: str) -> None:
    assert yaml.safe_load(f"key: {scalar(name)}")["key"] == name
