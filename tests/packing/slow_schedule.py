"""A schedule of the plain mill, asked as the mill's own is."""

from __future__ import annotations

from collections.abc import Sequence

from packing.in_memory import Corpus
from plain.mixing import Asked, Exhausted, Source, schedule
from tokmill.packing.mixture import Mixture
from tokmill.packing.quotas import Target

Turns = list[tuple[int, int]]


def schedule_slowly(
    corpora: Sequence[Corpus],
    mixture: Mixture,
    target: Target | None,
    *,
    exhausted: str,
    max_epochs: int,
    order: str,
    seed: int,
    patience: int,
) -> Turns | str:
    """(source, document) of every turn; or the name of the source that ran dry."""
    sources = [
        Source(
            corpus.name,
            corpus.domain,
            corpus.lengths.tolist(),
            [0] * len(corpus.lengths) if corpus.text_bytes is None else corpus.text_bytes.tolist(),
            list(range(len(corpus.lengths))) if corpus.identities is None else corpus.identities.tolist(),
        )
        for corpus in corpora
    ]
    asked = Asked(
        mixture.domains,
        mixture.sources,
        "tokens" if target is None else target.unit,
        None if target is None else target.amount,
        exhausted,
        max_epochs,
        order,
        seed,
        1,
        patience,
    )
    try:
        return schedule(sources, asked)
    except Exhausted as error:
        return str(error)
