"""The side of the host: pools of cells, zygotes, limits, channels, logs, probes, and the session of a run."""
