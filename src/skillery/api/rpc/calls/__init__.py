"""How each method reaches the core: one function each, from checked params to the answer."""
