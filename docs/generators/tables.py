"""The Parquet tables of a run: every column of every one, from the schemas that write them.

tokmill.schema ─> reference/tables.md
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tokmill import schema
from tokmill.reference.markup import code, page, table, text

PATH = "reference/tables.md"


class Told(NamedTuple):
    """Where a table lies, and what its columns hold."""

    files: str
    what: str
    columns: dict[str, str]


_WHERE: Final = {
    "shard": "the shard's number among the inputs of the step",
    "row": "of the documents file",
    "survivor_shard": "`<source>/<key>` of the document that stays for it",
    "survivor_row": "its row there",
    "similarity": "Jaccard with the survivor",
    "cluster": "number of the connected component",
    "cluster_size": "documents in it",
}

TABLES: Final = {
    "DOCUMENTS": Told(
        "ingest/&lt;source&gt;/documents-*.parquet",
        "One row per document, as received. Written once; every later table speaks of its rows.",
        {
            "text": "as received, valid UTF-8",
            "source": "name of the source",
            "domain": "of the source",
            "doc_id": "from the source, else made from the content; need not be unique",
            "license_tag": "as the source spells it",
            "created_at": "as the source spells it",
            "meta": "the fields asked for in `fields.meta`, as one JSON object",
        },
    ),
    "EDITS": Told(
        "clean/&lt;source&gt;/edits-*.parquet",
        "Only documents that cleaning changed: the text that goes on in the place of the one received.",
        {"row": _WHERE["row"], "text": "after cleaning"},
    ),
    "MARKS": Told(
        "clean/&lt;source&gt;/marks-*.parquet",
        "One row per document, in the order of the documents file.",
        {
            "kept": "by cleaning",
            "chars": "code points of the cleaned text",
            "bytes": "of the cleaned text",
            "exact_high": "upper half of the hash of the folded text: `dedup.exact: folded`, earlier corpora",
            "exact_low": "its lower half",
            "text_high": "upper half of the hash of the text as it is: `dedup.exact`",
            "text_low": "its lower half",
            "language": "null: not looked at",
            "license": "SPDX; null: not known",
        },
    ),
    "EXAMPLES": Told(
        "clean/&lt;source&gt;/examples-*.parquet",
        "Some of what was dropped, to read: the same few of each reason in every run.",
        {
            "row": _WHERE["row"],
            "doc_id": "its id",
            "reason": "as in the ledger",
            "value": "as in the ledger",
            "threshold": "as in the ledger",
            "text": "its beginning, redacted as the recipe asks",
        },
    ),
    "VERDICTS": Told(
        "dedup/verdicts-*.parquet",
        "One row per document, in the order of the documents file.",
        {
            "kept": "by all that was decided so far",
            "reason": "of the method that dropped it: `exact_dup`, `near_dup`, `url_dup`, `window_dup`, …",
            **{
                key: _WHERE[key]
                for key in ("survivor_shard", "survivor_row", "similarity", "cluster", "cluster_size")
            },
        },
    ),
    "CLUSTERS": Told(
        "dedup/clusters.parquet",
        "Members of every connected component of near duplicates, kept ones too.",
        {**_WHERE, "shard": "`<source>/<key>`", "kept": "is it the one that stays, or one of those"},
    ),
    "SPANS": Told(
        "dedup/spans-*.parquet",
        "Passages that an earlier document has too.",
        {
            "document": "its row, counted through all shards of the run",
            "first_word": "where it begins, in words",
            "words": "how many",
            "start": "where it begins, in bytes of the document",
            "end": "where it ends",
            "first_document": "the earlier one",
            "first_start": "where it begins there, in bytes",
            "first_end": "where it ends there",
        },
    ),
    "STRIPPED": Told(
        "dedup/stripped-*.parquet",
        "Texts without the lines of their site (`dedup.templates`), of documents that have any left.",
        {
            "row": _WHERE["row"],
            "text": "what is left of it",
            "chars": "characters that went",
            "lines": "lines that went, without blank ones",
            "host": "the site, in the one form of URLs",
        },
    ),
    "TEMPLATE_SPANS": Told(
        "dedup/template_spans-*.parquet",
        "What went as lines of a site, with the blank lines between.",
        {
            "row": _WHERE["row"],
            "start": "in bytes of the cleaned text",
            "end": "in bytes of the cleaned text",
            "pages": "pages of the host that have the rarest of these lines",
            "host_pages": "pages that the host has",
        },
    ),
    "CONTAMINATION": Told(
        "dedup/contamination-*.parquet",
        "Where items of a benchmark were found.",
        {
            "row": _WHERE["row"],
            "item": "`<file>:<record>` of the benchmark",
            "start": "in bytes of the cleaned text",
            "end": "in bytes of the cleaned text",
            "grams": "n-grams that agree",
            "share": "of the item's n-grams that the whole document has",
        },
    ),
    "LABELS": Told(
        "split/labels-*.parquet",
        "One row per document, in the order of the documents file.",
        {"split": f"number in the manifest's `splits`; {schema.NO_SPLIT}: in none"},
    ),
    "LENGTHS": Told(
        "tokens/&lt;split&gt;/&lt;domain&gt;/lengths-*.parquet",
        "One row per encoded document, beside its ids in `tokens-*.bin`.",
        {
            "row": _WHERE["row"],
            "doc_id": "its id",
            "tokens": "with the one that ends it",
            "text_bytes": "of the cleaned text",
            "language": "as in the marks",
            "license": "as in the marks",
        },
    ),
    "ORDER": Told(
        "mixture/order-&lt;split&gt;.parquet",
        "Which documents are built, in turn.",
        {"shard": "the number of a working shard", "sequence": "of its token file"},
    ),
    "SEEN": Told(
        "seen.parquet",
        "Of the rest of a run: what had been trained on when it began, one row for each of these documents.",
        {
            "source": "of the document",
            "id": "first 8 bytes of the hash of its id",
            "passes": "how often it had been seen whole",
            "partly": "had some of its tokens been seen once more",
            "tokens": "of it that had been trained on, all times together",
        },
    ),
    "FORGOTTEN": Told(
        "forgotten.parquet",
        "What was taken down. Ids are kept as hashes only.",
        {
            "source": "name of the source",
            "id_sha256": "of the id",
            "parent": "digest of the run before; empty of an id that was not in it",
        },
    ),
    "FORGOTTEN_IDS": Told(
        "ingest/<source>/forgotten.parquet",
        "What was taken down of the source, from which the list of the run can be made again.",
        {"id_sha256": "of the id"},
    ),
}

# Made and used while a step works; gone, or of no use to others, when it is done.
PASSING: Final = ("DISTINCT_KEYS", "DROPS", "KEYS", "MATCHES", "SELECTION")


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Tables of a run",
            "",
            "Working files are Parquet. Marks, verdicts and labels have exactly the rows of the documents "
            "file they speak of, in its order: the key of a document is its position, and nothing is ever "
            "joined. Every file is listed in the `manifest.json` of its directory, with its rows and digests "
            "([formats](formats.md#manifestjson)). The [ledger](ledger.md) has a page of its own. "
            "`clean/<source>/measures-*.parquet` has a column for each [measure](../measures.md) that the "
            "rules ask for; null where the document is out whatever the bounds.",
            *(line for name, told in TABLES.items() for line in _table(getattr(schema, name), told)),
        )
    }


def _table(columns: Any, told: Told) -> list[str]:
    title = told.files.rpartition("/")[2].removesuffix(".parquet").removesuffix("-*").partition("-&lt;")[0]
    return [
        "",
        f"## {title}",
        "",
        f"<code>{told.files}</code>. {told.what}",
        *table(
            ("column", "type", "null", "what"),
            (
                (
                    code(field.name),
                    str(field.type),
                    "may be" if field.nullable else "",
                    text(told.columns[field.name]),
                )
                for field in columns
            ),
        ),
    ]
