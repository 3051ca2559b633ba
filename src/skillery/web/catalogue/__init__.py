"""Pages: the catalogue of skills, and the first steps on a new server."""
