"""Made-up English prose and French-English pairs, the same bytes on every Python.

    sentence k of Draw(...)   =  a frame  ->  its slots filled with places, people, things and numbers
    pair of a frame, n, m     =  the frame in both languages, with two different nouns

Nobody should learn from it. It is there to be read, cleaned, compared, split and packed where real text is not.
"""

from __future__ import annotations

from tokmill.demo.problems import GOODS, PEOPLE, Draw

_PLACES_WORDS = """
    mill harbour market orchard bridge library station workshop chapel quarry bakery garden lighthouse school ferry
    vineyard meadow courtyard theatre canal tannery forge dairy observatory cemetery railway museum barn cellar pier
"""
_PLACES = _PLACES_WORDS.split()
_QUALITIES_WORDS = """
    old narrow quiet crooked famous abandoned wooden painted cheerful crowded forgotten sunny damp modest handsome
    draughty busy steep remote tidy
"""
_QUALITIES = _QUALITIES_WORDS.split()
_SEASONS = [
    "spring",
    "summer",
    "autumn",
    "winter",
    "the harvest",
    "the first frost",
    "the long rains",
    "Lent",
]
_DEEDS_WORDS = """
    repaired measured painted counted visited described cleaned inherited rented abandoned guarded admired mapped
    restored photographed insured
"""
_DEEDS = _DEEDS_WORDS.split()
_WEATHER = [
    "a storm",
    "a week of fog",
    "the flood",
    "a dry month",
    "heavy snow",
    "the great wind",
    "a late thaw",
]

# The order is part of the bytes: append.
_FRAMES = (
    "In {season} the {quality} {place} is open to anyone who brings {goods}.",
    "{person} {deed} the {place} in {year} and wrote down what it had cost.",
    "The {place} stands behind the {other}, which is why {weather} never reached it.",
    "Of {number} visitors in {year}, most had come for the {goods} and stayed for the {place}.",
    "After {weather} the people of the {place} asked {person} what should become of the {other}.",
    "Nobody has {deed} the {quality} {place} since {weather} in {year}.",
    "{person} believes that a {place} without {goods} is only a {quality} {other}.",
    "It takes {number} days to walk from the {place} to the {quality} {other}, or one to sail.",
    "Whoever {deed} the {place} before {year} did so without a plan and with very few {goods}.",
    "The {other} was {deed} first, then the {place}, and in {season} the road between them.",
    "There are {number} {goods} in the {place}, and {person} can tell you where each of them was made.",
    "For {number} years the {quality} {place} was the only one that had its own {other}.",
    "When {weather} was over, {person} found {goods} as far away as the {quality} {place}.",
    "Most accounts of the {place} repeat what {person} said about the {other} in {year}.",
    "The price of {goods} fell in {season}, and with it the rent of the {quality} {place}.",
    "{person} would rather have {deed} the {other} than the {place}, but was never asked.",
)

_NOUNS = (
    *(("mill", "moulin"), ("garden", "jardin"), ("bridge", "pont"), ("boat", "bateau"), ("dog", "chien")),
    *(("book", "livre"), ("baker", "boulanger"), ("path", "sentier"), ("castle", "château"), ("lake", "lac")),
    *(
        ("market", "marché"),
        ("neighbour", "voisin"),
        ("doctor", "médecin"),
        ("basket", "panier"),
        ("train", "train"),
    ),
    *(
        ("museum", "musée"),
        ("knife", "couteau"),
        ("roof", "toit"),
        ("field", "champ"),
        ("gardener", "jardinier"),
    ),
)
_PAIRS = (
    ("The {n} is near the {m}.", "Le {n} est près du {m}."),
    ("I can see the {n} behind the {m}.", "Je vois le {n} derrière le {m}."),
    ("Without the {n}, nobody would find the {m}.", "Sans le {n}, personne ne trouverait le {m}."),
    ("Is the {n} older than the {m}?", "Le {n} est-il plus vieux que le {m} ?"),
    ("She drew the {n} first and then the {m}.", "Elle a dessiné le {n} d'abord, puis le {m}."),
    ("We will talk about the {n} when the {m} is there.", "Nous parlerons du {n} quand le {m} sera là."),
    ("The {n} belongs to nobody, and the {m} does too.", "Le {n} n'est à personne, et le {m} non plus."),
    ("Take the {n} with you, but leave me the {m}!", "Prends le {n} avec toi, mais laisse-moi le {m} !"),
)


def write_sentence(draw: Draw) -> str:
    place, other = draw.pick_two(_PLACES)
    sentence = draw.pick(_FRAMES).format(
        place=place,
        other=other,
        quality=draw.pick(_QUALITIES),
        season=draw.pick(_SEASONS),
        deed=draw.pick(_DEEDS),
        weather=draw.pick(_WEATHER),
        person=draw.pick(PEOPLE).name,
        goods=draw.pick(GOODS),
        number=draw.between(2, 90),
        year=draw.between(1740, 1990),
    )
    return sentence[0].upper() + sentence[1:]


def write_passage(draw: Draw, paragraphs: int) -> str:
    """Paragraphs of three to six sentences, with a blank line between."""
    return "\n\n".join(
        " ".join(write_sentence(draw) for _ in range(draw.between(3, 6))) for _ in range(paragraphs)
    )


def generate_pairs(count: int, seed: int) -> list[dict[str, str]]:
    """`en` and `fr`, no pair twice; there are 3,040."""
    found: dict[tuple[int, int, int], None] = {}
    draw = Draw("pairs", seed)
    most = len(_PAIRS) * len(_NOUNS) * (len(_NOUNS) - 1)
    while len(found) < min(count, most):
        first, second = draw.pick_two(range(len(_NOUNS)))
        found[draw.below(len(_PAIRS)), first, second] = None
    pairs = []
    for frame, first, second in found:
        english, french = _PAIRS[frame]
        pairs.append(
            {
                "en": english.format(n=_NOUNS[first][0], m=_NOUNS[second][0]),
                "fr": french.format(n=_NOUNS[first][1], m=_NOUNS[second][1]),
            }
        )
    return pairs
