"""Memory grows with the chunk, not with the data. (At SOP's full size, 60,502 × 512 with k=1000, the process peaked at
1.4 GB, of which 1.0 GB were torch and the embeddings themselves; it took 83 seconds on one core.)"""

import subprocess
import sys
from pathlib import Path

import pytest

from pml_nivmf.metrics.neighbours import BYTES_PER_NEIGHBOUR, CHUNK_BYTES, chunk_rows

PROGRAM = """
import torch
from pml_nivmf.metrics import ProbabilisticAccuracyCalculator
torch.set_num_threads(1)
count = 6050  # a tenth of SOP; k stays 1000
labels = torch.arange(count) % 1131
embeddings = torch.randn(count, 64)

def peak(batch_size):
    metrics = ProbabilisticAccuracyCalculator(exclude=("NMI", "AMI"), k=1000, device="cpu", batch_size=batch_size)
    metrics.get_accuracy(embeddings, labels)
    for line in open("/proc/self/status"):  # getrusage would report the peak of the process that started this one
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024

print(peak(60), peak(300), peak(count))  # the first call pays for what is loaded once
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from Linux")
def test_peak_follows_the_chunk():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    base, small, whole = (int(word) for word in done.stdout.split()[-3:])
    entries = 6050 * 1000 / 2**20  # of the whole matrix of neighbours, in millions
    assert whole - base > 16 * entries, "the measure cannot see what it should"
    assert whole - base < BYTES_PER_NEIGHBOUR * entries, "a chunk takes more than was reckoned with"
    assert small - base < 0.2 * (whole - base)


def test_default_chunks():
    for neighbours in (1, 1000, 60_501, 10**9):
        rows = chunk_rows(neighbours)
        assert rows == 1 or rows * neighbours * BYTES_PER_NEIGHBOUR <= CHUNK_BYTES
