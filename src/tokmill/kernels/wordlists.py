"""The words and phrases that the measures look for."""

from __future__ import annotations

# Gopher's eight: a text in English that has fewer than two of them is no prose.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

# A word of its own after a digit: 10km is 10 and km.
UNITS = (
    "km", "m", "dm", "cm", "mm", "ha", "nm", "yd", "in", "ft", "kg", "g", "mg", "t", "lb", "oz", "m/s", "km/h",
    "kmh", "mph", "hPa", "Pa", "mbar", "mb", "MB", "kb", "KB", "gb", "GB", "tb", "TB", "T", "G", "M", "K", "%",
)  # fmt: skip

# The full stop belongs to them and ends no sentence. A capital or a lone letter before it
# ("U.S.", "b.") needs no list.
ABBREVIATIONS = (
    "Adm.", "Ala.", "Apr.", "Ariz.", "Ark.", "Aug.", "Bros.", "Calif.", "Co.", "Colo.", "Conn.", "Corp.", "Dec.",
    "Del.", "Dr.", "E.g.", "Feb.", "Fla.", "Ga.", "Gen.", "Gov.", "I.e.", "Ill.", "Inc.", "Ind.", "Jan.", "Jr.",
    "Jul.", "Jun.", "Kan.", "Kans.", "Ky.", "La.", "Ltd.", "Mar.", "Mass.", "Md.", "Messrs.", "Mich.", "Minn.",
    "Miss.", "Mo.", "Mont.", "Mr.", "Mrs.", "Ms.", "Mt.", "Neb.", "Nebr.", "Nev.", "Nov.", "Oct.", "Okla.", "Ore.",
    "Pa.", "Ph.D.", "Prof.", "Rep.", "Rev.", "Sen.", "Sep.", "Sept.", "St.", "Tenn.", "Va.", "Wash.", "Wis.",
    "a.m.", "ak.", "co.", "e.g.", "i.e.", "p.m.", "v.s.", "vs.",
)  # fmt: skip

LOREM_IPSUM = ("lorem ipsum",)
JAVASCRIPT = ("javascript",)
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
URL_STARTS = ("http://", "https://")

# Lines around a text rather than of it. Only their share of all lines says something: see docs/measures.md.
BOILERPLATE = (
    "accept cookies",
    "all rights reserved",
    "back to top",
    "click here",
    "cookie policy",
    "cookie settings",
    "follow us on",
    "leave a comment",
    "log in",
    "navigation",
    "powered by",
    "privacy policy",
    "read more",
    "related articles",
    "related posts",
    "share this",
    "sign in",
    "sign up",
    "skip to content",
    "skip to main content",
    "subscribe to",
    "terms and conditions",
    "terms of service",
    "terms of use",
    "use cookies",
    "uses cookies",
)
