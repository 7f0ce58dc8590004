"""The front matter of a dataset card, in the words of the Hugging Face Hub.

    ---
    license:                     licences as the Hub spells them, one that it does not list is `other`
    - mit
    configs:                     what `datasets.load_dataset` finds, split by split
    - config_name: default
    ---

Written by hand and not by a YAML library: names come from sources and recipes, and each is spelled so that
YAML cannot take it for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

# What `datasets` calls a split that we call otherwise.
HUB_SPLITS = {"valid": "validation"}

# https://huggingface.co/docs/hub/repositories-licenses, those that have an SPDX identifier
_HUB_LICENSES = frozenset(
    [
        "apache-2.0",
        "mit",
        "afl-3.0",
        "artistic-2.0",
        "bsl-1.0",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsd-3-clause-clear",
        "cc0-1.0",
        "cc-by-2.0",
        "cc-by-2.5",
        "cc-by-3.0",
        "cc-by-4.0",
        "cc-by-sa-3.0",
        "cc-by-sa-4.0",
        "cc-by-nc-2.0",
        "cc-by-nc-3.0",
        "cc-by-nc-4.0",
        "cc-by-nd-4.0",
        "cc-by-nc-nd-3.0",
        "cc-by-nc-nd-4.0",
        "cc-by-nc-sa-2.0",
        "cc-by-nc-sa-3.0",
        "cc-by-nc-sa-4.0",
        "cdla-sharing-1.0",
        "cdla-permissive-1.0",
        "cdla-permissive-2.0",
        "wtfpl",
        "ecl-2.0",
        "epl-1.0",
        "epl-2.0",
        "etalab-2.0",
        "eupl-1.1",
        "eupl-1.2",
        "agpl-3.0",
        "gpl-2.0",
        "gpl-3.0",
        "lgpl-2.1",
        "lgpl-3.0",
        "isc",
        "lppl-1.3c",
        "ms-pl",
        "mpl-2.0",
        "odc-by",
        "odbl",
        "osl-3.0",
        "postgresql",
        "ofl-1.1",
        "ncsa",
        "unlicense",
        "zlib",
        "pddl",
    ]
)


_SIZES = (
    *((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M")),
    *((10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B")),
    *((10**12, "100B<n<1T"),),
)


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 _./-]*")


_YAML_WORDS = {"yes", "no", "true", "false", "on", "off", "null", "y", "n"}


def hub_license(spdx: str) -> str:
    """As the Hub calls it: GPL-3.0-only is gpl-3.0, ODC-By-1.0 is odc-by; otherwise `other`."""
    name = spdx.lower().removesuffix("-only").removesuffix("-or-later")
    name = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl"}.get(name, name)
    return name if name in _HUB_LICENSES else "other"


def name_others(licenses: Sequence[str], url_of: Callable[[str], str | None]) -> list[str]:
    """Lines for those that the Hub has no name for; a link where that is one licence, and has a page."""
    others = [name for name in licenses if hub_license(name) == "other"]
    if not others:
        return []
    several = [f"({name})" if " OR " in name else name for name in others]
    lines = [f"license_name: {scalar(' AND '.join(several if len(others) > 1 else others))}"]
    link = url_of(others[0]) if len(others) == 1 and " " not in others[0] else None
    # https://huggingface.co/docs/hub/repositories-licenses: how a licence that is not on the list is told
    return [*lines, f"license_link: {scalar(link)}"] if link and link.startswith("https://") else lines


def size_category(documents: int) -> str:
    return next((name for bound, name in _SIZES if documents < bound), "n>1T")


def yaml_list(key: str, values: Iterable[str]) -> list[str]:
    return [f"{key}:", *(f"- {scalar(value)}" for value in values)]


def scalar(value: str) -> str:
    """Plain where YAML cannot take it for anything else, quoted otherwise. JSON would not do:
    YAML does not join the two halves of a character that JSON writes as a pair."""
    plain = _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS and value.strip() == value
    return value if plain else f'"{"".join(map(_quoted, value))}"'


def _quoted(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else f"\\U{ord(character):08x}"
