"""Pages: the identity and the settings of the user."""
