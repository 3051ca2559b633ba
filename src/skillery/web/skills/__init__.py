"""Pages: the pages of one skill: about, files, versions."""
