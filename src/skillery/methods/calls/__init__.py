"""The function of each method, `method(core, identity, params)`: from decoded params to the result."""
