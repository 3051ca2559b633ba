"""Code that runs in the sandbox to check a bundle. It uses only the standard library. The server does not import it."""
