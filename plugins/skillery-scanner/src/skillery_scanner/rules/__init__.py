"""The rules, one module for each subject. Each function yields the matches of its rules in one file or skill."""
