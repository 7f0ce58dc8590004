"""A Slurm whose programs are of the test: it takes, lists and cancels as it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokmill.engines.slurm_fleet import FleetJob

SBATCH = """cat > /dev/null
if [ "$1" = --version ]; then echo slurm 99.05.1; exit; fi
echo "$@" >> {at}/asked
size=$(echo "$@" | sed 's/.*--array=0-\\([0-9]*\\).*/\\1/')
case "$*" in *"$(cat {at}/refused)"*) cat {at}/refusal >&2; exit 1;; esac
if [ $size -gt $(cat {at}/largest) ]; then cat {at}/refusal >&2; exit 1; fi
name=$(echo "$@" | sed 's/.*--job-name=\\([^ ]*\\).*/\\1/')
number=$((7 + ${{name##*-}}))
for index in $(seq 0 $size); do echo "${{number}}_$index|$name|PENDING|None||UNLIMITED" >> {at}/listing; done
echo $number"""

SCANCEL = """echo "$@" >> {at}/cancelled
for one in $(echo "$@" | tr , ' '); do
  case $one in
    --name=*) mark="|${{one#--name=}}|";;
    --*) continue;;
    *) mark="^$one|";;
  esac
  grep -v "$mark" {at}/listing > {at}/listing.left
  mv {at}/listing.left {at}/listing
done"""


class Site:
    """A Slurm that says what the test has it say."""

    def __init__(self, directory: Path) -> None:
        self.at = directory
        self.largest(999, "")
        self.refuse("nothing", "")
        self.list()
        programs = {
            "sbatch": SBATCH,
            "squeue": "cat {at}/listing",
            "scancel": SCANCEL,
            "scontrol": "echo 'MaxArraySize = 1000'",
        }
        (directory / "bin").mkdir()
        for name, script in programs.items():
            path = directory / "bin" / name
            path.write_text(f"#!/bin/sh\n{script.format(at=directory)}\n")
            path.chmod(0o755)

    def largest(self, index: int, refusal: str) -> None:
        (self.at / "largest").write_text(str(index))
        (self.at / "refusal").write_text(f"sbatch: error: {refusal}\n")

    def refuse(self, argument: str, refusal: str) -> None:
        (self.at / "refused").write_text(argument)
        (self.at / "refusal").write_text(f"sbatch: error: {refusal}\n")

    def list(self, *jobs: tuple[FleetJob, str, str], left: str = "UNLIMITED") -> None:
        """State and node of each; what is left of their time."""
        lines = [
            f"{number_of(job)}|{job.batch.name}|{state}|None|{node}|{left}\n" for job, state, node in jobs
        ]
        new = self.at / "listing.new"
        new.write_text("".join(lines))
        new.replace(self.at / "listing")

    def asked(self) -> list[str]:
        path = self.at / "asked"
        return path.read_text().splitlines() if path.exists() else []

    def cancelled(self) -> str:
        path = self.at / "cancelled"
        return path.read_text() if path.exists() else ""


def number_of(job: FleetJob) -> str:
    """7_0, 7_1 … of the first array, 8_0 … of the next."""
    return f"{7 + int(job.batch.name.rpartition('-')[2])}_{job.index}"


def open_site(directory: Path, patch: pytest.MonkeyPatch) -> Site:
    made = Site(directory)
    patch.setenv("PATH", f"{directory}/bin:/bin:/usr/bin")
    patch.setattr("tokmill.engines.slurm_fleet._SUBMIT_SECONDS", 0.0)
    patch.setattr("tokmill.engines.slurm_fleet._LOOKS", (0.05, 0.1))
    return made
