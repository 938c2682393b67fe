"""Settings of the whole suite: tests run in several processes, so each of them computes with one thread."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; processes that tests start inherit it
