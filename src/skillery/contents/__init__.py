"""Contents of files and blobs. Each is identified by its digest, and is kept in the database or in the storage."""
