"""The code that tests run inside the sandbox. It is sent there as text, and never imported here."""
