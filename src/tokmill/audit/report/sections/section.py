"""A part of the page: an anchor, a heading, a sentence that says what one sees, and the body."""

from __future__ import annotations

from typing import NamedTuple

from tokmill.audit.report.markup import prose, shown


class Section(NamedTuple):
    key: str  # of the anchor
    title: str
    says: str  # plain text; `commands` stand out
    body: str  # markup

    def render(self) -> str:
        return (
            f'<section id="{self.key}"><h2><a href="#{self.key}">{shown(self.title)}</a></h2>'
            f'<p class="says">{prose(self.says)}</p>{self.body}</section>'
        )


def nothing(why: str) -> str:
    return f'<p class="none">{shown(why)}</p>'
