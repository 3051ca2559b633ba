"""What runs in the sandbox to lock, fetch, build and unpack packages: modules of the standard library alone, each
handed in as the text of a job. Nothing here is imported by the server."""
