"""How quick the explorer is on a large run: ten million documents in 1,700 shards.

    python bench/explore.py [--documents 10000000] [--shards 1700] [--keep DIR] [--rounds 5] [--json FILE]

The run is made, not milled (made_run.py), with measures, four rules, drops of every kind, tokens and builds.
The explorer is a process of its own, and is asked over its socket as a browser asks: once for the first look,
then for the rounds, each time for something else (another bound, another range, another document). A figure
is the median of the rounds, and the most of them; memory is the peak of the whole process at the end.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import statistics
import subprocess
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from command import command, environment
from made_run import Corpus, main_of
from tokmill.artifacts.manifest import FileEntry, Json, config_of
from tokmill.artifacts.upstream import write_shard_table
from tokmill.clean.edits import NormalizeOptions
from tokmill.clean.examine import CleanOptions
from tokmill.clean.rules import CompiledFilters, Rule
from tokmill.schema import MARKS, ledger_table

RULES = (
    Rule("words.min", "words", "min", 50, "too_few_words"),
    Rule("digit_share.max", "digit_share", "max", 0.2, "mostly_digits"),
    Rule("mean_word_chars.min", "mean_word_chars", "min", 3.0, "short_words"),
    Rule("line_share.max", "line_share", "max", 0.95, "repeated_lines"),
)


class Measured(Corpus):
    """Every document is measured, as a skewed corpus would be; who breaks a rule is dropped."""

    def __init__(self, directory: Path, documents: int, shards: int) -> None:
        super().__init__(directory, documents, shards)
        options = CleanOptions(
            source="web",
            normalize=NormalizeOptions(unicode="none", nul="keep", newlines="keep"),
            license=None,
            language=None,
            sieve=CompiledFilters(rules=RULES),
            redact=(),
        )
        self.cleaning = config_of(options)

    def _cleaned(
        self, number: int, directory: str, key: str, ids: Any, marks: Any
    ) -> tuple[list[FileEntry], NDArray[np.bool_]]:
        chance, size = np.random.default_rng(number), marks.num_rows
        values = {
            "words": np.maximum(chance.lognormal(5.5, 1.2, size), 1).astype(np.int64),
            "digit_share": chance.beta(1, 20, size),
            "mean_word_chars": chance.normal(4.7, 0.6, size),
            "line_share": chance.beta(2, 8, size),
        }
        first = np.full(size, len(RULES))
        for place in range(len(RULES) - 1, -1, -1):
            first[RULES[place].breaks(values[RULES[place].column])] = place
        is_out = first < len(RULES)
        languages = np.array(["en", "de", "fr", "es"])[chance.integers(0, 4, size)]
        columns = [~is_out, values["words"] * 6, values["words"] * 6]
        hashes = [chance.integers(1, 1 << 62, size).astype(np.uint64) for _ in range(2)]
        licenses = pa.nulls(size, pa.string())
        table = pa.table([*columns, *hashes, pa.array(languages), licenses], schema=MARKS)
        at = np.flatnonzero(is_out)
        ledger = ledger_table(
            {
                "shard": f"web/{key}",
                "row": at,
                "source": "web",
                "doc_id": ids.take(pa.array(at)),
                "stage": "clean",
                "verdict": "drop",
                "reason": [RULES[place].reason for place in first[at].tolist()],
            },
            len(at),
        )
        files = [
            write_shard_table(directory, f"marks-{key}.parquet", "marks", table),
            write_shard_table(directory, f"measures-{key}.parquet", "measures", pa.table(values)),
            write_shard_table(directory, f"ledger-{key}.parquet", "ledger", ledger),
        ]
        return files, is_out


class Explored:
    """A process of its own, and requests to it."""

    def __init__(self, directory: Path) -> None:
        began = time.monotonic()
        self.process = subprocess.Popen(
            command("explore", str(directory), "--json"), env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        told = ""
        while not told.endswith("}\n"):
            told += self.process.stdout.readline()
        url = urllib.parse.urlsplit(json.loads(told)["url"])
        self._port, self._token = url.port, urllib.parse.parse_qs(url.query)["token"][0]
        self._began = began

    def wait(self) -> float:
        """Seconds from the start of the process to the first answer."""
        self.ask("run")
        return time.monotonic() - self._began

    def ask(self, name: str, *pairs: tuple[str, object]) -> Json:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=600)
        query = urllib.parse.urlencode(pairs)
        connection.request("GET", f"/api/{name}?{query}", headers={"Authorization": f"Bearer {self._token}"})
        response = connection.getresponse()
        told: Json = json.loads(response.read())
        connection.close()
        assert response.status == 200, told
        return told

    def cpu(self) -> float:
        """Seconds of both kinds that the process has used, of all its threads."""
        used = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")

    def peak(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def measure(directory: Path, documents: int, shards: int, rounds: int) -> Json:
    explored = Explored(directory)
    chance = random.Random(1)
    try:
        figures: Json = {
            "documents": documents,
            "shards": shards,
            "load": round(os.getloadavg()[0], 1),
            "start_s": round(explored.wait(), 2),
            "start_cpu_s": round(explored.cpu(), 2),
        }

        def filtered() -> Json:
            low = chance.randrange(50, 400)
            asked = (("f", "verdict:kept"), ("f", f"words:{low}..{4 * low}"), ("sort", "-digit_share"))
            return explored.ask("documents", *asked)

        def dropped() -> Json:
            return explored.ask(
                "documents",
                ("f", "reason:mostly_digits"),
                ("f", f"digit_share:{chance.uniform(0.2, 0.3)}.."),
                ("sort", "words"),
            )

        per = -(-documents // shards)

        def document() -> Json:
            return explored.ask("document", ("id", f"doc-{chance.randrange(per, 2 * per)}"))

        def anywhere() -> Json:
            return explored.ask("document", ("id", f"doc-{chance.randrange(documents)}"))

        asked: dict[str, Callable[[], Json]] = {
            "first page": lambda: explored.ask("documents", ("offset", chance.randrange(1000))),
            "filtered and sorted": filtered,
            "by reason": dropped,
            "histogram": lambda: explored.ask("histogram", ("measure", "words"), ("by", "source")),
            "threshold": lambda: explored.ask(
                "threshold", ("rule", "words.min"), ("value", chance.randrange(20, 400))
            ),
            "document of a full shard": document,
            "document": anywhere,
            "overview": lambda: explored.ask("overview"),
        }
        for name, ask in asked.items():
            walls, spent = [], []
            for _ in range(rounds + 1):
                began, cpu = time.monotonic(), explored.cpu()
                ask()
                walls.append(time.monotonic() - began)
                spent.append(explored.cpu() - cpu)
            figures[name] = {
                "first_s": round(walls[0], 3),
                "first_cpu_s": round(spent[0], 2),
                "median_s": round(statistics.median(walls[1:]), 3),
                "median_cpu_s": round(statistics.median(spent[1:]), 2),
                "most_s": round(max(walls[1:]), 3),
            }
        figures["peak_mb"] = round(explored.peak() / 1e6)
        return figures
    finally:
        explored.stop()


if __name__ == "__main__":
    raise SystemExit(main_of(__doc__, Measured, measure, 5))
