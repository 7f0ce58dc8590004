"""README.md of a directory of texts: a dataset card of the Hub, from what was counted.

front matter   licences, languages, size; `configs`: the files of each split;
               `dataset_info`: of JSONL the types, which nobody could guess from the first records
below it       how many documents, what a record holds, and how the files prove themselves
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokmill.artifacts.manifest import Json, file_entry
from tokmill.artifacts.step import Made, Task, TaskOptions
from tokmill.artifacts.upstream import UNKNOWN
from tokmill.clean.license_policy import license_url
from tokmill.publish.hub_card import HUB_SPLITS, hub_license, name_others, scalar, size_category, yaml_list
from tokmill.storage.disk import commit_bytes
from tokmill.storage.textfiles import FIELDS, MEASURES, TextFormat, find_text_format

README = "README.md"

_LITTLE = 0.001  # of the documents: of a language, hardly more than the mistakes of its detector

_MEANS = {
    "text": "as the run left it: edits made, passages cut",
    "source": "where the document was read, as the recipe calls it",
    "domain": "of the source",
    "doc_id": "that of the source, or made from the text",
    "license_tag": "as the source has it",
    "created_at": "as the source has it",
    "meta": "what else the source says of it: a JSON object",
    "split": "train, or held out",
    "language": "where it was looked at",
    MEASURES: "what the rules of the recipe measured, of the text before passages were cut",
}


class CardOptions(TaskOptions, frozen=True):
    title: str
    format: str
    counts: Json
    splits: tuple[str, ...]
    measures: dict[str, str]


def perform_card(task: Task[CardOptions]) -> Made:
    text = "\n".join([*_front_matter(task.options), *_body(task.options)]) + "\n"
    written = commit_bytes(Path(task.directory) / README, text.encode())
    return Made([file_entry(README, "card", written, rows=1)], {})


def _front_matter(card: CardOptions) -> Iterator[str]:
    counts = card.counts
    licenses = sorted({name for own in counts.get("licenses", {}).values() for name in own} - {UNKNOWN})
    languages = [
        name
        for name, total in sorted(counts.get("languages", {}).items())
        if name != UNKNOWN and total["docs"] > _LITTLE * counts["kept"]
    ]
    yield "---"
    yield f"pretty_name: {scalar(card.title)}"
    yield from yaml_list("license", list(dict.fromkeys(map(hub_license, licenses))) or ["unknown"])
    yield from name_others(licenses, license_url)
    if languages:
        yield from yaml_list("language", languages)
    yield from yaml_list("size_categories", [size_category(counts["kept"])])
    yield from yaml_list("task_categories", ["text-generation"])
    yield from yaml_list("tags", ["tokmill"])
    yield from _configs(card, find_text_format(card.format))
    yield "---"


def _configs(card: CardOptions, format: TextFormat) -> Iterator[str]:
    present = [split for split in card.splits if split in card.counts["splits"]]
    if not present:
        return
    yield from ("configs:", "- config_name: default", "  data_files:")
    for split in present:
        path = f"{split}/*{format.suffix}"
        yield from (f"  - split: {scalar(HUB_SPLITS.get(split, split))}", f"    path: {scalar(path)}")
    if format.name != "jsonl":
        return
    yield from ("dataset_info:", "- config_name: default", "  features:")
    for name in FIELDS:
        yield from (f"  - name: {name}", f"    dtype: {'json' if name == 'meta' else 'string'}")
    if card.measures:
        yield from (f"  - name: {MEASURES}", "    struct:")
        for name, kind in card.measures.items():
            dtype = "float64" if kind == "double" else kind
            yield from (f"    - name: {scalar(name)}", f"      dtype: {dtype}")


def _body(card: CardOptions) -> Iterator[str]:
    yield from ("", f"# {card.title}", "", "| split | documents | characters |", "| --- | ---: | ---: |")
    for split in card.splits:
        if total := card.counts["splits"].get(split):
            yield f"| {split} | {total['docs']:,} | {total['chars']:,} |"
    fields = [*FIELDS, *([MEASURES] if card.measures else [])]
    yield from ("", "| field | |", "| --- | --- |")
    yield from (f"| {name} | {_MEANS[name]} |" for name in fields)
    if card.format == "webdataset":
        yield from ("", "A `.txt` member is the text; all other fields are in the `.json` beside it.")
    yield ""
    yield "Made by tokmill. `manifest.json` has the SHA-256 of every file: `tokmill verify` proves them."
