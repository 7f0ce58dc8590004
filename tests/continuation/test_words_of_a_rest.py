"""What is said of a rest: its order, what is gone, which target can be met, and why it cannot be made."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from continuation.rests import DOMAINS, LONGER, id_of, recipe_of, table_of, written
from recount import Recount
from tokmill.artifacts.manifest import Json
from tokmill.cli import main
from tokmill.errors import InputError, RecipeError
from tokmill.loader import Batches, open_dataset


def shown_by(place: Path, build: Path, recipe: Path, out: Path, *words: str) -> str:
    told = ["continue", str(build), "--recipe", str(recipe), "--out", str(out), "--workers", "1", *words]
    shown = CliRunner().invoke(main, told)
    assert shown.exit_code == 0, shown.output
    return shown.output


def test_best_fit_is_not_said_to_be_in_order(place: Path, state: Json) -> None:
    builds = [
        {"name": "rows", "format": "memmap"},
        {"name": "fit", "format": "memmap", "pack": {"layout": "best_fit", "length": 64}},
    ]
    recipe = written(
        place, "fit", recipe_of("web", "math", mixture={**LONGER, "tokens": 22000}, builds=builds)
    )
    (place / "fit.json").write_text(json.dumps(state))
    out = place / "fit"
    output = shown_by(place, place / "old/build/rows", recipe, out, "--at", str(place / "fit.json"))
    had, orders = table_of(out), {}
    for build in ("rows", "fit"):
        turns = [
            turn for turn in Recount(out, DOMAINS).built(build, "train").turns if turn.doc.source == "web"
        ]
        levels = {key[1]: one.level for key, one in had.items() if key[0] == "web"}
        met = []
        for turn in turns:
            identity = id_of(turn.doc.doc_id)
            met.append(levels.get(identity, 0))
            levels[identity] = met[-1] + 2
        orders[build] = met == sorted(met)
        facts = json.loads((out / f"build/{build}/manifest.json").read_bytes())["facts"]
        assert orders[build] == facts.get("is_in_order", False)
        assert orders[build] == any(
            "in the order in which they are" in note for note in facts.get("notes", [])
        )
        assert orders[build] != any("seen before" in warning for warning in facts["warnings"])
        shuffle = Batches(open_dataset(out / "build" / build, "train"), 1).order.shuffle
        assert shuffle == ("none" if orders[build] else "epoch")
    assert orders == {"rows": True, "fit": False}
    assert "the rows of build/rows are in order" in output
    assert "build/fit are" not in output
    # where nothing comes again any order is as good
    first = written(place, "fit_first", recipe_of("more", mixture={}, builds=builds))
    made = mill.continue_(
        place / "old/build/rows", recipe=first, out=place / "fit_first", at=state, workers=1
    )
    assert made.run.warnings == []


def test_sources_that_are_gone_are_told_with_their_tokens(place: Path, state: Json) -> None:
    recipe = written(place, "dropped", recipe_of("web", "more", mixture={}))
    (place / "dropped.json").write_text(json.dumps(state))
    out = place / "dropped"
    output = shown_by(place, place / "old/build/rows", recipe, out, "--at", str(place / "dropped.json"))
    had = [(line["source"], line["tokens"]) for line in pq.read_table(out / "seen.parquet").to_pylist()]
    by_source = {name: [tokens for source, tokens in had if source == name] for name in ("web", "math")}
    rows = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}
    assert rows["math"][0] == f"{sum(by_source['math']):,}"
    assert rows["math"][-1] == f"{len(by_source['math']):,}"
    told = sum(int(rows[name][0].replace(",", "")) for name in ("web", "math", "more"))
    assert f"after {told:,} tokens" in output
    made = mill.continue_(place / "old/build/rows", recipe=recipe, out=out, at=state, workers=1)
    assert made.as_json()["gone"] == {
        "math": {"trained_on": sum(by_source["math"]), "documents": len(by_source["math"])}
    }


@pytest.mark.parametrize("unit", ["tokens", "blocks", "documents"])
@pytest.mark.parametrize("exhausted", ["stop", "repeat"])
def test_the_target_that_a_mixture_reaches_is_one_of_the_whole_run(
    place: Path, state: Json, unit: str, exhausted: str
) -> None:
    """It is asked for, and is met; one more is not."""
    weights = {"web": "0.75", "math": "0.25"}
    most = {"max_epochs": 2} if exhausted == "repeat" else {}
    out = place / f"reached_{unit}_{exhausted}"

    def made(target: int) -> Path:
        mixture = {"weights": weights, "exhausted": exhausted, unit: target, **most}
        recipe = written(place, "reached", recipe_of("web", "math", mixture=mixture))
        return mill.continue_(place / "old/build/rows", recipe=recipe, out=out, at=state, workers=1).run.out

    with pytest.raises(InputError) as error:
        made({"tokens": 60000, "blocks": 1250, "documents": 400}[unit])
    assert "left" in error.value.what
    found = re.search(r"lower the budget to ([\d,]+) (\w+)", error.value.next)
    assert found is not None, error.value.next
    assert found[2].startswith(unit.removesuffix("s"))
    reached = int(found[1].replace(",", ""))
    facts = json.loads((made(reached) / "mixture/manifest.json").read_bytes())["facts"]["splits"]["train"]
    had = sum(one.tokens for one in table_of(out).values())
    assert facts["tokens"] + had <= reached * {"tokens": 1, "blocks": 48, "documents": 10**6}[unit]
    if unit != "documents":
        with pytest.raises(InputError, match="exhausted"):
            made(reached + {"tokens": 200, "blocks": 4}[unit])


@pytest.mark.parametrize(
    ("mixture", "message"),
    [
        (None, "the recipe has none"),
        ({"megabytes": 1}, "how many megabytes were seen is not known"),
        ({"tokens": 100}, "nothing is left: 90 tokens were asked for"),
        ({"balance": "smallest"}, "rows that are left out to balance domains"),
        ({"weights": {"web": 1, "math": 0}, "tokens": 90000}, "web is exhausted"),
    ],
)
def test_what_cannot_be_made_is_told(place: Path, state: Json, mixture: Json | None, message: str) -> None:
    recipe = recipe_of("web", "math", **({"mixture": mixture} if mixture is not None else {}))
    with pytest.raises((InputError, RecipeError), match=message):
        mill.continue_(
            place / "old/build/rows",
            recipe=written(place, "wrong", recipe),
            out=place / "wrong",
            at=state,
            workers=1,
        )


def test_nothing_is_left_of_what_was_seen_whole(place: Path) -> None:
    batches = Batches(open_dataset(place / "old/build/mega", "train"), 1, 0)
    state = {**batches.state_dict(), "epoch": 1}
    recipe = written(place, "all", recipe_of("web", "math", mixture={}))
    with pytest.raises(
        InputError, match="nothing is left: every document that the recipe asks for was seen whole"
    ):
        mill.continue_(place / "old/build/mega", recipe=recipe, out=place / "all", at=state, workers=1)


def test_places_and_states_that_are_none_are_refused(place: Path, state: Json, tmp_path: Path) -> None:
    build, recipe = place / "old/build/rows", written(place, "fine", recipe_of("web", mixture={}))
    with pytest.raises(InputError, match="is the run that is continued"):
        mill.continue_(build, recipe=recipe, out=place / "old", at=state)
    with pytest.raises(InputError, match="on this machine"):
        mill.continue_(build, recipe=recipe, out="s3://bucket/rest", at=state)
    with pytest.raises(InputError, match="a state of the loader, or a step"):
        mill.continue_(build, recipe=recipe, out=tmp_path / "rest")
    with pytest.raises(InputError, match="another order"):
        mill.continue_(place / "old/build/mega", recipe=recipe, out=tmp_path / "rest", at=state)
    alone = shutil.copytree(build, tmp_path / "alone")
    with pytest.raises(InputError, match="the run around it"):
        mill.continue_(alone, recipe=recipe, out=tmp_path / "rest", at=state)
    assert not (tmp_path / "rest").exists()


def test_documents_that_are_held_out_now_and_were_trained_on_are_told(place: Path, state: Json) -> None:
    recipe = recipe_of("web", "math", mixture={}, split={"valid_fraction": "0.3"})
    made = mill.continue_(
        place / "old/build/rows",
        recipe=written(place, "held", recipe),
        out=place / "held",
        at=state,
        workers=1,
    )
    had = table_of(made.run.out)
    held_out = Recount(made.run.out, {"web": "web", "math": "math"}).in_split("valid")
    met = sum((doc.source, id_of(doc.doc_id)) in had for doc in held_out)
    assert met
    ((step, warning),) = made.run.warnings
    assert step == "mixture"
    assert warning.startswith(f"valid holds {met} documents that were trained on before")


@pytest.mark.usefixtures("rest")
def test_the_command_says_what_was_seen_and_what_is_to_come(place: Path, state: Json) -> None:
    (place / "state.json").write_text(json.dumps(state))
    words = ["continue", str(place / "old/build/rows"), "--recipe", str(place / "new.yaml")]
    shown = CliRunner().invoke(
        main, [*words, "--at", str(place / "state.json"), "--out", str(place / "shown"), "--workers", "1"]
    )
    assert shown.exit_code == 0, shown.output
    for word in ("tokens trained on", "docs seen", "to come", "gone", "more", "build/mega are in order"):
        assert word in shown.output
    notes = json.loads((place / "shown/build/rows/manifest.json").read_bytes())["facts"]["notes"]
    assert any("in the order in which they are to be seen" in note for note in notes)
    # and the loader, if it is not told otherwise, hands them out as they lie
    rows = open_dataset(place / "shown/build/rows", "train")
    handed_out = [ids.tolist() for batch in Batches(rows, 2) for ids in batch["tokens"]]
    assert handed_out == [np.asarray(rows[row]["ids"]).tolist() for row in range(len(rows))]
