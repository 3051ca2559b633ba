"""Tools of skills and of sessions: lists, and the look-up by name."""
