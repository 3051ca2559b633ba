"""Pure parsing of the parts of a skill: names, versions, manifests, documents, paths, bundles.

No function reads the network or the files of a skill: callers pass the contents. Strict functions raise an error of
`skillery.errors` that describes the fault. Functions for files of other authors accept faults and note them as repairs.
"""
