"""The ledger: its columns, and every reason that a run can give.

REASONS below + rules of the packs ─> reference/ledger.md

Reasons are written where they are found, all over the readers and stages. A test looks for them there (every
call that makes one), and in the ledgers of a run over bad files, and fails for one that is not in this list.
"""

from __future__ import annotations

import functools
from typing import Final

from tokmill.clean.rules import PACKS, load_pack
from tokmill.reference.markup import code, page, table, text
from tokmill.schema import LEDGER

PATH = "reference/ledger.md"

COLUMNS: Final = {
    "shard": "`<source>/<key>` of the documents file; null for a record that never became a document",
    "row": "of that file",
    "source": "name of the source",
    "doc_id": "the document's id, where it has one",
    "stage": "`ingest`, `clean`, `dedup` or `split`",
    "verdict": "`drop`, `edit` or `quarantine`",
    "reason": "one of those below",
    "value": "what was measured; of an edit, how often",
    "threshold": "the bound that it broke",
    "match_shard": "of a copy: where the survivor is",
    "match_row": "of a copy: its row there",
    "similarity": "with the survivor: Jaccard of the n-gram sets",
    "file": "of a record: the input file",
    "offset": (
        "of a record: bytes into the decompressed file; the row of a Parquet file; of a .warc.gz or .wet.gz "
        "where its gzip member begins in the compressed one"
    ),
    "detail": "in words",
}

# (stage, verdict, what it is about): {reason: what it means}
REASONS: Final = {
    ("ingest", "quarantine", "Records that cannot be read"): {
        "bad_encoding": "the body of a web page or of a message cannot be unpacked by the coding it names",
        "bad_header": "no header of a WARC record, or of a message, where one should begin",
        "bad_http": "the response in a WARC record is no HTTP",
        "bad_json": "WebDataset: the `.json` member of a sample is no JSON object",
        "bad_length": "a WARC record does not end where its Content-Length says",
        "bad_messages": "chat: no list of messages, or a message without a known role or a text",
        "bad_mime": "a message in parts that nothing separates",
        "bad_name": "the name of a file, or of a member of an archive, is not UTF-8",
        "bad_notebook": "directory: an `.ipynb` file that is no notebook",
        "corrupt_pdf": "no document can be found in a PDF, or one of its pages cannot be loaded",
        "corrupt_record": "a compressed record cannot be decompressed",
        "duplicate_key": "one key twice in one JSON object",
        "duplicate_member": "WebDataset: two members of a sample have one name",
        "encrypted": "a PDF that needs a password",
        "invalid_csv": "a row with more or fewer cells than the header, or text after a closing quote",
        "invalid_json": "not JSON; `NaN` and `Infinity` are not either",
        "invalid_utf16": "directory: a file that begins as UTF-16 and is none",
        "invalid_utf8": "bytes that are not UTF-8",
        "lone_surrogate": "half of a surrogate pair in a JSON string",
        "missing_field": "a field that is needed is missing, or null",
        "no_member": "WebDataset: a sample without the member, or the field, that `text` names",
        "no_text_layer": "a PDF without text on any page: a scan",
        "outside_block": "text of a WikiExtractor file that is in no `<doc>` block",
        "parser_died": "the process that read a PDF crashed, or asked for more memory than one file may have",
        "reserved_character": "chat: a noncharacter, U+FDD0 to U+FDEF, with which regions are marked",
        "template_error": "chat: the template refuses the conversation, or fails",
        "template_rewrites_content": "chat: the template changes, cuts or compares the text of a message",
        "too_deep": "nested deeper than is read",
        "too_large": "larger than `max_record_bytes`, or more pages than are read of a PDF",
        "too_many_parts": "a message of more parts than are read",
        "too_slow": "a PDF that takes more than `max_seconds` of a processor",
        "truncated": "a PDF that does not end as a PDF ends; a WARC file that ends inside this record",
        "unclosed_block": "a `<doc>` block that does not end before the next begins",
        "undecodable": "the bytes of a web page or a message are not of the charset it names",
        "unparsable_wikitext": "a page whose markup cannot be parsed",
        "wrong_type": "a field holds something that cannot be what it should",
    },
    ("ingest", "drop", "Records that were not asked for"): {
        "binary": "directory: a NUL in the first 8 KB of a file",
        "deleted": "Stack Exchange: a deleted post",
        "duplicate_post": "Stack Exchange: a post that stands in the dump twice",
        "empty_page": "Wikipedia: nothing is left of the page but its title",
        "empty_side": "parallel: one side is empty",
        "forgotten": "taken down by `tokmill forget`",
        "http_status": "WARC: a response with another status than 200",
        "ignored": "directory: a `.gitignore` names the file, or the directory: then one row",
        "link": "directory: a symbolic link, which is not followed",
        "low_answer_score": "Stack Exchange: below `min_answer_score`",
        "low_question_score": "Stack Exchange: below `min_question_score`",
        "no_text": "WARC, PDF by page: no text on the page; mbox: no part of the message is text",
        "not_a_page": "WARC: a record that is no response and no conversion",
        "not_a_question": "Stack Exchange: a post that is neither question nor answer",
        "not_a_sample": "WebDataset: a member whose name has no dot",
        "not_an_article": "Wikipedia: in another namespace than `namespaces`",
        "not_sampled": "not drawn by `sample`; counted in the manifest, without a row of its own",
        "not_text": "WARC: another media type than HTML or plain text",
        "not_wikitext": "Wikipedia: a page of another content model",
        "orphan_answer": "Stack Exchange: its question is not in the dump",
        "other_<field>": "the field has another value than `where` asks for, e.g. `other_language`",
        "punctuation_only": "parallel: a side without a letter or digit",
        "redirect": "Wikipedia: a page that only leads to another",
        "side_file": "directory: a manifest or decisions that tokmill wrote beside documents",
        "side_too_long": "parallel: a side above `max_chars`",
        "side_too_short": "parallel: a side below `min_chars`",
        "special_file": "directory: a pipe, a socket or a device",
        "unanswered": "Stack Exchange: a question without an answer that is wanted",
    },
    ("clean", "drop", "Documents, before the rules"): {
        "blocked_domain": "its URL is of a domain that `urls.block` names, or of a subdomain of one",
        "blocked_url": "its URL is one of `urls.block.lists`, or below one",
        "blocked_word": "its URL has a word of `urls.block.words`",
        "empty": "nothing that can be seen is in the text",
        "language_unsure": (
            "the detector's score is below `min_score`; with `method: field` the source says none"
        ),
        "license_denied": "in `deny`",
        "license_not_allowed": "not in `allow`",
        "license_unknown": "no licence that is known; a quarantine where `unknown: quarantine`",
        "no_url": "no URL that can be read, and `urls.unknown: drop`",
        "other_language": "not in `keep`",
        "robots_<word>": "its page tells robots so, and `robots.drop` has the word: `robots_noai`",
    },
    ("clean", "edit", "Texts that were changed"): {
        "blank_line": "a line edit: blank lines taken out",
        "citation": "a line edit: `[12]`, `[edit]`, `[citation needed]` taken out",
        "line_of_few_words": "a line edit: lines of too few words taken out",
        "line_with_javascript": "a line edit: lines that say javascript taken out",
        "line_with_long_word": "a line edit: lines with too long a word taken out",
        "line_with_policy_phrase": "a line edit: lines about policies or cookies taken out",
        "line_without_terminal_punctuation": "a line edit: lines that end otherwise taken out",
        "newlines_to_lf": "`\\r\\n` and `\\r` became `\\n`",
        "nul_stripped": "NUL characters taken out",
        "outer_whitespace": "a line edit: spaces at the ends of lines taken out",
        "redacted_<kind>": (
            "replaced by a constant: `redacted_secret`, `redacted_email`, `redacted_ip`, `redacted_phone`; "
            "the detail has the bytes, in the text that all other edits left"
        ),
        "unicode_nfc": "brought into the form NFC",
        "unicode_nfkc": "brought into the form NFKC",
    },
    ("dedup", "drop", "Copies"): {
        "contaminated": "holds items of a benchmark (`dedup.against`)",
        "reference_exact_dup": (
            "equal to a document of an earlier corpus (`dedup.reference`), case and spaces aside"
        ),
        "reference_near_dup": (
            "similar to a document of an earlier corpus: verified where that is a run, estimated where it is "
            "an index"
        ),
        "exact_dup": (
            "equal to the survivor; where the detail is `folded`, after NFKC, case folding and collapsing of "
            "spaces"
        ),
        "url_dup": "of the page that the survivor is of: equal URLs in one form, whatever the texts",
        "only_site_template": "all that it says recurs on the pages of its site (`dedup.templates`)",
        "near_dup": "similar to the survivor, which was verified of it or of an equal text",
        "window_dup": "more than `max_share` of its words are passages of earlier documents",
    },
    ("dedup", "edit", "Texts that were cut"): {
        "site_template": "so many characters in lines that recur on the pages of its site (`templates`)",
        "passages_trimmed": "passages of earlier documents taken out (`window.policy: trim`)",
    },
    ("split", "drop", "Documents in no split"): {
        "not_counted": "`split.counts` asks for fewer",
        "unknown_split": "the field has no value that a split wants (`unknown: drop`)",
    },
    ("mixture", "drop", "Documents that are not built"): {
        "no_weight": "its source or domain has the weight 0",
        "over_budget": (
            "the target was reached without it; without a target, it was left when the first domain ran out"
        ),
        "left_out_by_score": "`mixture.repeat` gives it no turn, or `mixture.select` did not draw it",
        "left_out_by_stage": "too short, too long or scored otherwise than this one of `mixture.stages` asks",
        "had_before": "earlier stages, or the run that is continued, had it as often as `max_epochs` allows",
    },
    ("build", "drop", "Documents without a token in a build"): {
        "left_out": "its rows were planned and not taken (`balance`, a target in blocks)",
        "tail": "lay in the last row, which was not full",
    },
}

# Steps that count what they leave out; which documents these are follows from the order and the index.
_ONLY_COUNTED: Final = ("mixture", "build")


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Ledger",
            "",
            "One row for every decision that was not a plain keep, in `ledger-*.parquet` of the step that "
            "took it. A document without a row was kept as it came. In every step in = kept + dropped + "
            "quarantined, by the counts in its `manifest.json`, or the run stops "
            "([why](../explanations/conservation.md)).",
            "",
            "`tokmill why RUN DOC_ID` reads it for one document, `tokmill why RUN --reason REASON` for one "
            "reason.",
            "",
            "## Columns",
            table(
                ("column", "type", "what"),
                ((code(field.name), str(field.type), text(COLUMNS[field.name])) for field in LEDGER),
            ),
            "## Reasons",
            *(
                line
                for (stage, verdict, about), told in REASONS.items()
                for line in _group(stage, verdict, about, told)
            ),
            "### By the rules",
            "",
            "Step `clean`, verdict `drop`. A rule of your own has the reason it is given, which is none of "
            "those that documents have before the rules or as copies, else one made from its measure: "
            "`too_few_words` and `too_many_words` for counts, `digit_share_too_low` and "
            "`digit_share_too_high` for the rest. `value` is what was measured, `threshold` the bound. The "
            "rules of the [packs](packs.md):",
            table(
                ("reason", "rules"),
                ((code(reason), ", ".join(map(code, rules))) for reason, rules in pack_reasons().items()),
            ),
        )
    }


def known_reasons() -> set[str]:
    """Every reason by its name; `other_<field>` stands for a family."""
    return {reason for told in REASONS.values() for reason in told} | set(pack_reasons())


@functools.cache
def pack_reasons() -> dict[str, list[str]]:
    """Reasons of the shipped packs, with the rules that give them."""
    found: dict[str, list[str]] = {}
    for pack in (load_pack(name) for name in PACKS):
        for rule in pack.rules:
            found.setdefault(rule.reason, []).append(f"{pack.name}.{rule.name}")
    return dict(sorted(found.items()))


def _group(stage: str, verdict: str, about: str, told: dict[str, str]) -> list[str]:
    rows = ((code(reason), text(meaning)) for reason, meaning in sorted(told.items()))
    counted = "; counted in the manifest, without rows in a ledger" if stage in _ONLY_COUNTED else ""
    told_of = f"Step {code(stage)}, verdict {code(verdict)}{counted}."
    return ["", f"### {about}", "", told_of, *table(("reason", "what it means"), rows)]
