"""Code that `skillery test` runs in the sandbox. It is sent there as text, and never imported here."""
