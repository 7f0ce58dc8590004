"""What a project trains on the tokens: said for the review, and for nothing that is built."""

from __future__ import annotations

from pydantic import Field

from tokmill.recipe.amount import Amount
from tokmill.recipe.section import Section


class TrainingPlan(Section):
    """The model that is to be trained. Changes no byte: a run only writes it down beside what it made."""

    model_params: Amount | None = Field(None, description="parameters of the model: 7B, 124M")
    train_tokens: Amount | None = Field(
        None,
        description="tokens that it is trained on, repeats counted again: 200B [default: the build once]",
    )
