"""What must hold of any run, and needs no second mill to be seen.

    run ─> ends well, or with an error that says what, where and what next
         ├─ verify is green · nothing is left to do · every figure equals a recount (figures.py)
         └─ on a random part: 3 workers · killed and resumed · edited into · flipped bytes · whatif · forget

Each oracle raises `Fault` with a kind, by which faults are told apart and shrunk.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers

import tokmill
from forked import fork_workers, run_forked
from random_recipes import figures, killing
from random_recipes.recipes import Case
from tokmill.errors import InputError, MissingExtra, RecipeError, TokenizerError, TokmillError

USERS_OWN = (
    RecipeError,
    InputError,
    TokenizerError,
    MissingExtra,
)  # what a recipe or its files can be at fault for
HANGS_AFTER_SECONDS = 90
# What lies beside a run is made from it, and proved by nobody.
UNPROVED = (
    "report.html",
    "report.json",
    "DATACARD.md",
    "ATTRIBUTION.md",
    "review.json",
    "review.md",
    "journal.json",
    "croissant.json",
)

# How often each of the dear oracles is asked; a takedown changes the run, and comes last.
CHANCES = {
    "verbs": 0.5,
    "whatif": 0.4,
    "edited": 0.5,
    "workers": 0.15,
    "killed": 0.25,
    "flipped": 0.25,
    "forgotten": 0.4,
}


class Fault(Exception):
    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what


class Refused(Exception):
    """The recipe, or what it reads, is refused in words."""


@contextlib.contextmanager
def guarded(verb: str, may_refuse: bool = False) -> Iterator[None]:
    """An error of the user's own is `Refused`, where that may be; everything else is a fault."""

    def hang(*_: Any) -> None:
        raise Fault(f"{verb} hangs", f"for {HANGS_AFTER_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, hang)
    signal.alarm(HANGS_AFTER_SECONDS)
    try:
        yield
    except (Fault, Refused):
        raise
    except TokmillError as error:
        place = _place(error)
        if not error.what or not error.next:
            raise Fault(f"{verb}: an error without advice, {place}", repr(error)) from error
        if may_refuse and isinstance(error, USERS_OWN):
            raise Refused(f"{type(error).__name__} in {place}: {error.what}") from error
        raise Fault(f"{verb}: {type(error).__name__}, {place}", str(error)) from error
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        raise Fault(f"{verb}: {type(error).__name__}, {_place(error)}", text[-3000:]) from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _place(error: BaseException) -> str:
    """The innermost function of ours."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/tokmill/" in frame.filename]
    return f"{Path(frames[-1].filename).stem}.{frames[-1].name}" if frames else "outside"


def run(recipe: Path, out: Path, **options: Any) -> tokmill.pipeline.run.RunResult:
    with guarded("run", may_refuse=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.redirect_stderr(io.StringIO()):
            return tokmill.run(recipe, out, workers=options.pop("workers", 1), **options)


def proved(out: Path, kind: str) -> str:
    """The digest of a run in which all is well."""
    with guarded(f"verify ({kind})"):
        found = tokmill.verify(out)
    if found.problems:
        when = f" ({kind})" if kind.startswith(("forgotten", "flipped")) else ""
        raise Fault(f"verify{when}: {_gist(found.problems)}", f"{kind}: {found.problems}"[:2000])
    return str(found.digest)


def _gist(problems: Any) -> str:
    text = str(problems[0].as_json() if hasattr(problems[0], "as_json") else problems[0])
    return "".join(character for character in text.split(":", 1)[-1] if not character.isdigit())[:80]


def agree(kind: str, digest: str, out: Path, fresh: Path, expected: str) -> None:
    """The same content, and the same said of it in every manifest."""
    if differing := _differing(out, fresh):
        # what ties a manifest to its chain differs all along it: told is where the content begins to
        first = next((one for one in differing if "identity" in one), differing[0])
        step, keys = first.split("/")[0], first.partition("(")[2].partition(")")[0]
        kind += (
            f": another digest, first in {step}" if digest != expected else f": other {keys} in a manifest"
        )
        raise Fault(kind, f"{digest}, {expected}; {differing[:9]}")
    if digest != expected:
        raise Fault(f"{kind}: another digest and the same manifests", f"{digest} is not {expected}")


def _differing(out: Path, fresh: Path) -> list[str]:
    """Manifests that are not the same, and where; those that were written first come first."""
    found = []
    for path in sorted(fresh.rglob("manifest.json"), key=lambda path: path.stat().st_mtime_ns):
        name = path.relative_to(fresh).as_posix()
        one, other = (_of_content(p) for p in (path, out / name))
        if keys := [key for key in one if one[key] != other.get(key)]:
            values = (str(side.get(keys[0]))[:300] for side in (other, one))
            found.append(f"{name} ({', '.join(keys)}): {' is not '.join(values)}")
    return found


def _of_content(manifest: Path) -> dict[str, Any]:
    """Without bytes that tell the time or a version of a library, and what is made of them."""
    body = json.loads(manifest.read_bytes()) if manifest.is_file() else {}
    files = [(entry["path"], entry["rows"], entry["content_sha256"]) for entry in body.get("files", ())]
    return {key: value for key, value in body.items() if key not in ("digest", "seal", "environment")} | {
        "files": sorted(files)
    }


def decoder_of(directory: Path, section: dict[str, Any]) -> Callable[[list[int]], str] | None:
    """None: decoding gives back less than the text, or the run has made the tokenizer itself."""
    path = section.get("path", "")
    if path == "models/bpe.json" or path == "tok/":
        file = directory / (path if path.endswith(".json") else "tok/tokenizer.json")
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False))
    if path == "models/ranks.tiktoken":
        pieces = [base64.b64decode(line.split()[0]) for line in (directory / path).read_bytes().splitlines()]
        return lambda ids: b"".join(pieces[id] for id in ids).decode()
    return (lambda ids: bytes(ids).decode()) if "plugin" in section else None


class Trial:
    """One case, in a directory of its own."""

    def __init__(self, case: Case, directory: Path, dear: float = 1.0) -> None:
        self.case, self.directory, self.dear = case, directory, dear
        self.recipe = case.write(directory)
        self.out = directory / "out"
        self.did: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def go(self) -> None:
        """Every oracle is asked, whatever the others found; without a run there is nothing to ask."""
        before = killing.count
        run(self.recipe, self.out)
        self.changes = killing.count - before
        self.digest = str(tokmill.verify(self.out).digest)
        self.chats = {source["name"]: "chat" in source for source in self.case.recipe["sources"]}
        self.ask(lambda: proved(self.out, "fresh"))
        self.ask(lambda: self.recount("fresh", self.out))
        self.counted = figures.Run(self.out, self.chats)
        self.ask(self.tokens)
        self.ask(lambda: self.nothing_to_do(self.out, self.digest, "fresh"))
        for name, chance in CHANCES.items():
            self.rng = random.Random(f"{self.case.seed} {name}")
            if self.rng.random() < chance * self.dear:
                self.did[name] += 1
                self.ask(getattr(self, name))

    def tokens(self) -> None:
        """By the library that defines the tokenizer, ids are the text again, and what ends it."""
        section = self.case.recipe.get("tokenizer", {})
        decode = decoder_of(self.directory, section)
        fim = self.case.recipe["fim"].get("domains", ["code"]) if "fim" in self.case.recipe else ()
        plain = {
            source["name"]
            for source in self.case.recipe["sources"]
            if "chat" not in source and source.get("domain", "default") not in fim
        }
        for doc in self.counted.docs if decode is not None else ():
            if doc.ids is not None and doc.source in plain:
                text = decode(doc.ids[1 if "bos" in section else 0 : -1].tolist())
                if text != doc.text:
                    raise Fault(
                        "tokens: they are another text",
                        f"{doc.source}/{doc.doc_id}: {text[:300]!r}, not {doc.text[:300]!r}",
                    )

    def ask(self, oracle: Callable[[], object]) -> None:
        try:
            oracle()
        except Fault as fault:
            self.faults.append(fault)

    def recount(self, kind: str, out: Path) -> figures.Run:
        try:
            counted = figures.Run(out, self.chats)
            counted.check_manifests()
            counted.check_builds()
        except Exception as error:
            raise Fault(
                f"recount ({kind}): {type(error).__name__}",
                "".join(traceback.format_exception(error))[-1500:],
            ) from error
        if counted.wrong:
            gist = "".join(c for c in counted.wrong[0].split(":")[0] if not c.isdigit())
            raise Fault(f"figures ({kind}): {gist}", "\n".join(counted.wrong))
        return counted

    def nothing_to_do(self, out: Path, digest: str, kind: str) -> None:
        with guarded(f"plan ({kind})"):
            stale = [one for one in tokmill.plan(self.recipe, out).as_json()["steps"] if not one["current"]]
        if stale:
            raise Fault(
                f"plan ({kind}): something is to do in {stale[0]['step'].split('/')[0]}", str(stale)[:2000]
            )
        again = run(self.recipe, out)
        if again.ran:
            raise Fault(f"run ({kind}): ran again", str(again.ran))
        if proved(out, f"{kind}, again") != digest:
            raise Fault(f"run ({kind}): another digest when nothing was to do", digest)

    # --- what other verbs say ---

    def verbs(self) -> None:
        out = self.out
        self.counted.wrong.clear()  # it was told already
        with guarded("status"):
            status = tokmill.status(out).as_json()
        undone = [
            one for one in status["steps"] if one["state"] != "done" or one["shards_done"] != one["shards"]
        ]
        if status["state"] != "finished" or undone or status["steps_done"] != len(self.counted.manifests):
            raise Fault(
                "status: a finished run is not finished", f"{status['state']} {undone} {status['steps_done']}"
            )
        with guarded("report"):
            tokmill.report(out, cards=self.rng.random() < 0.3)
        self.counted.check_report(json.loads((out / "report.json").read_bytes()))
        for doc in self.rng.sample(self.counted.docs, min(3, len(self.counted.docs))):
            with guarded("why"):
                why = tokmill.why(out, doc.doc_id).as_json()
            self.counted.check_why(why, doc)
        self.raise_wrong("verbs")
        lost = Counter(doc.gone[1] for doc in self.counted.docs if doc.gone)
        for reason in self.rng.sample(sorted(lost), min(2, len(lost))):
            with guarded("why --reason"):
                counts = tokmill.why(out, reason=reason).as_json()["counts"]
            said = sum(one["docs"] for one in counts if one["reason"] == reason and one["verdict"] != "edit")
            if said < lost[reason]:  # records that never became documents may have it too
                raise Fault("why --reason: another count", f"{reason}: says {said}, counted {lost[reason]}")
        with guarded("review"):
            review = tokmill.review(out, no_verify=True).as_json()
        by_severity = Counter(one["severity"] for one in review["findings"])
        if any(review["counts"][name] != by_severity[name] for name in review["counts"]):
            raise Fault("review: counts are not those of its findings", str(review["counts"]))
        self.seen()
        if proved(out, "after reports") != self.digest:
            raise Fault("report: the run is another", self.digest)

    def raise_wrong(self, kind: str) -> None:
        if self.counted.wrong:
            gist = "".join(c for c in self.counted.wrong[0].split(":")[0].split("'")[0] if not c.isdigit())
            raise Fault(f"figures ({kind}): {gist}", "\n".join(self.counted.wrong))

    def seen(self) -> None:
        for step, _ in self.counted.builds():
            index = self.out / step / "train" / "index.jsonl.zst"
            if not index.is_file() or not (rows := figures.read_index(index)):
                continue
            tokens = Counter[str]()
            for row in rows:
                for source, _, start, end, _ in row:
                    tokens[source] += end - start
            size = self.rng.randint(1, 3)
            with guarded("seen"):
                seen = tokmill.seen([self.out / step], step=-(-len(rows) // size), batch_size=size).as_json()
            said = {one["name"]: one["tokens"] for one in seen["groups"] if one["tokens"]}
            if said != {name: count for name, count in tokens.items() if count}:
                raise Fault("seen: other tokens of sources", f"{step}: says {said}, counted {dict(tokens)}")
            total = seen["total"]
            if total["tokens"] != sum(tokens.values()) or (
                len(rows) % size == 0 and (total["new"] != total["tokens"] or total["unseen"])
            ):
                raise Fault("seen: an epoch is not all", f"{step}: {total}, {len(rows)} rows by {size}")

    def whatif(self) -> None:
        with guarded("report"):
            tokmill.report(self.out)
        report = json.loads((self.out / "report.json").read_bytes())
        bounds = [bound for drop in report["drops"] if drop["stage"] == "clean" for bound in drop["bounds"]]
        often = Counter((bound["source"], bound["rule"]) for bound in bounds)
        bounds = [
            bound for bound in bounds if often[bound["source"], bound["rule"]] == 1
        ]  # one name may be two rules
        for bound in self.rng.sample(bounds, min(3, len(bounds))):
            name = f"sources.{bound['source']}.{bound['rule']}"
            with guarded("whatif"):
                told = tokmill.whatif(self.out, [f"{name}={bound['threshold']}"]).as_json()
            if told["changes"] or told["kept"]["now"] != told["kept"]["then"]:
                raise Fault(
                    "whatif: the threshold of the run changes something",
                    f"{name}={bound['threshold']}: {told}",
                )
            if told["kept"]["now"] != self.counted.kept_after("clean"):
                raise Fault("whatif: kept now", f"{told['kept']}, counted {self.counted.kept_after('clean')}")
        self._other_threshold()

    def _other_threshold(self) -> None:
        """Of a rule that stands alone: what whatif tells is what a run with it does."""
        filters = self.case.recipe.get("filters", [])
        own = [
            f
            for section in (
                *self.case.recipe.get("domains", {}).values(),
                *(s.get("clean") or {} for s in self.case.recipe["sources"]),
            )
            for f in section.get("filters", [])
        ]
        rules = [f["measure"] for f in [*filters, *own] if isinstance(f, dict) and "measure" in f]
        for index, one in enumerate(filters):
            if (
                own
                or not isinstance(one, dict)
                or "measure" not in one
                or rules.count(one["measure"]) > 1
                or any(isinstance(f, str) or "pack" in f for f in filters)
            ):
                continue
            side = "min" if "min" in one else "max"
            bound = self.rng.choice([0.5, 2]) * float(one[side])
            measure = one["measure"].removeprefix("hooks.py:")
            if measure.startswith("score."):
                continue
            with guarded("whatif"):
                told = tokmill.whatif(self.out, [f"{measure}.{side}={bound}"]).as_json()
            other = self.directory / "other"
            with contextlib.suppress(Refused):
                result = run(self.recipe, other, set={f"filters[{index}].{side}": bound}, until="clean")
                kept = sum(
                    step.manifest.counts["kept"]
                    for name, step in result.artifacts.items()
                    if name.startswith("clean/")
                )
                if kept != told["kept"]["then"]:
                    raise Fault(
                        "whatif: a run with that threshold keeps others",
                        f"{one['measure']}.{side}={bound}: {told['kept']}, run {kept}",
                    )
            shutil.rmtree(other, ignore_errors=True)

    # --- the same by other ways ---

    def workers(self) -> None:
        other = self.directory / "three"
        with fork_workers():
            run(self.recipe, other, workers=3)
        agree("3 workers", proved(other, "3 workers"), other, self.out, self.digest)

    def killed(self) -> None:
        other = self.directory / "killed"
        for _ in range(self.rng.randint(1, 2)):
            at = self.rng.randint(1, max(self.changes, 1))
            environment = {**os.environ, "TOKMILL_WORKERS": "1"}
            code = "from random_recipes.killing import main; main()"
            ended = run_forked([str(self.recipe), str(other), str(at)], environment, self.directory, code)
            if ended.returncode not in (-9, 0):
                raise Fault("killed: the run ended otherwise", f"{ended.returncode} {ended.stderr[-1500:]}")
        run(self.recipe, other)
        agree("killed", proved(other, "killed"), other, self.out, self.digest)

    def edited(self) -> None:
        other = self.directory / "edited"
        with contextlib.suppress(Refused):
            run(self.directory / "neighbour.yaml", other)
        run(self.recipe, other)
        agree("edited", proved(other, "edited"), other, self.out, self.digest)
        with guarded("diff"):
            tokmill.diff(self.out, other)
        with guarded("gc"):
            tokmill.gc(other, delete=True)
        agree("gc", proved(other, "gc"), other, self.out, self.digest)

    def flipped(self) -> None:
        self._flip(self.out, self.digest, "flipped")

    def _flip(self, out: Path, digest: str, kind: str) -> None:
        files = [
            path
            for path in sorted(out.rglob("*"))
            if path.is_file() and path.stat().st_size and path.name not in UNPROVED
        ]
        path = self.rng.choice(files)
        data = bytearray(path.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(data)
        name = path.relative_to(out).as_posix()
        with guarded(f"verify ({kind})"):
            problems = tokmill.verify(out).problems
        if not problems:
            raise Fault(f"{kind}: verify does not find it", name)
        run(self.recipe, out, verify=True)
        mended = proved(out, f"{kind}, mended {Path(name).name.split('-')[0]}")
        if mended != digest:
            raise Fault(f"{kind}: another digest when mended", f"{name}: {mended} is not {digest}")

    # --- takedowns ---

    def forgotten(self) -> None:
        out, docs = self.out, self.counted.docs
        if not docs:
            return
        with contextlib.suppress(Refused):
            chosen, selection = self._choose(docs)
            names = {(doc.source, doc.doc_id) for doc in chosen}
            chosen = [doc for doc in docs if (doc.source, doc.doc_id) in names]
            needles = self._needles(docs, chosen)
            with guarded("forget --dry-run", may_refuse=True):
                told = tokmill.forget(
                    out, **selection, dry_run=True, workers=1, base=self.directory
                ).as_json()["affected"]
            if told["documents"] != len(chosen):
                raise Fault(
                    "forget: another number of documents",
                    f"{selection}: says {told['documents']}, counted {len(chosen)}",
                )
            with guarded("forget", may_refuse=True):
                tokmill.forget(out, **selection, workers=1, base=self.directory)
            digest = proved(out, "forgotten")
            self._none_left(needles)
            counted = self.recount("forgotten", out)
            if back := names & {(doc.source, doc.doc_id) for doc in counted.docs}:
                raise Fault("forget: a document is still there", str(back))
            self.nothing_to_do(out, digest, "forgotten")
            self.counted, self.digest = counted, digest
            self.verbs()
            if self.rng.random() < 0.3:
                self._flip(out, digest, "forgotten, flipped")
                self._none_left(needles)

    def _choose(self, docs: list[figures.Doc]) -> tuple[list[figures.Doc], dict[str, Any]]:
        kind, licenses = self.rng.random(), sorted({doc.license for doc in docs if doc.license})
        if kind < 0.15:
            source = self.rng.choice(docs).source
            return [doc for doc in docs if doc.source == source], {"source": source}
        if kind < 0.3 and licenses:
            license = self.rng.choice(licenses)
            return [doc for doc in docs if doc.license == license], {"license": license}
        chosen = self.rng.sample(docs, min(self.rng.randint(1, 3), len(docs)))
        return chosen, {"doc_ids": [(doc.source, doc.doc_id) for doc in chosen]}

    def _needles(self, docs: list[figures.Doc], chosen: list[figures.Doc]) -> list[tuple[str, list[bytes]]]:
        """What is to be nowhere: pieces of texts, ids that say something, tokens."""
        names = {(doc.source, doc.doc_id) for doc in chosen}
        rest = [doc for doc in docs if (doc.source, doc.doc_id) not in names]
        others = "\0".join(
            [self.recipe.read_text(), *(text for doc in rest for text in (doc.received, doc.text))]
        )
        other_ids = b"".join(
            figures.np.asarray(doc.ids).astype("<i4").tobytes() for doc in rest if doc.ids is not None
        )
        of_rest = "\n".join(
            [json.dumps(self.case.recipe), *(doc.doc_id for doc in rest), *(doc.received for doc in rest)]
        )
        found: list[tuple[str, list[bytes]]] = []
        for doc in chosen:
            # around what was redacted, examples of other documents may say the same
            is_redacted = any(constant in doc.text for constant in REDACTED)
            texts = [doc.received] if is_redacted else [doc.received, doc.text]
            pieces = figures.own_pieces(texts, others)
            found += [
                ("text", [piece.encode("utf-8", "surrogatepass"), json.dumps(piece)[1:-1].encode()])
                for piece in pieces
            ]
            # a record of another source that has the id is another document
            elsewhere = (
                path for path in self.out.glob("ingest/*/ledger-0*.parquet") if path.parent.name != doc.source
            )
            others_have = any(
                doc.doc_id in figures.pq.read_table(path)["doc_id"].to_pylist() for path in elsewhere
            )
            if len(doc.doc_id) > 7 and doc.doc_id not in of_rest and not others_have:
                found.append(("id", [doc.doc_id.encode("utf-8", "surrogatepass")]))
            # of a document that was dropped nobody knows the ids, and a copy comes back with them
            come_back = any(other.ids is None and other.gone != ("clean", "empty") for other in rest)
            if not come_back and (piece := figures.own_ids(doc, other_ids)):
                ids = figures.np.frombuffer(piece, "<i4")
                found.append(
                    ("tokens", [piece, *([ids.astype("<u2").tobytes()] if ids.max() < 1 << 16 else [])])
                )
        return found

    def _none_left(self, needles: list[tuple[str, list[bytes]]]) -> None:
        beside = [
            path
            for path in self.directory.iterdir()
            if path.name.startswith((".out", "out")) and path.is_dir()
        ]
        for place in beside:
            for name, data in figures.contents(place):
                for kind, spellings in needles:
                    if found := next(
                        (one for one in spellings if _stands_in(one, data, whole=kind == "id")), None
                    ):
                        step = "/".join(
                            part.split("-")[0] for part in (name.split("/")[0], name.split("/")[-1])
                        )
                        raise Fault(f"forget: its {kind} is in {step}", f"{place.name}/{name}: {found!r}")


REDACTED = ("REDACTED_", "email@example.com", "192.0.2.1", "2001:db8::8")


def _stands_in(spelling: bytes, data: bytes, *, whole: bool) -> bool:
    """`whole`: not as a part of a longer id, or of zeros in a digest."""
    if not whole:
        return spelling in data and set(spelling) != set(b"0")
    return re.search(rb"(?<![0-9A-Za-z])" + re.escape(spelling) + rb"(?![0-9A-Za-z])", data) is not None


def try_case(case: Case, directory: Path, dear: float = 1.0) -> Trial:
    """What was done with it, and the faults; raises `Refused`."""
    killing.watch()
    shutil.rmtree(directory, ignore_errors=True)
    trial = Trial(case, directory, dear)
    try:
        trial.go()
    except Fault as fault:
        trial.faults.append(fault)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return trial
