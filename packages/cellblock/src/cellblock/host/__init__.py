"""The side of the host: limits, channels, logs, probes, and the session of a run."""
