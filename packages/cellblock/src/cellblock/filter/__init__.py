"""The system call filter: the rules, and the numbers of the calls."""
