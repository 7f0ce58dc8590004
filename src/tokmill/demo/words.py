"""The people and things that the word problems are about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Person:
    name: str
    she: str

    @property
    def She(self) -> str:  # noqa: N802  the capital is the point: it starts a sentence
        return self.she.capitalize()


_SHE = """
    Aiko Amara Anahit Aroha Ayşe Beatriz Chiara Dilnoza Ewa Fatou Freya Hana Ingrid Katalin Leila Linh Lucía
    Malia Mei Nadia Noor Olena Priya Rosa Siobhán Tala Thandiwe Wanjiru Yael Zainab
"""
_HE = """
    Arjun Bjørn Cillian Diego Eitan Emeka Gábor Hiroshi Idris João Kamau Keoni Kofi Lars Levan Luca Mateo
    Minjun Nikos Omar Piotr Rangi Rustam Sipho Taras Tariq Tenzin Tuan Wei Yusuf
"""
PEOPLE = [Person(name, "she") for name in _SHE.split()] + [Person(name, "he") for name in _HE.split()]

# Things that are counted, bought a few at a time, and packed.
_GOODS = """
    apples bells bookmarks bowls bracelets buttons candles chisels cups dumplings eggs envelopes figs
    kites lanterns lemons mangoes marbles mugs notebooks oranges pears pencils plums postcards seashells
    spoons stamps stickers
"""
GOODS = _GOODS.split()

FRUITS = [
    "apricots",
    "cherries",
    "chestnuts",
    "dates",
    "figs",
    "lychees",
    "olives",
    "peaches",
    "plums",
    "walnuts",
]

# Large enough to be sold by the piece.
MELONS = ["cabbages", "coconuts", "mangoes", "melons", "papayas", "pineapples", "pomegranates", "pumpkins"]

# One at a time, dearer: the singular, ready for an article "a".
WARES = [
    "backpack",
    "blanket",
    "chair",
    "coat",
    "drum",
    "guitar",
    "kettle",
    "lamp",
    "rug",
    "tent",
    "wheelbarrow",
]

CURRENCIES = ["crowns", "dirhams", "dollars", "euros", "francs", "pesos", "pounds", "rupees"]

VEHICLES = ["A camper van", "A coach", "A delivery van", "A freight train", "A night train", "A truck"]

# (two legs, four legs)
ANIMALS = [
    ("hens", "goats"),
    ("ducks", "rabbits"),
    ("geese", "sheep"),
    ("turkeys", "cows"),
    ("ostriches", "llamas"),
]

PLACES = ["an avenue", "a canal", "a country road", "a promenade", "a village street"]
