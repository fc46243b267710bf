"""Snakemake that looks at its Slurm jobs every second.

Run     python tests/slurm/eager.py ...    (as `python -m snakemake ...`)

The executor waits 10 s longer after each look in which no job was done, up to 180 s. That suits a
cluster, and would be most of the time that tests on one take. While it looks, it forgets which jobs
it has: a Ctrl-C in that moment cancels none of them. At one look a second that moment is a large
part of the time, so here the jobs that are looked at are cancelled too. Nothing else differs.
"""

from collections.abc import AsyncIterator

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

check, cancel = Executor.check_active_jobs, Executor.cancel_jobs


async def check_remembered(self: Executor, active_jobs: list) -> AsyncIterator:
    """Look at the jobs, remembering which."""
    self.looked_at = tuple(active_jobs)
    async for job in check(self, active_jobs):
        yield job


def cancel_remembered(self: Executor, active_jobs: list) -> None:
    """Cancel the jobs that are known and those that are looked at; cancelling twice is none."""
    jobs = {job.external_jobid: job for job in (*self.looked_at, *active_jobs)}
    cancel(self, list(jobs.values()))


if __name__ == "__main__":
    # On the class itself, for Snakemake has found it by the time that this file is read.
    Executor.looked_at = ()
    Executor.next_seconds_between_status_checks = property(lambda _: 1.0, lambda *_: None)
    Executor.check_active_jobs, Executor.cancel_jobs = check_remembered, cancel_remembered
    main()
