"""Run the cells of a comparison as actors on Ray: on a cluster of this machine, or on one that exists.

Access to the ports of a Ray cluster is enough to run code on it, so token authentication is always on.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from client_agent.errors import EngineUnusable
from studies.code_fingerprint import code_of_runs
from studies.results import Cell
from studies.study import Study
from studies.worker_pool import Follow, ProgressListener

_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A loaded machine needs more than Ray's half minute for its own processes.
    "RAY_agent_register_timeout_ms": "180000",
    "RAY_raylet_start_wait_time_s": "120",
}
_OBJECT_STORE_BYTES = 200 * 2**20  # texts and results only; Ray's default is a third of the memory
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Actors on Ray, one per parallel run.

    Attributes:
        workers: the number of parallel runs.
        address: that of a cluster, such as `auto`; None = a cluster on this machine, for this run only.
        gpus_per_worker: the share of a GPU that a worker takes; measured before the first run.
        silo_workers: the number of actors over which the silos of a run are spread; 0 = one actor runs them
            all. Then `gpus_per_worker` is the share of each of these.
    """

    workers: int
    address: str | None = None
    gpus_per_worker: float = 0.0
    silo_workers: int = 0

    def run(
        self, study: Study, out: Path, cells: Sequence[Cell], listener: ProgressListener, follow: Follow
    ) -> None:
        if study.report_to:
            raise EngineUnusable("report_to: workers on Ray have no trackers; remove it, or use processes")
        with ExitStack() as opened:
            opened.enter_context(redirect_stdout(sys.stderr))  # Ray prints there that a worker was killed
            host = opened.enter_context(self._connected())
            from studies.ray_pool import RayPool
            from studies.ray_setup import RaySetup, slugs_of

            setup = RaySetup(
                study=study,
                host=host,
                run=secrets.token_hex(8),
                code=code_of_runs(),
                slugs=slugs_of(study),
                anchors=study.anchors.read_bytes() if study.anchors is not None else None,
                gpus=self.gpus_per_worker,
                silo_workers=self.silo_workers,
            )
            opened.callback(shutil.rmtree, setup.folder(), ignore_errors=True)
            pool = opened.enter_context(RayPool.on_the_cluster(self.address, setup, out, cells, listener))
            # Runs that wait for each other's silo workers would never end.
            pool.require_room(self.workers)
            pool.run(cells, self.workers, follow)

    @contextmanager
    def _connected(self) -> Iterator[str]:
        """Connect to Ray; yield the address of this machine under which workers reach it.

        Raises:
            EngineUnusable: Ray is not installed, or there is no such cluster.
        """
        os.environ.update(_ENVIRONMENT)  # Ray reads them when it is imported
        if self.address is None:
            # A cluster of this run only needs a token that nobody else knows.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        try:
            import ray
        except ModuleNotFoundError as error:
            raise EngineUnusable(
                "--engine ray needs Ray, in a clone of Tessera: pip install '.[agent,ray]'"
            ) from error
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            self._start_or_join()
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, terminate)  # Ray's own ends the process without our cleaning up
            loopback = self.address is None
            yield _LOOPBACK if loopback else str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        finally:
            ray.shutdown()

    def _start_or_join(self) -> None:
        """Start a cluster on this machine, or connect to the one at `address`.

        Raises:
            EngineUnusable: it does not start, or does not let this process in.
        """
        import ray

        try:
            if self.address is not None:
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
                return
            ray.init(
                address="local",  # whatever cluster the environment or another command names
                num_cpus=self.workers * max(1, self.silo_workers),
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises Exception itself when one of its processes does not start
            if self.address is None:
                reason = str(error).strip().splitlines()[0]
                raise EngineUnusable(
                    f"Ray did not start on this machine ({reason}); see its logs in "
                    "/tmp/ray/session_latest/logs"
                ) from error
            raise EngineUnusable(
                f"--address: no Ray cluster at {self.address} lets this process in; start all of its nodes "
                "with RAY_AUTH_MODE=token, and put its token into RAY_AUTH_TOKEN or ~/.ray/auth_token here"
            ) from error
