"""Sources that lost most of their documents to one rule, as the manifests of a run count them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from tokmill.artifact import Artifact
from tokmill.audit.opened import list_shard_tables
from tokmill.manifest import Json
from tokmill.recipe.dedup import WARN_SOURCE_LOSS
from tokmill.stages.losses import Loss, by_source, cleaning_losses, find_losses


def loss_limit(recipe: Json) -> Decimal:
    """As the run wrote its recipe down; the default where it did not come to that."""
    return Decimal(str((recipe.get("dedup") or {}).get("warn_source_loss", WARN_SOURCE_LOSS)))


def losses_of_run(artifacts: Mapping[str, Artifact], limit: Decimal) -> Iterator[tuple[str, Loss]]:
    """With the step that dropped them."""
    for step, artifact in artifacts.items():
        ledgers = [artifact.path(entry) for entry in artifact.manifest.entries("ledger")]
        if artifact.manifest.kind == "clean":
            found = cleaning_losses(artifact.manifest.config, artifact.manifest.counts, limit, ledgers)
            yield from ((step, loss) for loss in found)
        elif artifact.manifest.kind == "dedup":
            sources = [shard.source for shard in list_shard_tables(artifacts)]
            verdicts = [receipt for receipt in artifact.manifest.receipts() if "in" in receipt.counts]
            counts = by_source((sources[int(receipt.key)], receipt.counts) for receipt in verdicts)
            yield from ((step, loss) for loss in find_losses(counts, limit, ledgers))
