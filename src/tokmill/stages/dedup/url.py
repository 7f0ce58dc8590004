"""Documents of one page as tasks: equal URLs in one form, one range of their hashes at a time.

    shard ─ meta ─ one form ─> hashes-<s>        a run by hash: row and rank of what has a URL
    range p of the hashes ─ equal? ─> edges-<p>, later-<p>    groups of one URL

What comes after the hashes is as in `exact`, with 128 bits of the URL in the place of those of the text.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.step import Made, Task, TaskFunction, TaskOptions
from tokmill.clean.urls import URL_NORMALIZATION, meta_strings, normalize_urls
from tokmill.duplicates.shingling import text_hashes
from tokmill.kernels.survivors import URL
from tokmill.schema import one_piece
from tokmill.stages.dedup.exact import match_tasks, write_hashes
from tokmill.stages.dedup.method import Considered, DedupStep, Keep, Method, Phase, considered_rows

_LOG = logging.getLogger("tokmill.duplicates")


class UrlOptions(msgspec.Struct, frozen=True):
    field: str = "url"


class PageOptions(TaskOptions, frozen=True):
    number: int
    keep: Keep
    field: str
    normalization: str
    by_source: bool = False


def _find_pages(step: DedupStep, asked: UrlOptions, considered: Sequence[Considered]) -> Phase:
    """The receipts of all ranges."""
    hashed = yield [
        Task(
            function="dedup.pages",
            key=f"u{shard.number:05d}",
            options=PageOptions(
                number=shard.number,
                keep=keep,
                field=asked.field,
                normalization=URL_NORMALIZATION,
                by_source=step.options.by_source,
            ),
            inputs=inputs,
            directory=str(step.directory),
        )
        for shard, keep, inputs in considered
    ]
    if not sum(receipt.files[0].rows for receipt in hashed):
        message = "dedup: no document has a URL in `meta.%s`; carry it along with `fields: {meta: [%s]}`"
        _LOG.warning(message, asked.field, asked.field)
    shards = [one.shard for one in considered]
    return (yield match_tasks(step, shards, hashed, "q", URL))


def perform_pages(task: Task[PageOptions]) -> Made:
    rows = considered_rows(task.inputs, task.options.number)
    meta = one_piece(task.load("documents", ["meta"]).column("meta")).take(pa.array(rows))
    urls = normalize_urls(meta_strings(meta, task.options.field))
    has_url = np.asarray(urls.is_valid())
    high, low = np.ascontiguousarray(text_hashes(urls.drop_null()).T)
    return write_hashes(task, rows[has_url], high, low)


METHOD = Method(
    key="url",
    options=UrlOptions,
    reason="url_dup",
    find=_find_pages,
    tasks={"dedup.pages": TaskFunction(PageOptions, perform_pages)},
    reads=lambda options, shard: [shard.documents, shard.marks],
    similarity=None,  # of one page, and perhaps of another day
    versions=lambda options, asked, has_chats: [URL_NORMALIZATION],
)
