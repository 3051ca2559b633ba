"""Two small programs around `bwrap`, on the bare interpreter: `launcher` ends by becoming it, `prologue` is what it
starts. They import the standard library and the folder that `skillery.sandboxing.INSIDE` names, as `cell`."""
