"""Texts on which two tokenizers are most likely to differ."""

from __future__ import annotations

from hypothesis import strategies as st

# to train a tiny model on
SENTENCES = [
    "the cat sat on the mat, and the other cat sat there too\n" * 3,
    "les chats étaient là, déjà",
] * 20
WORDS = [
    "the",
    "cat",
    "it's",
    "IT'S",
    "don't",
    "we'll",
    "THEY'RE",
    "I'm",
    "he'd",
    "foo_bar",
    "x1y2",
    "HTTPServer",
    "camelCase",
    "Straße",
    "naïve",
    "ﬁ",
    "ſ",
    "K",
    "Å",
    "漢字",
    "日本語",
    "한국어",
    "हिन्दी",
    "ไทย",
    "العربية",
    "👩\u200d👩\u200d👧",
    "🇫🇷",
    "🥺",
    "é",
    "ñ",
    "'",
    "’",
    "''",
    "'s",
    "'S",
    "'ſ",
    "'LL",
    "'lL",
    "▁",
    "▁▁",
]
BLANKS = [
    " ",
    "  ",
    "\t",
    "\n",
    "\n\n",
    "\r",
    "\r\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\u0085",
    "\x0b",
]
CONTROLS = [
    "\0",
    "\x1c",
    "\x1f",
    "\x7f",
    "\u200b",
    "\ufeff",
    "\u180e",
    "\u00ad",
    "\ufffd",
    "\ue000",
    "\uffff",
]
LITERALS = [
    "<|endoftext|>",
    "<|pad|>",
    "</s>",
    "<s>",
    "<unk>",
    "<0x0A>",
    "<|user|>",
    "<|user",
    "[INST]",
    "<|end|>",
]
# letters, marks and numbers of Unicode 10 to 17, which libraries of different age see differently
NEWCOMERS = [
    "\U00033111",
    "\u088f",
    "\u1ad5",
    "\u08ca",
    "\U00011a99",
    "\U000119e0",
    "\U0001fbf5",
    "\u1c89",
    "\u31bb",
]

TEXT = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(WORDS),
        st.builds(str.__mul__, st.sampled_from(BLANKS), st.sampled_from([1, 1, 2, 3, 30])),
        st.sampled_from(CONTROLS),
        st.sampled_from(LITERALS),
        st.sampled_from(NEWCOMERS),
        st.integers(0, 10**12).map(str),
        st.builds(str.__mul__, st.sampled_from(list("aA1!'\".-/<|>_")), st.integers(1, 40)),
        st.text(
            st.characters(categories=["Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No"]),
            max_size=6,
        ),
    ),
    max_size=14,
).map("".join)
