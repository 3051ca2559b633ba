"""Made by `make client` from the table of methods: do not edit."""
