"""Licence tags as the world writes them, policies on them, and the attribution that comes of it."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

import tokmill
from cleaned import rows_of
from tokmill.clean.license_policy import DROP, KEEP, LicenseTotals, attribution, judge_licenses, make_policy
from tokmill.clean.licenses import known, parse_license
from tokmill.errors import RecipeError

WRITTEN = {
    "cc-by-4.0": "CC-BY-4.0",
    "CC BY-SA 3.0": "CC-BY-SA-3.0",
    "CC BY\u2011SA 4.0": "CC-BY-SA-4.0",  # a hyphen that does not break
    "cc_by_4.0": "CC-BY-4.0",
    "cc-by-sa-3.0-unported": "CC-BY-SA-3.0",
    "CC BY-SA 3.0 DE": "CC-BY-SA-3.0-DE",
    "CC-BY-SA-3.0-FR": "LicenseRef-CC-BY-SA-3.0-FR",  # a real port that the list does not have
    "Attribution 4.0 International (CC BY 4.0)": "CC-BY-4.0",
    "Creative Commons Attribution-NonCommercial-NoDerivs 3.0 Unported": "CC-BY-NC-ND-3.0",
    "cc-by-sa": "LicenseRef-CC-BY-SA",
    "https://creativecommons.org/licenses/by-sa/4.0/": "CC-BY-SA-4.0",
    "http://www.creativecommons.org/licenses/by/2.5/deed.fr": "CC-BY-2.5",
    "http://creativecommons.org/publicdomain/zero/1.0/": "CC0-1.0",
    "[CC BY 4.0](https://creativecommons.org/licenses/by/4.0/)": "CC-BY-4.0",
    "Creative Commons - Attribution - https://creativecommons.org/licenses/by/4.0/": "CC-BY-4.0",
    "https://www.gnu.org/licenses/gpl-3.0.en.html": "GPL-3.0-only",
    "https://opensource.org/licenses/MIT": "MIT",
    "https://spdx.org/licenses/BSD-3-Clause.html": "BSD-3-Clause",
    "https://www.apache.org/licenses/LICENSE-2.0.txt": "Apache-2.0",
    "https://opendatacommons.org/licenses/by/1-0/": "ODC-By-1.0",
    "odc-by": "ODC-By-1.0",
    "apache 2.0": "Apache-2.0",
    "apache2": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "apache": "LicenseRef-Apache",
    "mit": "MIT",
    "The MIT License (MIT)": "MIT",
    "license:mit": "MIT",
    "SPDX-License-Identifier: MIT": "MIT",
    "License :: OSI Approved :: GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v3 or later (GPLv3+)": "GPL-3.0-or-later",
    "GPL-3.0+": "GPL-3.0-or-later",
    "gpl": "GPL-1.0-or-later",
    "LGPLv2.1": "LGPL-2.1-only",
    "GNU Affero General Public License v3.0": "AGPL-3.0-only",
    "bsd": "LicenseRef-BSD",
    'BSD 3-Clause "New" or "Revised" License': "BSD-3-Clause",
    "public domain": "LicenseRef-Public-Domain",
    "cc0": "CC0-1.0",
    "MIT OR Apache-2.0": "Apache-2.0 OR MIT",
    "mit/apache-2.0": "Apache-2.0 OR MIT",
    "Apache-2.0 AND CC-BY-4.0": "Apache-2.0 AND CC-BY-4.0",
    "GPL-2.0-only WITH Classpath-exception-2.0": "GPL-2.0-only WITH Classpath-exception-2.0",
    "GPL-2.0-with-classpath-exception": "GPL-2.0-only WITH Classpath-exception-2.0",
    "((MIT OR GPL-2.0) AND bsd-3-clause) and mit": "BSD-3-Clause AND (GPL-2.0-only OR MIT) AND MIT",
    "mit and apache-2.0 or mit": "Apache-2.0 AND MIT OR MIT",
    "Apache-2.0+": "Apache-2.0+",
    "LicenseRef-our-contract-7": "LicenseRef-our-contract-7",
    "licenseref-gemma": "LicenseRef-Gemma",
}  # fmt: skip
# Tags of the hub that are no SPDX identifiers in lower case.
HUB = {
    "openrail": "LicenseRef-OpenRAIL", "openrail++": "LicenseRef-OpenRAIL-Plus-Plus-M", "c-uda": "C-UDA-1.0",
    "cc": "LicenseRef-CC", "gfdl": "GFDL-1.1-or-later", "lgpl": "LGPL-2.0-or-later", "odbl": "ODbL-1.0",
    "pddl": "PDDL-1.0", "lgpl-lr": "LGPLLR", "llama3.1": "LicenseRef-Llama-3.1", "gemma": "LicenseRef-Gemma",
    "lppl-1.3c": "LPPL-1.3c", "etalab-2.0": "etalab-2.0",
    "bigscience-bloom-rail-1.0": "LicenseRef-BigScience-BLOOM-RAIL-1.0", "unlicense": "Unlicense",
    "wtfpl": "WTFPL", "ms-pl": "MS-PL", "ecl-2.0": "ECL-2.0", "bsl-1.0": "BSL-1.0",
}  # fmt: skip
NOT_KNOWN = [
    "", " ", "other", "unknown", "NOASSERTION", "NONE", "n/a", "proprietary", "all rights reserved",
    "CC BY 5.0", "GPL-9.0", "mit and", "or", "WITH", "(mit", "mit)", "mit mit", "MIT WITH nothing",
    "MIT OR something else", "not MIT", "cc-by-nd-sa-4.0", "https://example.com/license", "not https://creativecommons.org/licenses/by/4.0/",
    "CC BY 3.0 https://creativecommons.org/licenses/by/4.0/", "LicenseRef-", "LicenseRef-a b", "\0", "mit\0",
    "🙂",
]  # fmt: skip
TAGS = st.one_of(
    st.text(max_size=30),
    st.lists(
        st.sampled_from(
            [*WRITTEN, *HUB, *NOT_KNOWN, "AND", "or", "WITH", "(", ")", "/", "+", "-", "https://", "4.0"]
        ),
        max_size=7,
    ).map(" ".join),
    st.text("cbysagplv-+. ()/orandwith340", max_size=30),
)


def spdx_of(tag: str) -> str | None:
    expression = parse_license(tag)
    return None if expression is None else str(expression)


class Judged(NamedTuple):
    spdx: str | None
    reason: str | None
    verdict: str


def judged(tags: list[str | None], default: str | None = None, **policy: object) -> list[Judged]:
    """Of a document for each tag, after a run as far as cleaning."""
    documents = [{"id": str(n), "text": f"Document {n}.", "license": tag} for n, tag in enumerate(tags)]
    source = {"name": "s", "data": documents, "license": default}
    recipe = {"name": "licences", "sources": [source], "license": policy}
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="clean").out
        marks = rows_of(out, "clean/s", "marks")
        ledger = {int(row["doc_id"]): row for row in rows_of(out, "clean/s", "ledger")}
    assert len(marks) == len(tags)
    assert [mark["kept"] for mark in marks] == [n not in ledger for n in range(len(tags))]
    return [
        Judged(mark["license"], ledger[n]["reason"], ledger[n]["verdict"])
        if n in ledger
        else Judged(mark["license"], None, "keep")
        for n, mark in enumerate(marks)
    ]


@pytest.fixture(scope="module")
def spelled() -> dict[str, str | None]:
    """The SPDX form of everything that is written below, by one run over all of it."""
    known_tags = [*WRITTEN, *HUB]
    tags = [
        *known_tags,
        *(f"  {tag}\n" for tag in known_tags),
        *(tag.upper() for tag in known_tags),
        *NOT_KNOWN,
    ]
    return dict(zip(tags, (one.spdx for one in judged([*tags], unknown="keep")), strict=True))


@pytest.mark.parametrize(("written", "spdx"), [*WRITTEN.items(), *HUB.items()])
def test_what_the_world_writes_has_one_spdx_form(
    spelled: dict[str, str | None], written: str, spdx: str
) -> None:
    assert spelled[written] == spdx
    assert spelled[f"  {written}\n"] == spdx
    if "contract" not in written:  # whose spelling is its own
        assert spelled[written.upper()] == spdx


@pytest.mark.parametrize("written", NOT_KNOWN)
def test_what_is_not_known_is_none(spelled: dict[str, str | None], written: str) -> None:
    assert spelled[written] is None


def test_every_identifier_of_the_list_means_itself() -> None:
    assert len(known().licenses) > 600
    for spdx in [*known().licenses, *known().references]:
        assert spdx_of(spdx) == spdx_of(spdx.lower()) == spdx
    for exception in known().exceptions:
        assert spdx_of(f"gpl-2.0+ with {exception.lower()}") == f"GPL-2.0-or-later WITH {exception}"


def test_another_hand_knows_the_same_identifiers() -> None:
    """`packaging`, which comes with pytest, has an SPDX list of its own; it may be newer, hardly older."""
    for spdx in known().licenses:
        assert canonicalize_license_expression(spdx.lower()) == spdx
    for written in ("mit or apache-2.0", "gpl-2.0-only with classpath-exception-2.0 and mit"):
        canonical = spdx_of(written)
        assert canonical is not None
        assert canonicalize_license_expression(canonical) == canonical


def test_every_alias_leads_to_something_canonical() -> None:
    for spdx in [*known().by_key.values(), *known().by_address.values()]:
        assert spdx_of(spdx) == spdx


@settings(deadline=None, max_examples=500)
@given(TAGS)
def test_normalizing_is_total_and_its_result_is_canonical(tag: str) -> None:
    spdx = spdx_of(tag)
    assert spdx is None or (spdx_of(spdx) == spdx and spdx.isascii())


@pytest.mark.parametrize(
    "piece", ["(", ")", "mit or ", "a", "-", " ", "v", "https://", "MIT AND (", "gpl", "1.", "\0", "é"]
)
def test_a_megabyte_is_no_licence_and_takes_no_time(piece: str) -> None:
    longest = 1999 // len(piece)  # that is looked at
    too_long, _ = judged([piece * (1_000_000 // len(piece)), piece * longest], unknown="keep")
    assert too_long.spdx is None


def verdicts(
    tags: list[str | None], default: str | None = None, **policy: object
) -> list[tuple[str | None, str]]:
    return [(one.reason, one.verdict) for one in judged(tags, default, **policy)]


def test_what_is_not_on_the_allow_list_is_dropped_and_no_list_allows_all() -> None:
    tags: list[str | None] = ["mit", "Apache 2.0", "GPL-3.0"]
    passes, fails = (None, "keep"), ("license_not_allowed", "drop")
    assert verdicts(tags, allow=["MIT", "apache-2.0"]) == [passes, passes, fails]
    assert verdicts(tags) == verdicts(tags, allow=[]) == [passes] * 3


def test_deny_wins_over_allow() -> None:
    assert verdicts(["MIT"], allow=["MIT"], deny=["mit"]) == [("license_denied", "drop")]
    assert verdicts(["CC-BY-NC-4.0"], allow=["CC-BY-NC-4.0"], deny=["CC-BY-NC-*"]) == [
        ("license_denied", "drop")
    ]


def test_or_needs_one_side_and_and_needs_both() -> None:
    tags: list[str | None] = ["MIT OR GPL-3.0-only", "MIT AND GPL-3.0-only", "Apache-2.0 OR GPL-3.0-only"]
    assert verdicts(tags, allow=["MIT"]) == [
        (None, "keep"), ("license_not_allowed", "drop"), ("license_not_allowed", "drop"),
    ]  # fmt: skip
    assert verdicts(tags, deny=["GPL-3.0"]) == [(None, "keep"), ("license_denied", "drop"), (None, "keep")]
    assert verdicts(["MIT AND (GPL-3.0 OR BSD-3-Clause)"], allow=["MIT", "BSD-3-Clause"]) == [(None, "keep")]


def test_an_exception_is_judged_by_the_whole_or_by_its_licence() -> None:
    tags: list[str | None] = ["GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only"]
    denied, passes, fails = ("license_denied", "drop"), (None, "keep"), ("license_not_allowed", "drop")
    whole = "GPL-2.0-only WITH Classpath-exception-2.0"
    assert verdicts(tags, allow=["GPL-2.0"]) == [passes, passes]
    assert verdicts(tags, allow=[whole]) == [passes, fails]
    assert verdicts(tags, allow=[whole], deny=["GPL-2.0"]) == [passes, denied]
    assert verdicts(tags, deny=[whole]) == [denied, passes]


def test_or_later_is_one_licence_however_it_is_written() -> None:
    assert verdicts(["GPL-3.0+", "GPL-3.0"], allow=["GPL-3.0-or-later"]) == [
        (None, "keep"), ("license_not_allowed", "drop"),
    ]  # fmt: skip
    assert verdicts(["Apache-2.0+"], allow=["Apache-2.0"]) == [(None, "keep")]


def test_the_document_s_tag_wins_over_the_source_s_and_an_unknown_one_is_unknown() -> None:
    tags = ["GPL-3.0", None, "see LICENSE"]
    assert judged(tags, "mit", allow=["MIT"], unknown="quarantine") == [
        Judged("GPL-3.0-only", "license_not_allowed", "drop"),
        Judged("MIT", None, "keep"),
        Judged(None, "license_unknown", "quarantine"),
    ]


@pytest.mark.parametrize("unknown", ["drop", "keep", "quarantine"])
def test_the_policy_says_what_happens_to_unknown_licences(unknown: str) -> None:
    expected = (None if unknown == "keep" else "license_unknown", unknown)
    assert verdicts([None, "?"], unknown=unknown) == [expected] * 2
    assert verdicts([None], default="no such", unknown=unknown) == [expected]


def test_a_family_is_every_version_but_no_other_licence() -> None:
    allow = ["cc-by-*"]
    passes = ["CC-BY-1.0", "CC-BY-4.0", "CC-BY-3.0-DE", "CC BY 3.0 FR", "cc-by"]
    fails = ["CC-BY-SA-4.0", "CC-BY-NC-4.0", "CC0-1.0", "ODC-By-1.0", "cc"]
    assert {v for _, v in verdicts([*passes], allow=allow)} == {"keep"}
    assert {v for _, v in verdicts([*fails], allow=allow)} == {"drop"}
    assert [v for _, v in verdicts(["BSD-2-Clause", "bsd", "GPL-3.0+"], allow=["BSD-*", "GPL-*"])] == [
        "keep"
    ] * 3


def test_columns_of_any_shape() -> None:
    policy = make_policy(allow=["MIT"])
    kept = judge_licenses(pa.array([None, "?"], pa.string()), make_policy(unknown="keep"))
    assert (kept.reason.to_pylist(), kept.verdict.tolist()) == (["license_unknown"] * 2, [KEEP] * 2)
    empty = judge_licenses(pa.array([], pa.string()), policy)
    assert (len(empty.spdx), len(empty.verdict), len(empty.reason)) == (0, 0, 0)
    chunked = pa.chunked_array([["mit", None], [], ["The MIT License"]], pa.string())
    assert judge_licenses(chunked, policy).spdx.to_pylist() == ["MIT", None, "MIT"]
    many = pa.array([f"tag {n % 5000}" for n in range(20_000)] + ["MIT"], pa.large_string())
    assert judge_licenses(many, policy).verdict.tolist() == [DROP] * 20_000 + [KEEP]
    sliced = pa.array(["x", "mit", "GPL", None], pa.string()).slice(1, 3)
    assert np.array_equal(judge_licenses(sliced, policy).verdict, [KEEP, DROP, DROP])


@pytest.mark.parametrize(
    ("entry", "nearest"),
    [
        ("Apache-2", ""),
        ("Apache-2.O", "Apache-2.0"),
        ("CC-BY-SA-4", ""),
        ("MTI", "MIT"),
        ("CC-BI-*", "CC-BY-*"),
    ],
)
def test_a_policy_entry_that_is_no_licence_names_the_nearest(entry: str, nearest: str) -> None:
    if not nearest:  # a spelling that is understood
        assert verdicts([entry, "MIT"], allow=[entry]) == [(None, "keep"), ("license_not_allowed", "drop")]
        return
    with pytest.raises(RecipeError, match="is not a known licence") as caught:
        judged(["MIT"], deny=[entry])
    assert "license.deny" in str(caught.value)
    assert nearest in str(caught.value)


def test_a_policy_entry_is_one_licence() -> None:
    with pytest.raises(RecipeError, match="more than one licence"):
        judged(["MIT"], allow=["MIT OR Apache-2.0"])
    with pytest.raises(RecipeError, match=r"license\.unknown"):
        judged(["MIT"], unknown="ask")
    with pytest.raises(RecipeError, match="not a known licence"):
        judged(["MIT"], allow=["x" * 1_000_000])


def amounts(chars: int, tokens: int) -> dict[str, int]:
    return {"characters": chars, "tokens": tokens}


TOTALS = [
    LicenseTotals("mdn", "CC-BY-SA-2.5", 3, amounts(1000, 250), ["https://developer.mozilla.org"]),
    LicenseTotals("stack|overflow", "CC-BY-SA-4.0", 10, amounts(5000, 1300)),
    LicenseTotals("crates", "Apache-2.0 OR MIT", 7, amounts(700, 200)),
    LicenseTotals("jdk", "GPL-2.0-only WITH Classpath-exception-2.0", 1, amounts(90, 30)),
    LicenseTotals("old books", "LicenseRef-Public-Domain", 4, amounts(4_000_000, 1_000_000)),
    LicenseTotals("scrape", None, 2, amounts(20, 6)),
]


def test_attribution_names_every_licence_its_address_and_what_it_asks_for() -> None:
    text = attribution(TOTALS)
    assert (
        "[Creative Commons Attribution Share Alike 2.5 Generic](https://creativecommons.org/licenses/by-sa/2.5/)"
        in text
    )
    assert "attribution required; ShareAlike" in text
    assert "[MIT License](https://spdx.org/licenses/MIT.html): keep copyright" in text
    assert "with Classpath exception 2.0" in text
    assert "| old books | 4 | 4,000,000 | 1,000,000 |" in text
    assert "| stack\\|overflow | 10 | 5,000 | 1,300 |" in text
    assert "- mdn: <https://developer.mozilla.org>" in text
    assert text.rindex("## Unknown") > text.rindex("## LicenseRef-Public-Domain")
    assert "No licence is known for these documents" in text


@pytest.mark.parametrize(
    ("spdx", "asks"),
    [
        ("MIT", "keep copyright and licence notices"),
        ("PolyForm-Noncommercial-1.0.0", "keep copyright and licence notices; non-commercial use only"),
        (
            "PolyForm-Small-Business-1.0.0",
            "keep copyright and licence notices; restricted use: read its terms",
        ),
        ("NCGL-UK-2.0", "keep copyright and licence notices; non-commercial use only"),
        ("BUSL-1.1", "keep copyright and licence notices; restricted use: read its terms"),
        ("Elastic-2.0", "keep copyright and licence notices; restricted use: read its terms"),
        ("SSPL-1.0", "keep copyright and licence notices; copyleft: derived works under the same licence"),
        ("Apache-2.0+", "keep copyright and licence notices"),
        ("EUPL-1.2+", "keep copyright and licence notices; copyleft: derived works under the same licence"),
    ],
)
def test_attribution_says_of_a_licence_with_limits_that_it_has_some(spdx: str, asks: str) -> None:
    text = attribution([LicenseTotals("web", spdx, 1, amounts(1, 1))])
    (line,) = [line for line in text.splitlines() if line.startswith("- ")]
    assert line.endswith(f": {asks}.")


def test_attribution_is_the_same_in_any_order_and_adds_up() -> None:
    shuffled = TOTALS[:]
    random.Random(1).shuffle(shuffled)
    assert attribution(shuffled) == attribution(TOTALS)
    half = LicenseTotals("mdn", "MIT", 1, amounts(50, 5))
    assert attribution([half, half]) == attribution([LicenseTotals("mdn", "MIT", 2, amounts(100, 10))])
    without = LicenseTotals("mdn", "MIT", 1, {"characters": 50})
    assert "tokens" not in attribution([without, half])  # half a sum is no sum
    assert attribution([]).endswith("It holds no documents.\n")


def test_attribution_names_the_sources_of_which_nothing_is_there() -> None:
    text = attribution(TOTALS[:1], "What is in rows.", ["wiki", "a|b"])
    assert text.startswith("# Attribution\n\nWhat is in rows.\n\nNothing is from wiki, a\\|b.\n\n| licence |")
    assert "Nothing is from" not in attribution(TOTALS)
