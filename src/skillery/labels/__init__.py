"""Labels of versions, and locks of skills."""
