"""What a rank file does not say: how text is split before it is merged, and which special tokens there are.

    r50k_base … o200k_harmony   OpenAI's: patterns and tokens of tiktoken; ids of the tokens are fixed
    llama3, llama4              Meta's, whose `tokenizer.model` has the same form: tokens follow the ranks

    llama3   ranks 0 … 127,999 │ 128,000 <|begin_of_text|>  128,001 <|end_of_text|> …     256 tokens
    llama4   ranks 0 … 199,999 │ 200,000 <|begin_of_text|>  200,001 <|end_of_text|> …   2,048 tokens

A file is recognised by its sha256 where that is a published one. Meta's are recognised by content as well: as
many ranks, and these tokens at their places. Anything else needs `encoding`.

Sources: tiktoken_ext/openai_public.py of github.com/openai/tiktoken; models/llama3/tokenizer.py (as of Llama
3.2; earlier releases call some of the reserved tokens otherwise) and models/llama4/tokenizer.py of
github.com/meta-llama/llama-models. Meta's own code also cuts runs of 25,000 characters without a change
between blank and not; the tokenizer.json of the same models does not, and neither does this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokmill.errors import TokenizerError

# The patterns are OpenAI's, in the possessive spelling of tiktoken 0.14: it splits like the older one and
# backtracks less. A test holds them against the installed tiktoken.
_R50K_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)
_O200K_PATTERN = "|".join(
    (
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""",
        r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
        r"""\s*[\r\n]+""",
        r"""\s+(?!\S)""",
        r"""\s+""",
    )
)

# Meta's. That of Llama 4 is o200k's; this one is what older versions of tiktoken had for cl100k, and it ends
# a text otherwise: blanks after the last line end are apart.
_LLAMA3_PATTERN = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)

_R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
_P50K_SHA256 = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

_LLAMA3_SHA256 = "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55"
_LLAMA4_SHA256 = "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed"

_FIM = ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")


def _harmony_specials() -> dict[str, int]:
    # 200018 has two names in tiktoken, `<|reserved_200018|>` too; one id with two names cannot be decoded
    named = {
        "<|startoftext|>": 199998,
        "<|endoftext|>": 199999,
        "<|return|>": 200002,
        "<|constrain|>": 200003,
        "<|channel|>": 200005,
        "<|start|>": 200006,
        "<|end|>": 200007,
        "<|message|>": 200008,
        "<|call|>": 200012,
        "<|endofprompt|>": 200018,
    }
    taken = set(named.values())
    return named | {f"<|reserved_{id}|>": id for id in range(200000, 201088) if id not in taken}


def _llama3_specials() -> list[str]:
    named = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
        "<|image|>",
    ]
    return named + [f"<|reserved_special_token_{n}|>" for n in range(2, 2 + 256 - len(named))]


def _llama4_specials() -> list[str]:
    def reserved(group: str, first: int, count: int) -> list[str]:
        return [f"<|{group}reserved_special_token_{n}|>" for n in range(first, first + count)]

    text = ["<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"]
    text += reserved("text_post_train_", 0, 6)
    text += ["<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"]
    text += reserved("text_post_train_", 8, 61)
    vision = ["<|image_start|>", "<|image_end|>", *reserved("vision_", 0, 2)]
    vision += ["<|tile_x_separator|>", "<|tile_y_separator|>", *reserved("vision_", 2, 4), "<|image|>"]
    vision += [*reserved("vision_", 6, 1), "<|patch|>", *reserved("vision_", 7, 1041)]
    reasoning = [*reserved("reasoning_", 0, 8), "<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"]
    named = ["<|begin_of_text|>", "<|end_of_text|>", *_FIM, *text, *vision, *reasoning]
    return named + reserved("", 0, 2048 - len(named))


@dataclass(frozen=True)
class Encoding:
    """`splitter` is gigatoken's name for the pattern; None: it takes these ranks with their merges alone
    (`tiktoken_ranks.for_gigatoken`). Ids of special tokens are fixed, or follow the ranks. By `count` and
    `landmarks` a file is recognised whose sha256 is not known."""

    sha256: str
    pattern: str
    splitter: str | None
    fixed: Mapping[str, int] = field(default_factory=dict, hash=False)
    following: tuple[str, ...] = ()
    count: int = 0
    landmarks: Mapping[bytes, int] = field(default_factory=dict, hash=False)

    def specials(self, ranks: int) -> dict[str, int]:
        """Of a file with so many ranks."""
        return {**self.fixed, **{name: ranks + at for at, name in enumerate(self.following)}}

    def is_of(self, ranks: Mapping[bytes, int]) -> bool:
        return len(ranks) == self.count and all(
            ranks.get(token) == rank for token, rank in self.landmarks.items()
        )


_R50K = Encoding(_R50K_SHA256, _R50K_PATTERN, "gpt2", {"<|endoftext|>": 50256})

# Of two encodings with the same ranks the first is the one a file is recognised as.
ENCODINGS: dict[str, Encoding] = {
    "r50k_base": _R50K,
    "gpt2": _R50K,
    "p50k_base": Encoding(_P50K_SHA256, _R50K_PATTERN, "gpt2", {"<|endoftext|>": 50256}),
    "p50k_edit": Encoding(
        _P50K_SHA256,
        _R50K_PATTERN,
        "gpt2",
        {"<|endoftext|>": 50256} | dict(zip(_FIM, range(50281, 50284), strict=True)),
    ),
    "cl100k_base": Encoding(
        _CL100K_SHA256,
        _CL100K_PATTERN,
        "gpt4",
        {"<|endoftext|>": 100257}
        | dict(zip(_FIM, range(100258, 100261), strict=True))
        | {"<|endofprompt|>": 100276},
    ),
    "o200k_base": Encoding(
        _O200K_SHA256, _O200K_PATTERN, "o200k", {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    ),
    "o200k_harmony": Encoding(_O200K_SHA256, _O200K_PATTERN, "o200k", _harmony_specials()),
    # landmarks: the sentence that Meta's test of the tokenizer encodes, and where the single bytes begin
    "llama3": Encoding(
        _LLAMA3_SHA256,
        _LLAMA3_PATTERN,
        None,
        following=tuple(_llama3_specials()),
        count=128_000,
        landmarks={b"!": 0, b"This": 2028, b" is": 374, b" a": 264, b" test": 1296, b" sentence": 11914},
    ),
    "llama4": Encoding(
        _LLAMA4_SHA256,
        _O200K_PATTERN,
        "o200k",
        following=tuple(_llama4_specials()),
        count=200_000,
        landmarks={b"\xc0": 0, b"This": 3231, b" is": 373, b" a": 262, b" test": 1600, b" sentence": 17705},
    ),
}


def recognise_encoding(path: Path, sha256: str, encoding: str | None, ranks: Mapping[bytes, int]) -> str:
    """The encoding named by the caller, or the one whose rank file this is."""
    by_sha256 = [name for name, known in ENCODINGS.items() if known.sha256 == sha256]
    if encoding is None:
        by_content = [name for name, known in ENCODINGS.items() if known.is_of(ranks)]
        if by_sha256 or by_content:
            return [*by_sha256, *by_content][0]
        raise TokenizerError(
            "a rank file does not say how text is split, and this one is not a published file",
            where=str(path),
            next=f"set `encoding` to one of {', '.join(ENCODINGS)}",
        )
    if encoding not in ENCODINGS:
        raise TokenizerError(
            f"unknown encoding {encoding!r}", where=str(path), next=f"choose one of {', '.join(ENCODINGS)}"
        )
    if by_sha256 and encoding not in by_sha256:
        raise TokenizerError(
            f"these are the ranks of {by_sha256[0]}, not of {encoding}",
            where=str(path),
            next=f"set `encoding` to one of {', '.join(by_sha256)}, or leave it out",
        )
    return encoding
