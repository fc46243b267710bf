"""Snakemake that looks at its Slurm jobs every second.

Run     python tests/slurm/eager.py ...    (as `python -m snakemake ...`)

The executor waits 10 s longer after each look in which no job was done, up to 180 s. That suits a
cluster, and would be most of the time that tests on one take; nothing else differs.
"""

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

if __name__ == "__main__":
    Executor.next_seconds_between_status_checks = property(lambda _: 1.0, lambda *_: None)
    main()
