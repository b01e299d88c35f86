"""Start and stop clusters of two nodes on this machine: Slurm from Debian's packages, and Ray."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=bf_interval=1,sched_interval=1,defer
SlurmdTimeout=10
KillWait=5
MinJobAge=60
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE OverTimeLimit=0 State=UP
"""


class Slurm:
    """A Slurm cluster with two nodes, n1 and n2, of two processors each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        self.folder.chmod(0o755)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        paths = [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._run("munged", "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *paths)
        ports = dict(zip(("ctld", "n1", "n2"), free_ports(3), strict=True))
        self.conf.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=self.folder, **ports))
        os.environ["SLURM_CONF"] = str(self.conf)
        wait_until((self.folder / "munge.socket").exists, "munged")
        self._run("slurmctld", "slurmctld", "-D")
        for node in ("n1", "n2"):
            self.start_node(node)
        wait_until(lambda: self.call("sinfo", "--noheader", "--format=%D %t").strip() == "2 idle", "both nodes")

    def start_node(self, name: str) -> None:
        self._run(name, "slurmd", "-D", "-N", name)

    def kill_node(self, name: str) -> None:
        """Kill the node's daemon and all its jobs at once, as a power cut does. Slurm notices it later."""
        self._daemons.pop(name).kill()
        tasks = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == name:
                    tasks.append(process)
        steps = [parent for task in tasks if (parent := task.parent()) and parent.name().startswith("slurmstepd")]
        for process in [*steps, *tasks]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def call(self, *arguments: str) -> str:
        return subprocess.run(arguments, capture_output=True, text=True, check=False).stdout

    def stop(self) -> None:
        if self.conf.exists():
            self.call("scancel", "--user=root", "--signal=KILL")
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        for daemon in self._daemons.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        os.environ.pop("SLURM_CONF", None)

    def _run(self, name: str, *argv: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(argv, stdout=out, stderr=out, start_new_session=True)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    if os.getuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))):
        pytest.skip("needs Debian's slurm-wlm and munge, and root")
    pytest.importorskip("submitit")
    # short, for socket paths
    folder = Path(subprocess.check_output(["mktemp", "-d", "/tmp/slurm-XXXXXX"], text=True).strip())
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[object]:
    """A Ray cluster: a head node without processors, and two nodes with two processors each."""
    utils = pytest.importorskip("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80_000_000})
    cluster.nodes = [cluster.add_node(num_cpus=2, object_store_memory=80_000_000) for _ in range(2)]
    yield cluster
    cluster.shutdown()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(condition, what: str, patience_s: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, f"{what}: it did not come to that"
        time.sleep(0.1)
