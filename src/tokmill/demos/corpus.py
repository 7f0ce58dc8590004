"""Writes the demo's corpus and the recipe that mills it.

    write_corpus(directory / "corpus")   code.jsonl.zst  topics.parquet  problems.jsonl  paragraphs.txt
    write_recipe(directory)              recipe.yaml, whose paths begin with corpus/

`problems.jsonl` and `paragraphs.txt` are the same bytes everywhere. `code.jsonl.zst` and `topics.parquet` are
those of the Python that runs: another Python has other modules.

Made-up English prose and French-English pairs, the same bytes on every Python.

    sentence k of Draw(...)   =  a frame  ->  its slots filled with places, people, things and numbers
    pair of a frame, n, m     =  the frame in both languages, with two different nouns

Nobody should learn from it. It is there to be read, cleaned, compared,
split and packed where real text is not.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokmill.demos.problems import GOODS, PEOPLE, Draw, generate_problems
from tokmill.errors import InputError
from tokmill.storage.disk import ZstdCompressor, commit_bytes, frame_options, open_commit

_PLACES_WORDS = """
    mill harbour market orchard bridge library station workshop chapel quarry bakery garden lighthouse
    school ferry vineyard meadow courtyard theatre canal tannery forge dairy observatory cemetery railway
    museum barn cellar pier
"""
_PLACES = _PLACES_WORDS.split()
_QUALITIES_WORDS = """
    old narrow quiet crooked famous abandoned wooden painted cheerful crowded forgotten sunny damp modest
    handsome draughty busy steep remote tidy
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
    repaired measured painted counted visited described cleaned inherited rented abandoned guarded admired
    mapped restored photographed insured
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


PROBLEMS = 2_000
SEED = 42

# Other projects' packages, tests, a copy of the topics, what was generated on or for this machine.
_SKIPPED_FOLDERS = {
    *("__pycache__", "site-packages", "dist-packages", "_bundled"),
    *("test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data"),
}
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "sitecustomize", "usercustomize")

RECIPE = """\
# A recipe says everything that can change a byte of the result. How many workers run it, and where it
# writes, are options of the command: tokmill run recipe.yaml

name: demo          # the result goes to <out>/demo
seed: 42            # every random choice derives from this number and from the document it is about

# Where documents come from. Paths are relative to this file; the ending says how to read it.
sources:
  - name: stdlib
    domain: code                                # what a mixture weighs and a report groups by
    license: PSF-2.0                            # goes with each document all the way to its tokens
    files: corpus/code.jsonl.zst                # a glob works too: corpus/*.jsonl.zst
    fields: {text: content, id: path, license: license}   # our column: their column
  - name: topics
    domain: prose
    license: PSF-2.0
    files: corpus/topics.parquet
    fields: {text: text, id: topic}
  - name: problems
    domain: math
    license: Apache-2.0
    files: corpus/problems.jsonl
    fields: {id: id}
    template: "Problem: {question}\\n\\nSolution: {answer}"   # the text, put together from several fields
  - name: languages
    domain: multilingual
    license: Apache-2.0
    files: corpus/paragraphs.txt
    unit: paragraph                             # blank lines part the documents of a plain text file

# The text itself: composed Unicode, no NUL, newlines as \\n.
normalize: {unicode: NFC, nul: strip, newlines: lf}

# Measure, then decide. What is dropped stays in the ledger with the measured value and the threshold:
# here, a few modules that are all but empty. Try `tokmill why`.
filters:
  - {measure: chars, min: 40, reason: too_short}

# The first of equal documents stays, whichever source the others are in.
dedup: {exact: true, scope: global}

# A document's own hash decides, so that adding documents moves none from one side to the other.
split: {method: hash, valid_fraction: 0.05}

# Trained on these documents. {path: ..., sha256: ...} uses a tokenizer you already have.
tokenizer: {train: {model: byte_bpe, vocab_size: 4096}, eos: "<|endoftext|>"}

# Documents one after another, cut into rows of 512 tokens; the last, short row is left out.
pack: {layout: concat, length: 512, tail: drop}

# The same rows in as many formats as you like.
builds:
  - {name: rows, format: memmap}
  - {name: mega, format: megatron}
"""


def write_corpus(directory: Path) -> list[Path]:
    """Write the four files, as far as they are not there yet, and return their paths in the order of the
    recipe's sources."""
    directory = Path(directory)
    code, topics, problems, paragraphs = (
        directory / name for name in ("code.jsonl.zst", "topics.parquet", "problems.jsonl", "paragraphs.txt")
    )
    encoder = msgspec.json.Encoder()

    if not code.exists():
        compressor = ZstdCompressor(options=frame_options())
        with open_commit(code) as file:
            for module in read_modules(Path(sysconfig.get_paths()["stdlib"])):
                file.write(compressor.compress(encoder.encode(module) + b"\n"))
            file.write(compressor.flush())

    if not topics.exists():
        sink = pa.BufferOutputStream()
        pq.write_table(load_topics(), sink, compression="zstd")
        commit_bytes(topics, sink.getvalue())

    if not problems.exists():
        commit_bytes(problems, encoder.encode_lines(generate_problems(PROBLEMS, SEED)))

    if not paragraphs.exists():
        commit_bytes(paragraphs, files("tokmill.demos").joinpath("paragraphs.txt").read_bytes())
    return [code, topics, problems, paragraphs]


def write_recipe(directory: Path) -> Path:
    """`recipe.yaml`, for a directory whose `corpus/` was written by `write_corpus`."""
    path = Path(directory) / "recipe.yaml"
    commit_bytes(path, RECIPE.encode())
    return path


def read_modules(library: Path) -> Iterator[dict[str, str]]:
    """The modules of a standard library by path; one that is not UTF-8 is left out."""
    paths = []
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not _is_skipped(name)]
        paths += [Path(folder, name) for name in names if name.endswith(".py") and not _is_skipped(name)]
    if not paths:
        raise InputError(
            "this Python carries no sources of its standard library, which the demo mills",
            where=str(library),
            next="run the demo with a Python whose standard library is .py files (most are)",
        )
    for path in sorted(paths, key=os.fsencode):
        try:
            content = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        yield {"path": path.relative_to(library).as_posix(), "content": content, "license": "PSF-2.0"}


def _is_skipped(name: str) -> bool:
    return name.startswith(_SKIPPED_PREFIXES)


def load_topics() -> pa.Table:
    """The reference pages behind `help("topics")`."""
    try:
        from pydoc_data.topics import topics  # half a megabyte, and some distributions leave it out
    except ModuleNotFoundError:
        raise InputError(
            "this Python comes without pydoc_data.topics, which the demo mills",
            where=sysconfig.get_paths()["stdlib"],
            next="install your distribution's full Python standard library, or use another Python",
        ) from None
    names = sorted(topics)
    return pa.table({"topic": names, "text": [topics[name] for name in names]})
