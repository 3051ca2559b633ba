"""The HTTP parts that `api` and `web` share: authentication, requests, responses, descriptions of endpoints."""
