"""Pages of random pieces."""

from __future__ import annotations

from hypothesis import strategies as st

PIECES = st.one_of(
    st.builds(
        "<{}>".format,
        st.sampled_from(
            [
        "p", "div", "b", "strong", "i", "a", "span", "br", "ul", "li", "table", "tr",
        "td", "h1", "script", "head", "title", "button", "select", "svg", "hr",
    ]
        ),
    ),
    st.builds("</{}>".format, st.sampled_from([
        "p", "div", "b", "strong", "i", "a", "span", "ul", "li", "table", "h1",
        "title", "button",
    ])),
    st.sampled_from(
        ["Some words", "and more. ", "A, b; c: d!", "Really? ", "© 2024", "10 | 20 / 30 > 4 #", "&nbsp;",
         "&amp;", "&#160;", "&bogus", "é", "日本。", "什么？", " ", "\n", "kept", "dropped", "x.y",
         "f&uuml;r", "&#169;", "&copy 20", "&hellip;", "a&shy;b", "&ldquo;So.&rdquo;", "نعم، لا؟", "…",
         "....", "l’eau", "&#8203;", "&#xADx", "&#128512;", "&NotEqualTilde;", "हाँ।", "&#46;&period;.",
         "k&#101;pt", "&#1;"]
    ),
    st.text("aZ9.,! <&;é日#1", max_size=6),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
)  # fmt: skip
SOUP = st.lists(PIECES, max_size=40).map("".join)
