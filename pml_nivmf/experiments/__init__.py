"""From a YAML file to a trained, tested and recorded run: config → build → run, and compare, sweeps, benchmarks."""
