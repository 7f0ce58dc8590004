"""What Slurm's commands say, where there is no Slurm: programs of the test stand in for those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokmill as mill
from mill import small_corpus
from tokmill.engines.slurm_jobs import (
    DEFAULT_ARRAY,
    Refused,
    Unreachable,
    find_jobs,
    max_array_size,
    prefix_of,
    require_slurm,
    submit,
)
from tokmill.errors import EngineError, TokmillError


def program(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/bin:/usr/bin")
    return directory


def test_a_machine_without_slurm_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="sbatch, squeue, scancel, scontrol cannot be found"):
        require_slurm()
    with pytest.raises(TokmillError, match="sbatch"):
        mill.run(small_corpus(tmp_path / "corpus"), tmp_path / "out", engine="slurm")
    assert not (tmp_path / "out").exists(), "it was found out before anything was done"


def test_programs_without_a_configuration_are_told_and_not_thrown(programs: Path, tmp_path: Path) -> None:
    for name in ("squeue", "scancel", "scontrol"):
        program(programs, name, "true")
    program(
        programs, "sbatch", "echo 'sbatch: fatal: Could not establish a configuration source' >&2; exit 1"
    )
    with pytest.raises(TokmillError, match=r"no Slurm answers.*configuration source") as told:
        mill.run(small_corpus(tmp_path / "corpus"), tmp_path / "out", engine="slurm")
    assert "SLURM_CONF" in str(told.value)
    assert not (tmp_path / "out").exists()


def test_a_stage_that_there_is_not_is_refused_before_anything_is_done(programs: Path, tmp_path: Path) -> None:
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        program(programs, name, "echo slurm 99.05.1")
    with pytest.raises(TokmillError, match="there is no stage tokenz"):
        mill.run(small_corpus(tmp_path / "corpus"), tmp_path / "out", engine="slurm", slurm=["tokenz.mem=8G"])
    assert not (tmp_path / "out").exists()


def test_jobs_of_a_directory_are_known_by_their_names(programs: Path, tmp_path: Path) -> None:
    ours = prefix_of(tmp_path)
    lines = [
        f"7_0|{ours}ab-0|RUNNING|None|n1|1-02:03:04",
        f"7_1|{ours}ab-0|PENDING|Priority||UNLIMITED",
        f"8|{ours}ab-1|PENDING|Resources||INVALID",  # no array: not ours
        "9_0|somebody-else|RUNNING|None|n2|10:00",
        "",
    ]
    (tmp_path / "listing").write_text("\n".join(lines))
    program(programs, "squeue", f"cat {tmp_path}/listing")
    found = find_jobs(ours).jobs
    assert set(found) == {(f"{ours}ab-0", 0), (f"{ours}ab-0", 1)}
    running, pending = found[f"{ours}ab-0", 0], found[f"{ours}ab-0", 1]
    assert (running.number, running.state, running.nodes, running.seconds_left) == (
        *("7_0", "RUNNING", "n1"),
        ((24 + 2) * 60 + 3) * 60 + 4,
    )
    assert (pending.state, pending.reason, pending.seconds_left) == ("PENDING", "Priority", None)


@pytest.mark.parametrize(
    ("said", "kind", "is_too_many"),
    [
        ("Unable to contact slurm controller (connect failure)", Unreachable, None),
        ("Batch job submission failed: Socket timed out on send/recv operation", Unreachable, None),
        ("Batch job submission failed: Invalid job array specification", Refused, True),
        (
            "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, …)",
            Refused,
            True,
        ),
        ("Batch job submission failed: Invalid partition name specified", Refused, False),
    ],
)
def test_what_may_be_asked_again_is_told_from_a_no(
    programs: Path, said: str, kind: type[Exception], is_too_many: bool | None
) -> None:
    program(programs, "sbatch", f"echo 'sbatch: error: {said}' >&2; exit 1")
    with pytest.raises(kind) as caught:
        submit("#!/bin/sh\n", [])
    assert getattr(caught.value, "is_too_many", None) == is_too_many


def test_a_job_does_not_inherit_what_the_job_of_its_driver_was_given(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("PYTHONPATH", "here")
    program(programs, "sbatch", f"env > {tmp_path}/env; echo '12;cluster'")
    assert submit("#!/bin/sh\n", []) == "12"
    lines = (tmp_path / "env").read_text().splitlines()
    assert "SLURM_CONF=/etc/slurm.conf" in lines
    assert not [line for line in lines if line.startswith("SLURM_MEM")]
    assert f"PYTHONPATH={Path.cwd()}/here" in lines


def test_the_size_of_arrays_is_the_sites_or_what_slurm_has_by_default(programs: Path) -> None:
    program(programs, "scontrol", "echo 'MaxArraySize            = 77'")
    assert max_array_size() == 77
    program(programs, "scontrol", "exit 1")
    assert max_array_size() == DEFAULT_ARRAY
