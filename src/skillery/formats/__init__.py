"""Pure parsing of the parts of a skill: names, versions, manifests, documents, paths, bundles.

No function reads the clock, the network or the files of a skill. Each function turns text into a value, or raises an
error of `skillery.errors` that describes the fault.
"""
