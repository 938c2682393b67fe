"""Commands in processes of their own."""

import subprocess


def last_words(process):
    """What a process that should end says on stderr."""
    try:
        return process.communicate(timeout=60)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        raise
