"""The settings of a server. The core may use the groups; only the edges know all settings and their sources."""
