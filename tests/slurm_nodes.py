"""A real Slurm on loopback: munged, a controller and several slurmd of this machine, started and ended here.

    with slurm_nodes(3) as slurm: ...        SLURM_CONF is set meanwhile; skips where Slurm is not installed

Nodes with `shares_disk=False` are in mount namespaces of their own (`nodes`): of the places where tests write
they see the directory of Slurm's daemons, and no other. Nodes can be killed with all that runs on them, and
started again; so can the controller.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nodes import Node, require_namespaces, unshared_command

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
CONFIG = """
ClusterName=toy
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/controller.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/controller.log
SlurmdLogFile={directory}/%n.log
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=6
MessageTimeout=5
KillWait=3
OverTimeLimit=0
MaxArraySize={max_array_size}
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
PropagateResourceLimits=NONE
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=16000 "
    "State=UNKNOWN"
)


class SlurmNodes:
    def __init__(self, directory: Path, count: int, max_array_size: int, shares_disk: bool) -> None:
        self.directory = directory
        self._shares_disk = shares_disk
        self.config = directory / "slurm.conf"
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(count + 1)
        nodes = [NODE.format(name=name, port=port) for name, port in zip(self.names, ports[1:], strict=True)]
        self.config.write_text(
            CONFIG.format(
                port=ports[0],
                user=getpass.getuser(),
                directory=directory,
                max_array_size=max_array_size,
                nodes="\n".join(nodes),
            )
        )
        (directory / "state").mkdir()
        key = directory / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)

    def start(self) -> None:
        places = {
            "socket": "socket",
            "key-file": "key",
            "pid-file": "pid",
            "seed-file": "seed",
            "log-file": "log",
        }
        options = [f"--{option}={self.directory}/munge.{end}" for option, end in places.items()]
        self._start("munged", ["munged", "--foreground", *options])
        until(lambda: (self.directory / "munge.socket").exists(), "munged does not start")
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self.wait_until_up()

    def stop(self) -> None:
        """The jobs first: nothing else ends what they have started."""
        for name in self.names:
            self.kill_node(name)
        for name in ("controller", "munged"):
            if name in self._daemons:
                self._end(name, signal.SIGTERM)

    def wait_until_up(self) -> None:
        until(self._is_up, f"the nodes do not come up: {self.said()}")

    def _is_up(self) -> bool:
        """A controller that was killed before it had written that a job runs sends it again when it is back,
        and drains the node that has it already: from there an administrator takes it."""
        states = [
            line.split() for line in self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        ]
        for name, state in states:
            if state == "drained":
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        return [state for _, state in states] == ["idle"] * len(self.names)

    def run(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment(), check=False)
        return done.stdout

    def jobs(self) -> list[str]:
        """Numbers of those that are not over."""
        return self.run("squeue", "--noheader", "--array", "--format=%i").split()

    def running(self) -> list[str]:
        return self.run("squeue", "--noheader", "--array", "--states=running", "--format=%i").split()

    def pids(self, node: str | None = None) -> list[int]:
        """Processes of jobs, of one node or of all."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                is_ours = environment.get("SLURM_CONF") == str(self.config) and "SLURM_JOB_ID" in environment
                if is_ours and node in (None, environment.get("SLURMD_NODENAME")):
                    found.append(process.pid)
        return found

    def start_controller(self) -> None:
        self._start("controller", ["slurmctld", "-D"])

    def kill_controller(self) -> None:
        self._end("controller", signal.SIGKILL)

    def start_node(self, name: str) -> None:
        command = ["slurmd", "-D", "-N", name]
        if not self._shares_disk:
            command = unshared_command(name, command, seen=self.directory)
        self._start(name, command)

    def node(self, name: str) -> Node:
        """To be looked into."""
        return Node(name, self._daemons[name])

    def kill_node(self, name: str) -> None:
        """As when the power goes: slurmd, the stepds, the jobs."""
        if name in self._daemons:
            self._end(name, signal.SIGKILL)
        for pid in self.pids(name):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                parent = process.parent()
                if parent is not None and parent.name().startswith("slurmstepd"):
                    parent.kill()
                process.kill()

    def said(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.config), "PATH": PATH}

    def _start(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def _end(self, name: str, how: signal.Signals) -> None:
        daemon = self._daemons.pop(name)
        daemon.send_signal(how)
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def slurm_nodes(
    count: int = 2, *, max_array_size: int = 1001, shares_disk: bool = True
) -> Iterator[SlurmNodes]:
    missing = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if missing:
        pytest.skip(f"Slurm is not installed: no {', '.join(missing)}")
    if not shares_disk:
        require_namespaces()
    # Short, for sockets; and munge wants a directory that everybody may enter.
    with tempfile.TemporaryDirectory(prefix="tms-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        slurm = SlurmNodes(Path(directory), count, max_array_size, shares_disk)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(slurm.config))
            try:
                slurm.start()
                yield slurm
            finally:
                slurm.stop()


def until(is_so: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as probes:
        found = []
        for _ in range(count):
            probe = probes.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            found.append(int(probe.getsockname()[1]))
        return found
