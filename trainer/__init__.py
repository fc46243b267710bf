"""The training stages: feature shards and bags in, a trained and evaluated embedding out."""

import os

PARENT = os.getppid()
"""Who started this process: asked here, before the seconds in which torch is imported."""
