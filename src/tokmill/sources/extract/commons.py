"""Creative Commons licences by the addresses of their deeds, as SPDX identifiers.

    //creativecommons.org/licenses/by-sa/4.0/deed.de        CC-BY-SA-4.0
    http://www.creativecommons.org/licenses/by-nd/3.0/de/   CC-BY-ND-3.0-DE
    https://creativecommons.org/licenses/by/3.0/at/         CC-BY-3.0-AT
    https://creativecommons.org/licenses/by/2.5/se/         LicenseRef-CC-BY-2.5-SE       not in the SPDX list
    https://creativecommons.org/licenses/by-sa/             LicenseRef-CC-BY-SA           no version is named
    https://creativecommons.org/publicdomain/zero/1.0/      CC0-1.0

`tokmill.clean.licenses` names them the same way, with every other licence there is.
"""

from __future__ import annotations

import re

MAX_CHARS = 200

_DEED = re.compile(
    r"(?:https?:)?(?://)?(?:www\.|(?-i:[a-z]{2})\.)?creativecommons\.org/"
    r"(?:licenses/(?P<parts>by(?:-(?:nc|nd|sa)){0,2})(?:/(?P<version>[1-4]\.[0-5])(?:/(?P<port>[a-z]{2}|igo|scotland))?)?"
    r"|publicdomain/(?P<public>zero|mark)/1\.0)"
    r"(?:/?|/(?:deed|legalcode)[a-z._-]*/?)(?:[?#].*)?",
    re.IGNORECASE | re.DOTALL,
)
_ORDER = ("nc", "nd", "sa")
# Version 2.1 was only ever ported; 4.0 never was.
_VERSIONS = frozenset(["1.0", "2.0", "2.5", "3.0", "4.0"])
_PORTED_NAMES = """
    BY-2.5-AU BY-3.0-AT BY-3.0-AU BY-3.0-DE BY-3.0-IGO BY-3.0-NL BY-3.0-US BY-NC-3.0-DE BY-NC-ND-3.0-DE
    BY-NC-ND-3.0-IGO BY-NC-SA-2.0-DE BY-NC-SA-2.0-FR BY-NC-SA-2.0-UK BY-NC-SA-3.0-DE BY-NC-SA-3.0-IGO
    BY-ND-3.0-DE BY-SA-2.0-UK BY-SA-2.1-JP BY-SA-3.0-AT BY-SA-3.0-DE BY-SA-3.0-IGO
"""
_PORTED = frozenset(_PORTED_NAMES.split())
_PUBLIC = {"zero": "CC0-1.0", "mark": "CC-PDM-1.0"}


def license_of(address: str) -> str | None:
    match = _DEED.fullmatch(address.strip()) if len(address) <= MAX_CHARS else None
    if match is None:
        return None
    if match["public"]:
        return _PUBLIC[match["public"].lower()]
    elements = match["parts"].lower().split("-")[1:]
    if len(set(elements)) < len(elements) or {"nd", "sa"} <= set(elements):
        return None
    name = "-".join(["BY", *(element.upper() for element in _ORDER if element in elements)])
    version, port = match["version"], (match["port"] or "").upper()
    if not version:
        return f"LicenseRef-CC-{name}"
    if port in ("", "EN"):  # a language, and no country
        return f"CC-{name}-{version}" if version in _VERSIONS else None
    ported = f"{name}-{version}-{port}"
    if ported in _PORTED:
        return f"CC-{ported}"
    return f"LicenseRef-CC-{ported}" if version in _VERSIONS and version != "4.0" else None
