"""The server's pages for browsers: sign-in, sign-out, and the cookie of a session."""
