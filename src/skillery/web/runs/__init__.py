"""Pages: try a skill, the page of a run, the list of runs."""
