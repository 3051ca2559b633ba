"""Parts of Linux sandboxes: the cell, control groups, system call filters, uids, and tests of the host."""
