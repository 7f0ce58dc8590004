"""An answer while it is put together: sentences, figures, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tokmill.audit.review.evidence import READ_ERRORS, Evidence, told
from tokmill.audit.review.finding import Answer, NotMeasured
from tokmill.manifest import Json

T = TypeVar("T")


class Answering:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._says: list[str] = []
        self._based_on: list[str] = []
        self._lacks: list[str] = []
        self.figures: Json = {}

    def say(self, sentence: str) -> Answering:
        self._says.append(sentence)
        return self

    def base(self, *places: str) -> Answering:
        self._based_on += [place for place in places if place]
        return self

    def lack(self, what: str) -> Answering:
        self._lacks.append(what)
        return self

    def attempt(self, measure: Callable[[], T]) -> T | None:
        """The figure, or None: then the answer says why it is not there."""
        try:
            return measure()
        except NotMeasured as reason:
            self.lack(str(reason))
        except READ_ERRORS as error:
            self.lack(told(error, self._evidence.subject.directory))
        return None

    def done(self, question: str) -> Answer:
        says = self._says or ["Not measured."]
        return Answer(
            question,
            tuple(says),
            self.figures,
            tuple(dict.fromkeys(self._based_on)),
            tuple(dict.fromkeys(self._lacks)),
        )


def answering(question: str, answer: Callable[[Evidence, Answering], None], evidence: Evidence) -> Answer:
    found = Answering(evidence)
    found.attempt(lambda: answer(evidence, found))
    return found.done(question)
