"""Settings shared by all tests: reproducible property tests, one thread, no progress bars, no display."""

import os
import signal

from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("RL_OODKIT_PROGRESS", "0")

# Started in the background, a process inherits that Ctrl-C is ignored, and hands it on to the processes it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("house", derandomize=True, deadline=None, database=None)
settings.load_profile("house")
