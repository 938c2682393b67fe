"""Time and memory of losses, side by side in one run."""
