"""Contents of files and blobs: identified by their digest, kept in the database or in the storage."""
