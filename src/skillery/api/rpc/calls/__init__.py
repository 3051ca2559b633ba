"""One function for each method, from decoded params to the result: `method(core, identity, params)`."""
