"""How every command of the trainer starts and fails: log lines on stderr, errors in one line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable


def run(main: Callable[[], None]) -> None:
    """Run a command's `main`; an error that people can mend ends in one line and exit status 1.

    A broken promise of our own code still shows its traceback.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    try:
        main()
    except (ValueError, OSError) as error:
        logging.getLogger(__name__).error("%s", " ".join(str(error).split()))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
