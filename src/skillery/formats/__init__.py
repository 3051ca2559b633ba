"""Pure parsing of the parts of a skill: names, versions, manifests, documents, paths, bundles.

No function here reads a clock, a network or a file of a skill. Each function turns text into a value, or raises an
error of `skillery.errors` that names the fault.
"""
