"""Settings shared by all tests: reproducible property tests, one thread, no progress bars, no display."""

import os

from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("RL_OODKIT_PROGRESS", "0")

settings.register_profile("house", derandomize=True, deadline=None, database=None)
settings.load_profile("house")
