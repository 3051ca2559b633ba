"""One function for each method: `method(core, identity, params)` returns the result."""
