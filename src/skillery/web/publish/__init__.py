"""Pages: upload a skill, check it, publish it; imports of archives."""
