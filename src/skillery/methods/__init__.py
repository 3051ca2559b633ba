"""The methods: params, results, calls and their execution. The endpoints of `api` and the pages of `web` call them."""
