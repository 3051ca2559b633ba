"""What all methods about skills share: visibility, resolution of versions, cursors, rows of versions."""
