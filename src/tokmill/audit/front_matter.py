"""What the Hugging Face Hub reads of a dataset card: the YAML between its first two lines of dashes.

The words are the Hub's own. A licence that is not on its list is `other`, and is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokmill.audit.croissant import known_names, license_url
from tokmill.manifest import Json

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


def front_matter(facts: Json, builds: list[Json]) -> str:
    licenses, languages = known_names(facts, "license"), known_names(facts, "language")
    names = list(dict.fromkeys(hub_license(name) for name in licenses))
    others = [name for name in licenses if hub_license(name) == "other"]
    lines = ["---", f"pretty_name: {_scalar(facts['run']['name'])}"]
    lines += _yaml_list("license", names or ["unknown"])
    if others:
        # https://huggingface.co/docs/hub/repositories-licenses: how a licence that is not on the list is told
        lines += [
            f"license_name: {_scalar(' AND '.join(others))}",
            f"license_link: {_scalar(license_url(others[0]))}",
        ]
    if languages:
        lines += _yaml_list("language", languages)
        lines += _yaml_list("multilinguality", ["monolingual" if len(languages) == 1 else "multilingual"])
    lines += _yaml_list("size_categories", [_size_category(facts["totals"]["kept"])])
    lines += _yaml_list("task_categories", ["text-generation"])
    lines += _yaml_list("tags", ["tokenized", "tokmill"])
    lines += _configs(builds)
    return "\n".join([*lines, "---", ""])


def _configs(builds: list[Json]) -> list[str]:
    """Parquet builds can be loaded as they are."""
    told = []
    for build in builds:
        if build["format"] != "parquet":
            continue
        told += [f"- config_name: {_scalar(build['name'])}", "  data_files:"]
        for split in build["splits"]:
            name = {"valid": "validation"}.get(split["split"], split["split"])
            path = f"build/{build['name']}/{split['split']}/*.parquet"
            told += [f"  - split: {_scalar(name)}", f"    path: {_scalar(path)}"]
    return ["configs:", *told] if told else []


def _size_category(documents: int) -> str:
    return next((name for bound, name in _SIZES if documents < bound), "n>1T")


def _yaml_list(key: str, values: Iterable[str]) -> list[str]:
    return [f"{key}:", *(f"- {_scalar(value)}" for value in values)]


def _scalar(value: str) -> str:
    """Plain where YAML cannot take it for anything else, quoted otherwise. JSON would not do: YAML does not join
    the two halves of a character that JSON writes as a pair."""
    plain = _PLAIN.fullmatch(value) and value.lower() not in _YAML_WORDS and value.strip() == value
    return value if plain else f'"{"".join(map(_quoted, value))}"'


def _quoted(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else f"\\U{ord(character):08x}"
