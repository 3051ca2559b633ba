"""Pure parsing of everything a skill is made of: names, versions, manifests, documents, paths, bundles.

Nothing here reads a file, a clock or a network. Text becomes a value once, or an error of `skillery.errors` that says
what is wrong with it.
"""
