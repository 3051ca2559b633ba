"""Skills: lists, search, descriptions, files, and the catalogue that they read."""
