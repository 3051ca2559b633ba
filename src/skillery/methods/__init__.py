"""The methods: params, results, calls and their execution. Endpoints and pages call them."""
