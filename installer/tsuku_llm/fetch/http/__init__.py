"""Requests over HTTP: addresses, proxies, TLS, deadlines and retries."""
