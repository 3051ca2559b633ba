"""Pages: the pages of admins, and the account of the user."""
